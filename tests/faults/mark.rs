//! CASES 31 and 32, and the whole of it under load: nothing lost, nothing marked that did not leave.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bson::{Document, doc};
use futures::future::join_all;
use toa_outbox::{Error, Event};

use crate::{
    rig::{PATIENCE, Rig, memory, soak},
    support::{Checker, Rabbit, ReplicaSet, eventually, servers},
};

/// CASE 31: rows left by a crash, and a broker that restarts under them.
#[tokio::test]
async fn no_row_is_marked_that_the_queue_does_not_hold() {
    let rabbit = Rabbit::start().await;
    let rig = Rig::new(&servers().await.mongo.uri(), &rabbit.uri()).await;
    let queue = Checker::queue(&rabbit.uri(), &rig.exchange("created")).await;
    let rows = 10_000;
    rig.seed(rows, |_, _| {}).await;
    let pots = rig.open().await;
    for restart in 1..=5 {
        let enough = rows * restart / 8;
        eventually(PATIENCE, "some of them are marked", async || {
            rig.count(doc! { "published": true }).await >= enough as u64
        })
        .await;
        rabbit.stop().await;
        rabbit.start_again().await;
    }
    rig.settled().await;
    pots.shutdown().await;
    queue.drain(&rabbit.uri()).await;
    let held: HashSet<String> = queue
        .received()
        .into_iter()
        .map(|message| message.message_id)
        .collect();
    assert_eq!(held, rig.ids(doc! { "published": true }).await);
    assert_eq!(held.len(), rows as usize);
    println!(
        "{rows} rows, 5 restarts: {} duplicates",
        queue.count() - queue.distinct()
    );
}

/// 10 000 transactions from 32 tasks, one in ten rolled back, while the broker restarts five times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_every_committed_row_arrives_and_no_other() {
    let rabbit = Rabbit::start().await;
    let rig = Rig::new(&servers().await.mongo.uri(), &rabbit.uri()).await;
    let queue = Checker::queue(&rabbit.uri(), &rig.exchange("created")).await;
    let pots = rig.open().await;
    let (tasks, each) = (32, if soak() { 10_000 / 32 + 1 } else { 100 });
    let (done, before) = (Arc::new(AtomicUsize::new(0)), memory());
    let writing = (0..tasks).map(|task| {
        let (pots, done) = (pots.clone(), done.clone());
        tokio::spawn(async move {
            for index in 0..each {
                let id = task * each + index;
                let rolled_back = index % 10 == 9;
                let outcome = pots
                    .transaction(async move |tx| {
                        let pot = doc! { "_id": id, "_version": 1 };
                        tx.entities().insert_one(&pot).session(tx.session()).await?;
                        tx.emit(Event::created(pot)).await?;
                        if rolled_back {
                            Err(Error::refused("staged"))
                        } else {
                            Ok(())
                        }
                    })
                    .await;
                assert_eq!(outcome.is_err(), rolled_back, "{outcome:?}");
                done.fetch_add(1, Relaxed);
            }
        })
    });
    let writing = tokio::spawn(join_all(writing));
    for restart in 1..=5 {
        eventually(
            Duration::from_secs(120),
            "some of them are written",
            async || done.load(Relaxed) >= tasks as usize * each as usize * restart / 6,
        )
        .await;
        rabbit.stop().await;
        rabbit.start_again().await;
    }
    for task in writing.await.unwrap() {
        task.unwrap();
    }
    rig.settled().await;
    let after = memory();
    pots.shutdown().await;
    queue.drain(&rabbit.uri()).await;
    let held: HashSet<String> = queue
        .received()
        .into_iter()
        .map(|message| message.message_id)
        .collect();
    assert_eq!(held, rig.ids(doc! {}).await, "the rows are what committed");
    assert_eq!(held.len() as i32, tasks * (each - each / 10));
    println!(
        "{} committed, {} duplicates, memory {before} -> {after} KiB",
        held.len(),
        queue.count() - queue.distinct(),
    );
}

