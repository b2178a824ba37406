//! A replica that cannot know whether it still owns: paused, cut off, or with beats that fail.

use std::time::Duration;

use bson::doc;
use libtest_mimic::Trial;

use crate::{
    crew::Replica,
    dose,
    stage::{PATIENCE, Stage, assert_one_owner, servers, was_whole},
    support::{Cable, ReplicaSet, eventually},
    timeline, trial,
};

/// Rows in flight of a replica that is going to be paused.
const BURST: usize = 50;

pub fn tests() -> Vec<Trial> {
    vec![
        trial!(a_paused_replica_comes_back_to_what_is_another_s),
        trial!(pauses_about_as_long_as_a_lease),
        trial!(cut_off_from_mongodb_it_stops_before_others_begin),
        trial!(beats_that_fail_while_all_else_works),
        trial!(while_mongodb_is_away_nothing_is_owned),
    ]
}

/// Three leases, in the middle of a batch.
async fn a_paused_replica_comes_back_to_what_is_another_s() {
    let stage = Stage::shared().await;
    let consumer = stage.consume().await;
    // A slow link, so that it is in the middle of its rows.
    let cable = Cable::to(servers().await.rabbit.port()).await;
    cable.delay(Duration::from_millis(100));
    let slow = stage
        .casting()
        .with(
            "TOA_OUTBOX_AMQP",
            format!("amqp://guest:guest@127.0.0.1:{}/%2f", cable.port()),
        )
        .with("TOA_OUTBOX_INFLIGHT", BURST);
    let mut crew = vec![
        slow.start(),
        stage.casting().start(),
        stage.casting().start(),
    ];
    stage.whole(&crew).await;
    for _ in 0..dose(2, 10) {
        let before = consumer.distinct();
        stage.seed(5_000).await;
        // More than the share of the other two.
        consumer.wait_for(before + 3_500, PATIENCE).await;
        crew[0].pause();
        let paused = timeline::now();
        // Time is the subject.
        tokio::time::sleep(stage.beat * 9).await;
        let late = paused + timeline::nanos(stage.beat * 6);
        assert!(
            was_whole(&crew[1..], paused, late),
            "an owner within two leases"
        );
        // The others send all of it, so whatever comes from now on comes from the paused one.
        let repeated = stage.all_arrive(&consumer).await.len();
        let sent = consumer.count();
        crew[0].resume();
        stage.whole(&crew).await;
        let sent_late = consumer.count() - sent;
        println!("paused: {repeated} repeated by the others, {sent_late} sent after the pause");
        // What the client had taken already may leave with the next breath; nothing is started.
        assert!(sent_late <= BURST, "{sent_late}");
    }
    crew[0].stop().await;
    assert_one_owner(&crew);
}

async fn pauses_about_as_long_as_a_lease() {
    let stage = Stage::shared().await;
    let consumer = stage.consume().await;
    let mut crew = stage.start(3);
    stage.whole(&crew).await;
    for replica in &mut crew {
        replica.write(20).await;
    }
    for round in 0..dose(10, 100) {
        let paused = rand::random_range(0..crew.len());
        crew[paused].pause();
        // Time is the subject.
        let length = stage.beat.mul_f64(rand::random_range(1.8..3.8));
        tokio::time::sleep(length).await;
        crew[paused].resume();
        if round % 3 == 0 {
            stage.seed(500).await;
        }
        // A pause of the others' too: time is the subject.
        tokio::time::sleep(stage.beat).await;
    }
    for replica in &mut crew {
        replica.write_no_more().await;
    }
    stage.whole(&crew).await;
    println!(
        "short pauses: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    assert_one_owner(&crew);
}

async fn cut_off_from_mongodb_it_stops_before_others_begin() {
    let stage = Stage::shared().await;
    let consumer = stage.consume().await;
    let mongo = &servers().await.mongo;
    let cable = Cable::to(mongo.port(mongo.primary_index().await)).await;
    let cut_off = stage
        .casting()
        .with("TOA_OUTBOX_MONGODB", stage.mongo_by(cable.port()));
    let crew = vec![cut_off.start(), stage.casting().start()];
    stage.whole(&crew).await;
    let cuts: [fn(&Cable); 3] = [Cable::cut, Cable::blackhole, Cable::swallow_back];
    for cut in cuts {
        stage.seed(3_000).await;
        cut(&cable);
        stage.whole_of(&crew, 1).await;
        stage.settled().await;
        cable.mend();
        stage.whole_of(&crew, 2).await;
    }
    println!(
        "cut off: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    assert!(crew[0].count("no sign of life was acknowledged") >= 3);
    assert_one_owner(&crew);
}

/// The server refuses the beats of one application by its name.
async fn beats_that_fail_while_all_else_works() {
    let set = ReplicaSet::start_with(1, &["--setParameter", "enableTestCommands=1"]).await;
    let stage = Stage::of(&set).await;
    let consumer = stage.consume().await;
    let named = |name: &str| {
        let uri = format!("{}&appName={name}", stage.mongo_by(set.port(0)));
        stage.casting().with("TOA_OUTBOX_MONGODB", uri).start()
    };
    let mut crew = vec![named("poor"), named("rich")];
    stage.whole(&crew).await;
    crew[0].write(20).await;
    let failures = [
        doc! { "errorCode": 91 },
        doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } },
        doc! { "closeConnection": true },
    ];
    for failure in failures {
        let mut data = doc! { "failCommands": ["findAndModify"], "appName": "poor" };
        data.extend(failure);
        set.fail_command(doc! { "mode": "alwaysOn", "data": data })
            .await;
        stage.whole_of(&crew, 1).await;
        stage.seed(1_000).await;
        // It writes and publishes on meanwhile.
        stage.settled().await;
        set.fail_off().await;
        stage.whole_of(&crew, 2).await;
    }
    crew[0].write_no_more().await;
    assert_eq!(crew[0].count("not written"), 0);
    println!(
        "failing beats: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    assert_one_owner(&crew);
}

async fn while_mongodb_is_away_nothing_is_owned() {
    let set = ReplicaSet::start(1).await;
    let stage = Stage::of(&set).await;
    let consumer = stage.consume().await;
    let mut crew = stage.start(3);
    stage.whole(&crew).await;
    for replica in &mut crew {
        replica.write(20).await;
    }
    set.kill(0).await;
    eventually(PATIENCE, "all know that they own nothing", async || {
        let knows = |replica: &Replica| replica.count("no sign of life was acknowledged") >= 1;
        crew.iter().all(knows)
    })
    .await;
    let now = timeline::now();
    assert!(crew.iter().all(|replica| replica.share(now) == 0));
    set.start_again(0).await;
    let took = stage.whole(&crew).await;
    println!("owned again {took:.2?} after MongoDB was back");
    for replica in &mut crew {
        replica.write_no_more().await;
    }
    println!(
        "MongoDB killed: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    assert_one_owner(&crew);
}
