//! CASES 1–3 and 5: nothing leaves before the commit, and nothing is lost or left hanging after it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bson::{Document, doc};
use futures::{FutureExt, future::join_all};
use toa_outbox::{Error, Event, Outbox};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::{
    rig::{PATIENCE, Rig},
    support::{ReplicaSet, eventually, servers},
};

/// A set whose commands are made to fail, for one test at a time.
pub async fn failing() -> (MutexGuard<'static, ()>, &'static ReplicaSet, Rig) {
    static SET: OnceCell<ReplicaSet> = OnceCell::const_new();
    static ALONE: Mutex<()> = Mutex::const_new(());

    let alone = ALONE.lock().await;
    let set = SET.get_or_init(|| ReplicaSet::start(1)).await;
    let rig = Rig::new(&set.uri(), &servers().await.rabbit.uri()).await;
    (alone, set, rig)
}

async fn brew(pots: &Outbox, id: i32) -> toa_outbox::Result<()> {
    pots.transaction(async move |tx| {
        let pot = doc! { "_id": id, "_version": 1 };
        tx.entities().insert_one(&pot).session(tx.session()).await?;
        tx.emit(Event::created(pot)).await
    })
    .await
}

#[tokio::test]
async fn a_committed_row_reaches_a_consumer_and_is_marked() {
    let rig = Rig::shared().await;
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    let pot = pots
        .create(doc! { "material": "glass" }, doc! { "by": "me" })
        .await
        .unwrap();
    created.wait_for(1, PATIENCE).await;
    let delivery = &created.received()[0];
    let body: serde_json::Value = serde_json::from_slice(&delivery.body).unwrap();
    assert_eq!(body["material"], "glass");
    assert_eq!(body["_id"], pot.get_object_id("_id").unwrap().to_hex());
    rig.settled().await;
    assert_eq!(pots.shutdown().await, Default::default());
    assert_eq!(created.count(), 1);
}

/// CASE 1, the reply of the commit is lost once.
#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_repeated_alone() {
    let (_alone, set, rig) = failing().await;
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    set.fail_command(doc! {
        "mode": { "times": 1 },
        "data": { "failCommands": ["commitTransaction"], "writeConcernError": { "code": 91, "errmsg": "staged" } },
    })
    .await;
    let mut runs = 0;
    let brewed = pots
        .transaction(async |tx| {
            runs += 1;
            let pot = doc! { "_id": 1, "_version": 1 };
            tx.entities().insert_one(&pot).session(tx.session()).await?;
            tx.emit(Event::created(pot)).await
        })
        .await;
    set.fail_off().await;
    brewed.unwrap();
    assert_eq!(runs, 1, "only the commit is repeated");
    created.wait_for(1, PATIENCE).await;
    rig.settled().await;
    assert_eq!(pots.entities().count_documents(doc! {}).await.unwrap(), 1);
    assert_eq!(rig.count(doc! {}).await, 1);
    pots.shutdown().await;
    assert_eq!(created.count(), 1);
}

