//! In which order, from whom, and who goes on.

use std::{
    collections::HashMap,
    sync::{Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use bson::{Document, doc};
use futures::future::join_all;
use toa_outbox::{Component, Outbox, SinkOptions};
use tokio::{runtime::Runtime, sync::watch};

use super::{Log, SINK, cursor_of, cursors, open, patience, rig, write};
use crate::{
    rig::{PATIENCE, Rig, id, soak},
    support::{Commits, eventually, jumps},
};

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
    let commits = Commits::of(&rig.rows()).await;
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
    let order = commits.all(count, patience()).await;
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
