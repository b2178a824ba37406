//! Sinks to which the order of the commits is kept: while owners die, rows expire, destinations fail, and history is lost.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bson::{Bson, Document, doc};
use futures::{TryStreamExt, future::join_all};
use mongodb::Collection;
use toa_outbox::{
    BoxError, Component, Label, Message, Outbox, Sink, SinkOptions, Unreachable, Verdict,
};
use tokio::{runtime::Runtime, sync::watch};

use crate::{
    rig::{PATIENCE, Rig, id, soak},
    support::{Mongo, ReplicaSet, eventually},
};

const SINK: &str = "warehouse";

/// Longer than anything that is going to happen takes where a run is long.
fn patience() -> Duration {
    match soak() {
        true => PATIENCE * 20,
        false => PATIENCE * 2,
    }
}

/// A destination that writes down what it takes, whoever delivers.
#[derive(Clone, Default)]
struct Log(Arc<Inner>, usize);

#[derive(Default)]
struct Inner {
    taken: watch::Sender<Vec<Taken>>,
    is_down: AtomicBool,
    failing: Mutex<BTreeSet<String>>,
    /// Which attempt it was that failed, of those that did alone.
    lone: Mutex<Vec<u32>>,
    rejected: Mutex<BTreeSet<String>>,
    calls: AtomicUsize,
    /// Who called last, by the number each has been given.
    last: AtomicUsize,
    /// How many deliveries were under way at once, at the most.
    flying: AtomicUsize,
    most: AtomicUsize,
}

#[derive(Clone, Debug)]
struct Taken {
    row: String,
    position: Option<String>,
    body: Vec<u8>,
    is_replay: bool,
    is_live: bool,
}

impl Sink for Log {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let log = &self.0;
        log.calls.fetch_add(1, Relaxed);
        log.last.store(self.1, Relaxed);
        let flying = Flying::of(log);
        tokio::task::yield_now().await;
        drop(flying);
        if log.is_down.load(Relaxed) {
            return Err("out of order".into());
        }
        let has = |rows: &Mutex<BTreeSet<String>>| {
            let rows = rows.lock().unwrap();
            batch.iter().any(|message| rows.contains(message.row()))
        };
        if has(&log.failing) {
            if let [alone] = batch {
                log.lone.lock().unwrap().push(alone.attempt());
            }
            return Err("indigestible".into());
        }
        if has(&log.rejected) {
            return Ok(vec![Verdict::Rejected("unheard of".into()); batch.len()]);
        }
        log.taken
            .send_modify(|taken| taken.extend(batch.iter().map(Taken::of)));
        Ok(vec![Verdict::Accepted; batch.len()])
    }
}

/// A delivery under way, until it is dropped, as by who is killed.
struct Flying<'a>(&'a Inner);

impl<'a> Flying<'a> {
    fn of(log: &'a Inner) -> Self {
        let flying = log.flying.fetch_add(1, Relaxed) + 1;
        log.most.fetch_max(flying, Relaxed);
        Self(log)
    }
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        self.0.flying.fetch_sub(1, Relaxed);
    }
}

impl Taken {
    fn of(message: &Message) -> Self {
        Self {
            row: message.row().to_owned(),
            position: message.position().map(ToOwned::to_owned),
            body: message.body().to_owned(),
            is_replay: message.is_replay(),
            is_live: message.is_live(),
        }
    }
}

impl Log {
    fn rows(&self) -> Vec<String> {
        let taken = self.0.taken.borrow();
        taken.iter().map(|taken| taken.row.clone()).collect()
    }

    fn distinct(&self) -> BTreeSet<String> {
        self.rows().into_iter().collect()
    }

    async fn has(&self, rows: usize) {
        let mut taken = self.0.taken.subscribe();
        let enough = taken.wait_for(|taken| {
            let rows_taken: BTreeSet<&str> = taken.iter().map(|taken| &*taken.row).collect();
            rows_taken.len() >= rows
        });
        let enough = tokio::time::timeout(patience(), enough).await;
        assert!(enough.is_ok(), "{} of {rows} rows", self.distinct().len());
    }
}