/// Law 4: a service that is restarted in good order under load, again and again, repeats nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_in_good_order_repeat_nothing() {
    let mut rig = Rig::shared().await;
    // The gap has to be longer than anything this machine may take between a write and its mark.
    rig.settings.interval = Duration::from_secs(1);
    let created = rig.consume("created").await;
    let (restarts, tasks, each) = (5, 16, 25);
    for restart in 0..restarts {
        let pots = rig.open().await;
        let writing = (0..tasks).map(|task| {
            let pots = pots.clone();
            tokio::spawn(async move {
                for index in 0..each {
                    let id = (restart * tasks + task) * each + index;
                    pots.create(doc! { "_id": id }, doc! {}).await.unwrap();
                }
            })
        });
        for task in join_all(writing).await {
            task.unwrap();
        }
        // Under load: what was written last is still on its way.
        assert_eq!(pots.shutdown().await, Default::default());
    }
    let all = (restarts * tasks * each) as usize;
    created.wait_for(all, PATIENCE).await;
    assert_eq!(rig.count(doc! { "published": true }).await, all as u64);
    assert_eq!(created.count(), all);
}

/// CASE 32: applied, in every direction.
#[tokio::test]
async fn a_changed_retention_is_applied() {
    let mut rig = Rig::shared().await;
    for seconds in [86_400, 60, 0, 0, 3_600, 3_600] {
        rig.settings.retention = Duration::from_secs(seconds);
        rig.open().await.shutdown().await;
        let expiry = rig.expiry().await;
        assert_eq!(
            expiry,
            (seconds > 0).then_some(Duration::from_secs(seconds))
        );
    }
}

/// A row of another writer that is so large that its mark does not fit any more is no other row's problem.
#[tokio::test]
async fn a_row_that_cannot_be_marked_delays_no_other_mark() {
    let rig = Rig::shared().await;
    let created = rig.consume("created").await;
    let limit = 16 * 1024 * 1024;
    rig.seed(21, |row, index| {
        if index == 7 {
            let event = row.get_document_mut("event").unwrap();
            event.insert("input", "");
            let room = limit - row.to_vec().unwrap().len();
            let event = row.get_document_mut("event").unwrap();
            event.insert("input", "x".repeat(room));
        }
    })
    .await;
    let pots = rig.open().await;
    created.wait_for(21, PATIENCE).await;
    eventually(PATIENCE, "the others are marked", async || {
        rig.count(doc! { "published": true }).await == 20
    })
    .await;
    assert_eq!(pots.pass().await.unwrap().found, 0);
    pots.shutdown().await;
    assert_eq!(created.count(), 21);
}

/// An index somebody made by hand under a name of their own is the same index.
#[tokio::test]
async fn a_retention_index_of_another_name_is_changed_too() {
    let mut rig = Rig::shared().await;
    let by_hand = doc! {
        "createIndexes": rig.rows().name(),
        "indexes": [{ "key": { "publishedAt": 1 }, "name": "mine", "expireAfterSeconds": 5 }],
    };
    rig.database.run_command(by_hand).await.unwrap();
    for seconds in [60, 0] {
        rig.settings.retention = Duration::from_secs(seconds);
        rig.open().await.shutdown().await;
        assert_eq!(
            rig.expiry().await,
            (seconds > 0).then_some(Duration::from_secs(seconds))
        );
    }
}

/// CASE 32: without the right to, the start succeeds.
#[tokio::test]
async fn who_may_not_change_the_retention_starts_all_the_same() {
    let set = ReplicaSet::start_with(1, &[]).await;
    let mut rig = Rig::new(&set.uri(), &servers().await.rabbit.uri()).await;
    rig.open().await.shutdown().await;
    set.fail_command(doc! {
        "mode": "alwaysOn",
        "data": { "failCommands": ["create", "createIndexes", "collMod", "dropIndexes"], "errorCode": 13 },
    })
    .await;
    for seconds in [60, 0] {
        rig.settings.retention = Duration::from_secs(seconds);
        let created = rig.consume("created").await;
        let pots = rig.open().await;
        pots.create(Document::new(), Document::new()).await.unwrap();
        created.wait_for(1, PATIENCE).await;
        pots.shutdown().await;
    }
    set.fail_off().await;
    assert_eq!(rig.expiry().await, Some(Duration::from_secs(86_400)));
}
