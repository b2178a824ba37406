//! A machine that is suspended in the middle of a batch: timers stand still meanwhile, leases do not.

use std::{fs::File, os::unix::fs::FileExt, path::Path, process::Command, time::Duration};

use bson::doc;
use libtest_mimic::Trial;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::{
    crew::{Casting, Replica},
    dose,
    stage::{PATIENCE, Stage, assert_one_owner, servers},
    support::{Cable, Checker, eventually},
    timeline, trial,
};

/// Rows in flight of the replica that is suspended.
const BURST: usize = 20;

const ROWS: i32 = 1_280;

pub fn tests() -> Vec<Trial> {
    vec![
        trial!(suspended_it_begins_nothing_more),
        trial!(suspended_and_back_it_renews_what_it_owned),
    ]
}

/// The clock of one process that counts suspension. It can be told that there was one, and no other clock knows.
struct Suspension {
    folder: TempDir,
    file: File,
    total: Duration,
}

impl Suspension {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lanes/suspend.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
            .arg(folder.path().join("suspend.so"))
            .arg(source)
            .arg("-ldl")
            .status();
        assert!(compiled.unwrap().success(), "cc");
        let file = File::create(folder.path().join("suspended")).unwrap();
        file.set_len(8).unwrap();
        let total = Duration::ZERO;
        Self {
            folder,
            file,
            total,
        }
    }

    fn of(&self, casting: Casting) -> Casting {
        let path = |name| self.folder.path().join(name);
        casting
            .with("LD_PRELOAD", path("suspend.so").display())
            .with("SUSPENDED", path("suspended").display())
    }

    fn suspend(&mut self, replica: &mut Replica, length: Duration) {
        self.total += length;
        let total = timeline::nanos(self.total) as i64;
        self.file.write_all_at(&total.to_ne_bytes(), 0).unwrap();
        replica.was_suspended(timeline::now(), length);
    }
}

/// One that can be suspended and sends slowly, so that it is in the middle of its rows, and another.
struct Scene {
    stage: Stage,
    consumer: Checker,
    crew: Vec<Replica>,
    clock: Suspension,
    /// Its way to MongoDB.
    link: Cable,
    _slow: Cable,
}

impl Scene {
    async fn new() -> Self {
        let stage = Stage::shared().await;
        let (mongo, clock) = (&servers().await.mongo, Suspension::new());
        let link = Cable::to(mongo.port(mongo.primary_index().await)).await;
        let slow = Cable::to(servers().await.rabbit.port()).await;
        slow.delay(Duration::from_millis(100));
        let amqp = format!("amqp://guest:guest@127.0.0.1:{}/%2f", slow.port());
        let casting = clock
            .of(stage.casting())
            .with("TOA_OUTBOX_MONGODB", stage.mongo_by(link.port()))
            .with("TOA_OUTBOX_AMQP", amqp)
            .with("TOA_OUTBOX_INFLIGHT", BURST);
        let crew = vec![casting.start(), stage.casting().start()];
        stage.whole(&crew).await;
        Self {
            consumer: stage.consume().await,
            stage,
            crew,
            clock,
            link,
            _slow: slow,
        }
    }

    /// Until only rows of the slow one are left, and it is at them.
    async fn in_the_middle(&self) {
        let before = self.consumer.distinct();
        self.stage.seed(ROWS).await;
        eventually(PATIENCE, "the other has sent its share", async || {
            let now = timeline::now();
            let spans = self.crew[1].spans();
            let owned = |lane: &i32| spans.iter().any(|span| span.owns(*lane as u8, now));
            let lanes: Vec<i32> = (0..128).filter(owned).collect();
            let left = doc! { "published": false, "lane": { "$in": &lanes } };
            lanes.len() == 64 && self.stage.rows().count_documents(left).await.unwrap() == 0
        })
        .await;
        let left = before + ROWS as usize - self.consumer.distinct();
        assert!(left > 5 * BURST, "in the middle: {left}");
    }

    fn suspend(&mut self) {
        let length = self.stage.beat * 9;
        self.clock.suspend(&mut self.crew[0], length);
    }

    fn lapses(&self) -> usize {
        self.crew[0].count("no sign of life was acknowledged")
    }

    async fn lapses_again(&self, before: usize) {
        eventually(PATIENCE, "it knows that it owns nothing", async || {
            self.lapses() > before
        })
        .await;
        // Only the one clock tells.
        assert_eq!(self.crew[0].count("was this machine stopped"), 0);
    }
}

/// And it cannot ask, so the other takes over.
async fn suspended_it_begins_nothing_more() {
    let mut scene = Scene::new().await;
    for _ in 0..dose(1, 10) {
        scene.in_the_middle().await;
        let before = scene.lapses();
        scene.link.cut();
        scene.suspend();
        let (woken, begun) = (timeline::now(), Instant::now());
        scene.lapses_again(before).await;
        scene.stage.whole_of(&scene.crew, 1).await;
        let spans = scene.crew[1].spans();
        let took_over = spans.iter().map(|span| span.from).find(|&at| at > woken);
        let until = begun + Duration::from_nanos(took_over.unwrap() - woken);
        let deliveries = scene.consumer.received();
        let late = deliveries
            .iter()
            .filter(|delivery| begun < delivery.at && delivery.at < until);
        let late = late.count();
        println!("suspended: {late} sent after that");
        // What the client had taken already may leave with the next breath; nothing is started.
        assert!(late <= BURST, "{late}");
        scene.link.mend();
        scene.stage.whole(&scene.crew).await;
        scene.stage.all_arrive(&scene.consumer).await;
    }
    scene.crew[0].stop().await;
    assert_one_owner(&scene.crew);
}

/// Nobody else noticed anything.
async fn suspended_and_back_it_renews_what_it_owned() {
    let mut scene = Scene::new().await;
    for _ in 0..dose(1, 10) {
        scene.in_the_middle().await;
        let before = scene.lapses();
        scene.suspend();
        scene.lapses_again(before).await;
        let took = scene.stage.whole(&scene.crew).await;
        let repeated = scene.stage.all_arrive(&scene.consumer).await.len();
        println!("suspended: owned again after {took:.2?}, {repeated} repeated so far");
    }
    scene.crew[0].stop().await;
    assert_one_owner(&scene.crew);
}