/// A rig with the ordered sink alone.
async fn rig() -> Rig {
    let mut rig = Rig::shared().await;
    rig.settings.amqp.clear();
    rig.component = rig.bare().labels([Label::sync()]);
    rig
}

async fn open(rig: &Rig, log: &Log, options: SinkOptions) -> Outbox {
    try_open(rig, log, options).await.unwrap()
}

async fn try_open(rig: &Rig, log: &Log, options: SinkOptions) -> toa_outbox::Result<Outbox> {
    let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
    builder
        .sink_with(SINK, ["*"], log.clone(), options)
        .open()
        .await
}

async fn write(pots: &Outbox, count: usize) {
    for _ in 0..count {
        pots.create(doc! { "material": "clay" }, Document::new())
            .await
            .unwrap();
    }
}

/// The ids in the order in which they were committed, as the server tells it, as long as it lives.
struct Commits {
    order: watch::Receiver<Vec<String>>,
    following: tokio::task::JoinHandle<()>,
}

impl Commits {
    async fn of(rig: &Rig) -> Self {
        let mut stream = rig.rows().watch().await.unwrap();
        let (tell, order) = watch::channel(Vec::new());
        let following = tokio::spawn(async move {
            while let Ok(Some(event)) = stream.try_next().await {
                if let Some(row) = event.full_document
                    && format!("{:?}", event.operation_type) == "Insert"
                {
                    tell.send_modify(|order| order.push(id(&row)));
                }
            }
        });
        Self { order, following }
    }

    async fn all(mut self, count: usize) -> Vec<String> {
        let all = self.order.wait_for(|order| order.len() >= count);
        let all = tokio::time::timeout(patience(), all).await;
        let order = all.expect("all commits").unwrap().clone();
        self.following.abort();
        order
    }
}

/// How often the log goes back, and by how much at the most; everything else is the next one each time.
fn jumps(log: &[String], order: &[String]) -> Vec<usize> {
    let place: HashMap<&String, usize> = order.iter().zip(0..).collect();
    let mut jumps = Vec::new();
    let mut next = 0;
    for row in log {
        let at = place[row];
        assert!(
            at <= next,
            "{} of {} rows were passed over",
            at - next,
            order.len()
        );
        if at < next {
            jumps.push(next - at);
        }
        next = at + 1;
    }
    assert_eq!(next, order.len(), "complete");
    jumps
}

fn cursors(rig: &Rig) -> Collection<Document> {
    rig.database.collection("outbox_sinks")
}

fn cursor_of(rig: &Rig) -> Document {
    let collection = rig.rows().name().to_owned();
    doc! { "_id": { "cursor": { "collection": collection, "sink": SINK } } }
}

async fn dead(rig: &Rig) -> Vec<Document> {
    let name = format!("{}_deliveries", rig.rows().name());
    let all: Collection<Document> = rig.database.collection(&name);
    let found = all.find(doc! { "state": "dead" });
    found.await.unwrap().try_collect().await.unwrap()
}

fn dead_row(dead: &Document) -> String {
    let id = dead.get_document("_id").unwrap().get("row").unwrap();
    self::id(&doc! { "_id": id })
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_in_the_order_of_their_commits_and_not_in_that_of_their_ids() {
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 1).await;
    log.has(1).await;
    // Its id is older than those that follow, and it commits after them.
    let insider = pots.clone();
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let (go, may_go) = tokio::sync::oneshot::channel::<()>();
    let holding = tokio::spawn(async move {
        let gates = Mutex::new(Some((ready, may_go)));
        insider
            .transaction(async move |tx| {
                tx.emit(toa_outbox::Event::created(doc! { "late": true }))
                    .await?;
                let gates = gates.lock().unwrap().take();
                if let Some((ready, may_go)) = gates {
                    ready.send(()).unwrap();
                    may_go.await.unwrap();
                }
                Ok(())
            })
            .await
            .unwrap();
    });
    is_ready.await.unwrap();
    write(&pots, 20).await;
    log.has(21).await;
    go.send(()).unwrap();
    holding.await.unwrap();
    write(&pots, 5).await;
    log.has(27).await;
    rig.settled().await;
    let taken = log.0.taken.borrow().clone();
    assert_eq!(taken.len(), 27, "each once");
    let late = taken
        .iter()
        .position(|taken| String::from_utf8_lossy(&taken.body).contains("late"));
    assert_eq!(late, Some(21));
    let mut ids = log.rows();
    ids.sort();
    assert_ne!(ids, log.rows(), "it is older by its id");
    let positions: Vec<_> = taken
        .iter()
        .map(|taken| taken.position.clone().unwrap())
        .collect();
    assert!(positions.is_sorted(), "{positions:?}");
    pots.shutdown().await;
}