/// CASE 1, the reply never comes.
#[tokio::test]
async fn a_commit_that_is_never_answered_is_an_error_in_bounded_time() {
    let (_alone, set, mut rig) = failing().await;
    rig.settings.deadline = Duration::from_secs(2);
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    set.fail_command(doc! {
        "mode": "alwaysOn",
        "data": { "failCommands": ["commitTransaction"], "writeConcernError": { "code": 91, "errmsg": "staged" } },
    })
    .await;
    let begun = Instant::now();
    let outcome = brew(&pots, 1).await;
    set.fail_off().await;
    assert!(
        matches!(outcome, Err(Error::OutcomeUnknown { .. })),
        "{outcome:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(30));
    // It had been applied all along, so the pump publishes it, once.
    created.wait_for(1, PATIENCE).await;
    rig.settled().await;
    pots.shutdown().await;
    assert_eq!(created.count(), 1);
}

/// A body that meets a transient error is repeated, and its row keeps its id.
#[tokio::test]
async fn a_repeated_body_keeps_the_id_of_its_row() {
    let (_alone, set, rig) = failing().await;
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    set.fail_command(doc! {
        "mode": { "times": 1 },
        "data": { "failCommands": ["commitTransaction"], "errorCode": 112, "errorLabels": ["TransientTransactionError"] },
    })
    .await;
    let mut runs = 0;
    pots.transaction(async |tx| {
        runs += 1;
        tx.emit(Event::created(doc! { "run": runs })).await
    })
    .await
    .unwrap();
    set.fail_off().await;
    assert_eq!(runs, 2);
    created.wait_for(1, PATIENCE).await;
    let body: serde_json::Value = serde_json::from_slice(&created.received()[0].body).unwrap();
    assert_eq!(
        body["run"], 2,
        "the event is that of the run that committed"
    );
    rig.settled().await;
    assert_eq!(rig.count(doc! {}).await, 1);
}

/// CASE 2: aborted, dropped or panicking, a body publishes nothing and leaves nothing in memory.
#[tokio::test]
async fn nothing_leaves_of_a_transaction_that_did_not_commit() {
    let rig = Rig::shared().await;
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    let aborted = pots
        .transaction(async |tx| {
            tx.emit(Event::created(doc! { "_id": "aborted" })).await?;
            Err::<(), _>(Error::refused("the kettle is cold"))
        })
        .await;
    assert!(matches!(aborted, Err(Error::Refused(_))));

    let panicked = pots.transaction(async |tx| {
        tx.emit(Event::created(doc! { "_id": "panicked" })).await?;
        if created.count() == 0 {
            panic!("staged");
        }
        Ok(())
    });
    assert!(
        std::panic::AssertUnwindSafe(panicked)
            .catch_unwind()
            .await
            .is_err()
    );

    let (inside, mut entered) = tokio::sync::mpsc::channel::<()>(1);
    let dropped = tokio::spawn({
        let pots = pots.clone();
        async move {
            pots.transaction(async move |tx| {
                tx.emit(Event::created(doc! { "_id": "dropped" })).await?;
                inside.send(()).await.unwrap();
                std::future::pending::<toa_outbox::Result<()>>().await
            })
            .await
        }
    });
    entered.recv().await.unwrap();
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());

    // Whatever were to arrive of them would have arrived before this one.
    brew(&pots, 1).await.unwrap();
    created.wait_for(1, PATIENCE).await;
    rig.settled().await;
    assert_eq!(rig.count(doc! {}).await, 1);
    assert_eq!(pots.shutdown().await, Default::default());
    assert_eq!(created.count(), 1);
}

/// CASE 3.
#[tokio::test]
async fn after_an_error_in_a_transaction_nothing_hangs() {
    let (_alone, set, rig) = failing().await;
    let pots = rig.open().await;
    set.fail_command(doc! {
        "mode": "alwaysOn",
        "data": { "failCommands": ["insert"], "errorCode": 2, "namespace": rig.rows().namespace().to_string() },
    })
    .await;
    for id in 0..100 {
        let outcome = brew(&pots, id).await;
        assert!(matches!(outcome, Err(Error::Store { .. })), "{outcome:?}");
        let read = pots.entities().find_one(doc! { "_id": id });
        let read = tokio::time::timeout(Duration::from_secs(2), async { read.await }).await;
        assert_eq!(read.expect("a plain read answers at once").unwrap(), None);
    }
    set.fail_off().await;
    let client = set.client().await;
    eventually(
        Duration::from_secs(2),
        "no transaction is open",
        async || {
            let status = client
                .database("admin")
                .run_command(doc! { "serverStatus": 1 })
                .await
                .unwrap();
            let open: &Document = status.get_document("transactions").unwrap();
            open.get_i64("currentOpen").unwrap() == 0
        },
    )
    .await;
}

/// CASE 5.
#[tokio::test]
async fn first_transactions_on_an_empty_database_race_with_the_relay_that_creates_it() {
    let rig = Arc::new(Rig::shared().await);
    let created = rig.consume("created").await;
    let tasks = (0..20).map(|id| {
        let rig = rig.clone();
        tokio::spawn(async move {
            let pots = rig.open().await;
            brew(&pots, id).await.unwrap();
            pots
        })
    });
    let outboxes = join_all(tasks).await;
    created.wait_for(20, PATIENCE).await;
    rig.settled().await;
    assert_eq!(rig.count(doc! {}).await, 20);
    let indexes = rig.rows().list_index_names().await.unwrap();
    assert_eq!(indexes.len(), 3, "with that of _id: {indexes:?}");
    for outbox in outboxes {
        outbox.unwrap().shutdown().await;
    }
}