/// One replica in a runtime of its own, that can be ended as a kill would.
struct Replica {
    runtime: Option<Runtime>,
    outbox: Outbox,
}

impl Replica {
    async fn start(
        uri: String,
        name: String,
        settings: toa_outbox::Settings,
        component: Component,
        log: Log,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let opening = runtime.spawn(async move {
            let client = mongodb::Client::with_uri_str(uri).await.unwrap();
            let builder = Outbox::builder(&client.database(&name), component, settings);
            let builder = builder.sink_with(SINK, ["*"], log, SinkOptions::ordered());
            builder.open().await.unwrap()
        });
        let outbox = opening.await.unwrap();
        Self {
            runtime: Some(runtime),
            outbox,
        }
    }

    /// Without a word to anybody.
    fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    async fn stop(mut self) {
        let outbox = self.outbox.clone();
        if let Some(runtime) = self.runtime.take() {
            runtime
                .spawn(async move { outbox.shutdown().await })
                .await
                .unwrap();
            runtime.shutdown_background();
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Rows of 16 writers whose transactions are held open for a random time.
async fn hold_and_write(rig: &Rig, count: usize) {
    let writers = (0..16).map(|writer| {
        let (database, rows, namespace) = (rig.database.clone(), rig.rows(), writer);
        async move {
            for _ in 0..count / 16 {
                let row = doc! {
                    "_id": bson::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes()),
                    "lane": rand::random_range(0..128),
                    "published": false,
                    "pending": 0_i64,
                    "event": { "origin": null, "state": { "_id": namespace }, "trailers": null, "input": null },
                };
                let mut session = database.client().start_session().await.unwrap();
                session.start_transaction().await.unwrap();
                rows.insert_one(row).session(&mut session).await.unwrap();
                // Time is the subject: transactions commit in another order than they began.
                let held = Duration::from_millis(rand::random_range(0..100));
                tokio::time::sleep(held).await;
                session.commit_transaction().await.unwrap();
            }
        }
    });
    join_all(writers).await;
}

async fn owner_epoch(rig: &Rig) -> i64 {
    let cursor = cursors(rig).find_one(cursor_of(rig)).await.unwrap();
    cursor.map_or(0, |cursor| cursor.get_i64("epoch").unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_in_the_order_of_the_commits_while_owners_are_killed_and_go() {
    let mut rig = rig().await;
    let count = if soak() { 20_000 } else { 2_000 };
    rig.settings.slot = None;
    rig.settings.beat = Duration::from_millis(300);
    let log = Log::default();
    let uri = crate::support::servers().await.mongo.uri();
    let name = rig.database.name().to_owned();
    let start = |number| {
        let (uri, name, log) = (uri.clone(), name.clone(), Log(log.0.clone(), number));
        Replica::start(uri, name, rig.settings.clone(), rig.component.clone(), log)
    };
    let mut replicas = HashMap::new();
    for number in 0..3 {
        replicas.insert(number, start(number).await);
    }
    let commits = Commits::of(&rig).await;
    let writing = hold_and_write(&rig, count);
    let (done, mut is_done) = watch::channel(false);
    let (mut kills, mut leaves) = (0, 0);
    let killing = async {
        let every = Duration::from_secs(if soak() { 5 } else { 2 });
        for number in 3.. {
            let over = tokio::time::timeout(every, is_done.wait_for(|&done| done)).await;
            if over.is_ok() {
                return;
            }
            // That which owns the sink, or did last.
            let Some(owner) = replicas.remove(&log.0.last.load(Relaxed)) else {
                continue;
            };
            match number % 3 {
                0 => {
                    owner.stop().await;
                    leaves += 1;
                }
                _ => {
                    owner.kill();
                    kills += 1;
                }
            }
            replicas.insert(number, start(number).await);
        }
    };
    let all = async {
        writing.await;
        log.has(count).await;
        done.send_replace(true);
    };
    futures::join!(all, killing);
    let order = commits.all(count).await;
    rig.settled().await;
    let jumps = jumps(&log.rows(), &order);
    println!(
        "{count} rows, {kills} kills, {leaves} leaves, {} owners, repeated {jumps:?}",
        owner_epoch(&rig).await
    );
    // Each by the batch that was on its way when its owner was killed, and not by more.
    assert!(jumps.len() <= kills, "{jumps:?} after {kills} kills");
    assert!(jumps.iter().all(|&rows| rows <= 128), "{jumps:?}");
    assert_eq!(log.0.most.load(Relaxed), 1, "one batch at a time");
    for replica in replicas.into_values() {
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_save_of_an_earlier_owner_changes_nothing() {
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 10).await;
    log.has(10).await;
    let last = log.rows().pop();
    eventually(PATIENCE, "all of it is saved", async || {
        let cursor = cursors(&rig).find_one(cursor_of(&rig)).await.unwrap();
        let row = cursor.and_then(|mut cursor| cursor.remove("row"));
        row.map(|row| id(&doc! { "_id": row })) == last
    })
    .await;
    // Another takes over, as far as the cursor knows.
    let update = doc! { "$inc": { "epoch": 1_i64 } };
    let of = cursor_of(&rig);
    let before = cursors(&rig)
        .find_one_and_update(of.clone(), update)
        .return_document(mongodb::options::ReturnDocument::After)
        .await
        .unwrap()
        .unwrap();
    write(&pots, 1).await;
    log.has(11).await;
    // Its save came too late, so it takes over anew, from where that one was, and delivers the row again.
    eventually(PATIENCE, "it is delivered again", async || {
        log.rows().len() == 12
    })
    .await;
    let rows = log.rows();
    assert_eq!(rows[10], rows[11]);
    eventually(PATIENCE, "it saves under an epoch of its own", async || {
        let cursor = cursors(&rig).find_one(of.clone()).await.unwrap().unwrap();
        let epoch = |cursor: &Document| cursor.get_i64("epoch").unwrap();
        epoch(&cursor) == epoch(&before) + 1 && cursor.get("token") != before.get("token")
    })
    .await;
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_beside_an_expiry_of_seconds_misses_nothing() {
    // Its server looks for what has expired every second.
    let set = ReplicaSet::start_with(1, &["--setParameter", "ttlMonitorSleepSecs=1"]).await;
    let amqp = crate::support::servers().await.rabbit.uri();
    let mut rig = Rig::new(&set.uri(), &amqp).await;
    let held = if soak() { 20_000 } else { 2_000 };
    rig.settings.retention = Duration::from_secs(5);
    let _checker = rig.consume("created").await;
    let before = rig.open().await;
    // Published by one who did not know the sink.
    let until =
        |left: i64| bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() + left);
    let minute = until(60_000);
    rig.seed(held, |row, _| {
        row.insert("published", true);
        row.insert("publishedAt", minute);
    })
    .await;
    let held: BTreeSet<String> = rig.ids(doc! {}).await.into_iter().collect();
    let log = Log::default();
    let commits = Commits::of(&rig).await;
    let writer = before.clone();
    let writing = tokio::spawn(async move {
        let mut written = 0;
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        while tokio::time::Instant::now() < until {
            write(&writer, 1).await;
            written += 1;
        }
        written
    });
    let more = held.len() as u64 + 20;
    eventually(PATIENCE, "some of those are published too", async || {
        rig.count(doc! { "published": true }).await > more
    })
    .await;
    // To expire in three seconds, long before all of it can be kept one by one.
    let soon = doc! { "$set": { "publishedAt": until(3000 - 5000) } };
    let which = doc! { "publishedAt": minute };
    rig.rows().update_many(which, soon).await.unwrap();
    let there: BTreeSet<String> = rig.ids(doc! {}).await.into_iter().collect();
    assert!(there.is_superset(&held), "nothing has expired yet");
    let pots = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone())
        .sink_with(SINK, ["*"], log.clone(), SinkOptions::ordered())
        .open()
        .await
        .unwrap();
    let written = writing.await.unwrap();
    let order = commits.all(written).await;
    let expected: BTreeSet<String> = there.into_iter().chain(order).collect();
    let is_whole = async || log.distinct().len() >= expected.len();
    let whole = tokio::time::timeout(PATIENCE * 2, eventually(PATIENCE * 3, "", is_whole)).await;
    let missed = expected.difference(&log.distinct()).count();
    let of_held = held.difference(&log.distinct()).count();
    assert!(
        whole.is_ok(),
        "{missed} of {} missed, {of_held} of those that were held",
        expected.len()
    );
    eventually(PATIENCE, "all of it expires", async || {
        rig.count(doc! {}).await == 0
    })
    .await;
    before.shutdown().await;
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_begins_now_is_given_what_is_committed_after_it() {
    let rig = rig().await;
    rig.seed(50, |_, _| {}).await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered().from_now()).await;
    write(&pots, 20).await;
    log.has(20).await;
    // And owes nothing of the others.
    rig.settled().await;
    assert_eq!(log.rows().len(), 20);
    pots.shutdown().await;
}

/// A good many rows with one that `bad` says, and an outage in the middle: just that row is dead.
async fn poison(bad: impl Fn(&Log) -> &Mutex<BTreeSet<String>>) -> (Rig, Log, Outbox, String) {
    let rig = rig().await;
    let count: i64 = if soak() { 10_000 } else { 2_000 };
    let log = Log::default();
    // In the stream.
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    let commits = Commits::of(&rig).await;
    let poisoned = uuid::Uuid::now_v7();
    bad(&log).lock().unwrap().insert(poisoned.to_string());
    rig.seed(count, |row, index| {
        if index == count / 3 {
            row.insert("_id", bson::Uuid::from_bytes(*poisoned.as_bytes()));
        }
    })
    .await;
    log.has(count as usize - 1).await;
    log.0.is_down.store(true, Relaxed);
    let calls = log.0.calls.load(Relaxed);
    rig.seed(count, |_, _| {}).await;
    // Seven halvings, five failures of the first alone, and one of its neighbour.
    eventually(patience(), "the outage is felt", async || {
        log.0.calls.load(Relaxed) > calls + 12
    })
    .await;
    log.0.is_down.store(false, Relaxed);
    log.has(2 * count as usize - 1).await;
    rig.settled().await;
    let mut order = commits.all(2 * count as usize).await;
    order.retain(|row| *row != poisoned.to_string());
    assert_eq!(log.rows(), order, "each once, and in order");
    let dead = dead(&rig).await;
    let rows: Vec<String> = dead.iter().map(dead_row).collect();
    assert_eq!(rows, [poisoned.to_string()]);
    assert!(dead[0].get_document("row").is_ok() && dead[0].get("next").is_none());
    (rig, log, pots, poisoned.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_rejected_is_parked_and_an_outage_parks_nothing() {
    let (rig, _, pots, _) = poison(|log| &log.0.rejected).await;
    assert_eq!(attempts(&dead(&rig).await[0]), 1);
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_fails_is_parked_once_its_neighbour_passes_and_is_replayed() {
    let (rig, log, pots, row) = poison(|log| &log.0.failing).await;
    let letter = dead(&rig).await.remove(0);
    assert_eq!(attempts(&letter), 5);
    // As an operator asks for it.
    log.0.failing.lock().unwrap().clear();
    let name = format!("{}_deliveries", rig.rows().name());
    let all: Collection<Document> = rig.database.collection(&name);
    let again = doc! { "$set": {
        "state": "retrying", "replay": true, "next": bson::DateTime::now(), "attempts": 0,
    } };
    all.update_one(doc! { "_id": letter.get("_id") }, again)
        .await
        .unwrap();
    eventually(PATIENCE, "it is replayed", async || {
        let taken = log.0.taken.borrow();
        taken
            .last()
            .is_some_and(|last| last.row == row && last.is_replay && last.position.is_none())
    })
    .await;
    eventually(PATIENCE, "it is forgotten", async || {
        all.count_documents(doc! {}).await.unwrap() == 0
    })
    .await;
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn how_often_a_row_has_failed_is_known_to_whoever_is_the_owner() {
    let rig = rig().await;
    let log = Log::default();
    let poisoned = uuid::Uuid::now_v7();
    log.0.failing.lock().unwrap().insert(poisoned.to_string());
    rig.seed(40, |row, index| {
        if index == 20 {
            row.insert("_id", bson::Uuid::from_bytes(*poisoned.as_bytes()));
        }
    })
    .await;
    for times in 1..5_i64 {
        let pots = open(&rig, &log, SinkOptions::ordered()).await;
        eventually(patience(), "it fails once more", async || {
            let cursor = cursors(&rig).find_one(cursor_of(&rig)).await.unwrap();
            let failed = cursor.and_then(|cursor| cursor.get_document("failed").cloned().ok());
            failed.is_some_and(|failed| failed.get_i64("times").is_ok_and(|now| now >= times))
        })
        .await;
        pots.shutdown().await;
    }
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    log.has(39).await;
    rig.settled().await;
    let dead = dead(&rig).await;
    assert_eq!((dead.len(), dead_row(&dead[0])), (1, poisoned.to_string()));
    assert_eq!(attempts(&dead[0]), 5);
    assert_eq!(*log.0.lone.lock().unwrap(), [1, 2, 3, 4, 5], "none anew");
    let cursor = cursors(&rig).find_one(cursor_of(&rig)).await.unwrap();
    assert!(cursor.unwrap().get("failed").is_none(), "it is forgotten");
    pots.shutdown().await;
}

fn attempts(dead: &Document) -> i64 {
    match dead.get("attempts") {
        Some(Bson::Int32(attempts)) => (*attempts).into(),
        Some(Bson::Int64(attempts)) => *attempts,
        other => panic!("{other:?} attempts"),
    }
}

/// What is still owed comes by id, then what is committed from then on.
async fn lost(token: impl Fn(&str) -> String) {
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 10).await;
    log.has(10).await;
    rig.settled().await;
    pots.shutdown().await;
    rig.seed(300, |_, _| {}).await;
    let cursor = cursors(&rig)
        .find_one(cursor_of(&rig))
        .await
        .unwrap()
        .unwrap();
    let data = cursor
        .get_document("token")
        .unwrap()
        .get_str("_data")
        .unwrap();
    let lost = doc! { "$set": { "token": { "_data": token(data) } } };
    cursors(&rig)
        .update_one(cursor_of(&rig), lost)
        .await
        .unwrap();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    log.has(310).await;
    write(&pots, 20).await;
    log.has(330).await;
    rig.settled().await;
    assert_eq!(
        log.rows().len(),
        330,
        "none was committed meanwhile, so each comes once"
    );
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_older_than_the_history_falls_back_on_what_is_owed() {
    // Its seconds are in the first digits.
    lost(|token| format!("8200000001{}", &token[10..])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_none_falls_back_on_what_is_owed() {
    lost(|_| "nonsense".into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_dropped_and_made_again_is_followed() {
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 10).await;
    log.has(10).await;
    rig.settled().await;
    rig.rows().drop().await.unwrap();
    rig.database
        .create_collection(rig.rows().name())
        .await
        .unwrap();
    write(&pots, 10).await;
    log.has(20).await;
    rig.settled().await;
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_of_the_other_mode_and_a_server_alone_are_refused() {
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    pots.shutdown().await;
    let Err(error) = try_open(&rig, &log, SinkOptions::new()).await else {
        panic!("taken for what it was not");
    };
    assert!(
        error.to_string().contains("order of the commits"),
        "{error}"
    );
    let alone = Mongo::standalone().await;
    let amqp = crate::support::servers().await.rabbit.uri();
    let mut rig = Rig::new(&alone.uri(), &amqp).await;
    rig.settings.amqp.clear();
    let Err(error) = try_open(&rig, &log, SinkOptions::ordered()).await else {
        panic!("opened without a change stream");
    };
    assert!(matches!(error, toa_outbox::Error::Unfit { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_has_the_whole_event_and_gives_nothing_up() {
    let rig = rig().await;
    let log = Log::default();
    log.0.is_down.store(true, Relaxed);
    let pots = open(&rig, &log, SinkOptions::audit()).await;
    write(&pots, 1).await;
    let tried = |more: usize| {
        let log = log.clone();
        let before = log.0.calls.load(Relaxed);
        async move {
            eventually(PATIENCE, "it is tried", async || {
                log.0.calls.load(Relaxed) >= before + more
            })
            .await;
        }
    };
    tried(2).await;
    rig.seed(1_200, |_, _| {}).await;
    tried(1).await;
    log.0.is_down.store(false, Relaxed);
    log.has(1_201).await;
    rig.settled().await;
    let taken = log.0.taken.borrow().clone();
    assert_eq!(taken.len(), 1_201);
    for taken in &taken {
        let event: serde_json::Value = serde_json::from_slice(&taken.body).unwrap();
        let keys: Vec<&String> = event.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["input", "origin", "state", "trailers"]);
    }
    assert!(dead(&rig).await.is_empty());
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_the_broker_each_has_its_share_whoever_is_first() {
    let rig = Rig::shared().await;
    let checker = rig.consume("created").await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 500).await;
    checker.wait_for(500, PATIENCE).await;
    log.has(500).await;
    rig.settled().await;
    assert_eq!((checker.count(), log.rows().len()), (500, 500));
    pots.shutdown().await;
}

/// Nobody is there, for as long as it says.
#[derive(Clone, Default)]
struct Gone(Arc<AtomicUsize>, Log);

impl Sink for Gone {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        match self.0.fetch_add(1, Relaxed) {
            0 | 1 => Err(Box::new(Unreachable::new("nobody home"))),
            _ => self.1.deliver(batch).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absence_halves_nothing() {
    let rig = rig().await;
    let gone = Gone::default();
    rig.seed(64, |_, _| {}).await;
    let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
    let pots = builder
        .sink_with(SINK, ["*"], gone.clone(), SinkOptions::ordered())
        .open()
        .await
        .unwrap();
    gone.1.has(64).await;
    rig.settled().await;
    // Two in vain, and hardly more than one for all.
    assert!(gone.0.load(Relaxed) <= 5, "{:?}", gone.0);
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_outbox_and_what_is_tried_again_is_not_new_and_the_rest_is() {
    let rig = rig().await;
    let log = Log::default();
    rig.seed(20, |_, _| {}).await;
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    log.has(20).await;
    write(&pots, 5).await;
    log.has(25).await;
    let calls = log.0.calls.load(Relaxed);
    log.0.is_down.store(true, Relaxed);
    write(&pots, 1).await;
    // The second begins after the first has failed.
    eventually(PATIENCE, "it fails", async || {
        log.0.calls.load(Relaxed) > calls + 1
    })
    .await;
    log.0.is_down.store(false, Relaxed);
    log.has(26).await;
    write(&pots, 1).await;
    log.has(27).await;
    rig.settled().await;
    let taken = log.0.taken.borrow().clone();
    // What was written while it began may come twice.
    let mut new: Vec<bool> = taken.iter().map(|taken| taken.is_live).collect();
    new.dedup();
    assert_eq!(new, [false, true, false, true]);
    pots.shutdown().await;
}

/// Takes a label at a time, and of one row fails the first.
#[derive(Clone, Default)]
struct Narrow(Arc<Mutex<Vec<(String, String)>>>, String);

impl Sink for Narrow {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let [message] = batch else {
            return Err("more than one".into());
        };
        if message.row() == self.1 && message.label() == "created" {
            return Err("indigestible".into());
        }
        let taken = (message.row().to_owned(), message.label().to_owned());
        self.0.lock().unwrap().push(taken);
        Ok(vec![Verdict::Accepted])
    }

    fn at_once(&self, _: &[Message]) -> usize {
        1
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_does_not_go_at_once_goes_in_parts_and_only_what_failed_of_it_is_parked() {
    let mut rig = rig().await;
    let labels = Label::system().into_iter().chain([Label::sync()]);
    rig.component = rig.bare().labels(labels);
    let ids: Vec<_> = (0..6).map(|_| uuid::Uuid::now_v7()).collect();
    rig.seed(6, |row, index| {
        let id = *ids[index as usize].as_bytes();
        row.insert("_id", bson::Uuid::from_bytes(id));
    })
    .await;
    let narrow = Narrow(Arc::default(), ids[2].to_string());
    let options = SinkOptions::ordered().policy(toa_outbox::Policy::backoff().attempts(1));
    let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
    let builder = builder.sink_with(SINK, ["*"], narrow.clone(), options);
    let pots = builder.open().await.unwrap();
    rig.settled().await;
    pots.shutdown().await;
    let both = |row: usize| [(row, "created"), (row, "sync")];
    let mut expected = [both(0), both(1)].concat();
    // The neighbour shows who is to blame, and waits for the rest of it.
    expected.extend([(3, "created"), (2, "sync"), (3, "sync")]);
    expected.extend([both(4), both(5)].concat());
    let expected = expected.into_iter();
    let expected = expected.map(|(row, label)| (ids[row].to_string(), label.to_owned()));
    assert_eq!(*narrow.0.lock().unwrap(), expected.collect::<Vec<_>>());
    let dead = dead(&rig).await;
    assert_eq!((dead.len(), dead_row(&dead[0])), (1, ids[2].to_string()));
}

/// Asks for a pause until it is told otherwise.
#[derive(Clone, Default)]
struct Closed(Arc<AtomicBool>, Log);

impl Sink for Closed {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        if self.0.load(Relaxed) {
            return self.1.deliver(batch).await;
        }
        let first = Ok(vec![Verdict::Accepted]);
        self.1
            .deliver(&batch[..1])
            .await
            .and(first)
            .map(|mut verdicts| {
                let paused = Verdict::Paused {
                    reason: "tea time".into(),
                    circuit: Some("tea".into()),
                    after: None,
                };
                verdicts.resize(batch.len(), paused);
                verdicts
            })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_everything_until_it_is_resumed_and_repeats_nothing() {
    let rig = rig().await;
    let closed = Closed::default();
    rig.seed(64, |_, _| {}).await;
    let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
    let pots = builder
        .sink_with(SINK, ["*"], closed.clone(), SinkOptions::ordered())
        .open()
        .await
        .unwrap();
    closed.1.has(1).await;
    let paused = doc! { "_id": { "sink": SINK } };
    eventually(PATIENCE, "it is written down", async || {
        let found = cursors(&rig).find_one(paused.clone()).await.unwrap();
        found.is_some_and(|found| found.get_document("paused").is_ok())
    })
    .await;
    write(&pots, 3).await;
    rig.settled_but(66).await;
    closed.0.store(true, Relaxed);
    assert_eq!(closed.1.rows().len(), 1);
    cursors(&rig).delete_one(paused).await.unwrap();
    closed.1.has(67).await;
    rig.settled().await;
    assert_eq!(closed.1.rows().len(), 67);
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cursor_of_a_silent_stream_is_saved_every_minute() {
    if !soak() {
        return;
    }
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 1).await;
    log.has(1).await;
    rig.settled().await;
    let token = async || {
        let cursor = cursors(&rig).find_one(cursor_of(&rig)).await.unwrap();
        cursor.unwrap().get("token").cloned()
    };
    let before = eventually(PATIENCE, "it is saved", async || token().await).await;
    eventually(PATIENCE * 3, "it is saved again", async || {
        token().await.is_some_and(|token| token != before)
    })
    .await;
    pots.shutdown().await;
}
