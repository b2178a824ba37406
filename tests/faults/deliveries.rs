//! Deliveries that fail by the thousand.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bson::{DateTime, Document, doc};
use futures::TryStreamExt;
use mongodb::Collection;
use toa_outbox::{
    BoxError, Builder, Component, Label, Message, Outbox, Policy, Sink, SinkOptions, Verdict,
};

use crate::{
    rig::{PATIENCE, Rig, soak},
    support::eventually,
};

struct Well;

impl Sink for Well {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        Ok(vec![Verdict::Accepted; batch.len()])
    }
}

struct Rejects;

impl Sink for Rejects {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        Ok(vec![
            Verdict::Rejected("not on the list".into());
            batch.len()
        ])
    }
}

fn deliveries(rig: &Rig) -> Collection<Document> {
    let name = format!("{}_deliveries", rig.rows().name());
    rig.database.collection(&name)
}

/// What is asked for each second, for as long as something waits for its next attempt.
#[tokio::test]
async fn what_is_not_due_yet_is_not_read() {
    let rig = Rig::shared().await;
    let with_sink = |builder: Builder| builder.sink("well", ["*"], Well);
    let pots = rig.quiet(with_sink).await;
    let tomorrow = DateTime::from_millis(DateTime::now().timestamp_millis() + 86_400_000);
    let count = if soak() { 500_000 } else { 20_000 };
    let later = |number: i32| {
        let id = doc! { "row": number, "route": "well/created" };
        doc! { "_id": id, "sink": "well", "state": "retrying", "attempts": 1, "next": tomorrow }
    };
    for first in (0..count).step_by(10_000) {
        let some = (first..first + 10_000).map(later);
        deliveries(&rig).insert_many(some).await.unwrap();
    }
    rig.database
        .run_command(doc! { "profile": 2 })
        .await
        .unwrap();
    let profile: Collection<Document> = rig.database.collection("system.profile");
    let asked = doc! { "ns": deliveries(&rig).namespace().to_string(), "op": "query" };
    eventually(PATIENCE, "it is looked for what is due", async || {
        profile.count_documents(asked.clone()).await.unwrap() >= 3
    })
    .await;
    rig.database
        .run_command(doc! { "profile": 0 })
        .await
        .unwrap();
    let queries: Vec<Document> = profile
        .find(asked)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    for query in &queries {
        assert_eq!(query.get_i32("docsExamined").unwrap(), 0, "{query}");
        assert!(query.get_i32("keysExamined").unwrap() <= 1, "{query}");
    }
    pots.shutdown().await;
}

/// Each is kept with its row, and no connection is missing to those who have nothing to do with it.
#[tokio::test]
async fn a_sink_that_rejects_everything_holds_up_nothing() {
    let mut rig = Rig::shared().await;
    rig.settings.interval = Duration::from_millis(200);
    let created = rig.consume("created").await;
    let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
    let options = SinkOptions::new().policy(Policy::backoff().keep(Duration::from_secs(86_400)));
    let pots = builder
        .sink_with("no", ["*.created"], Rejects, options)
        .open()
        .await
        .unwrap();
    let count = if soak() { 20_000 } else { 2000 };
    rig.seed(count, |_, _| {}).await;
    pots.nudge();
    created.wait_for(count as usize, PATIENCE * 2).await;
    eventually(PATIENCE * 2, "every row is marked", async || {
        rig.count(doc! { "published": false }).await == 0
    })
    .await;
    let dead = doc! { "state": "dead", "attempts": 1, "row.event": { "$exists": true }, "expires": { "$type": "date" } };
    assert_eq!(
        deliveries(&rig).count_documents(dead).await.unwrap(),
        count as u64
    );
    let unfinished = doc! { "next": { "$exists": true } };
    eventually(PATIENCE, "each is finished", async || {
        deliveries(&rig)
            .count_documents(unfinished.clone())
            .await
            .unwrap()
            == 0
    })
    .await;
    assert!(created.duplicates().is_empty());
    pots.shutdown().await;
}

/// The labels of a row come one after the other, and each has its whole time.
#[tokio::test]
async fn a_handler_that_takes_long_for_each_label_of_a_row_handles_none_twice() {
    let mut rig = Rig::shared().await;
    rig.settings.sink_timeout = Duration::from_secs(1);
    let namespace = rig.namespace().to_owned();
    rig.component =
        Component::new(namespace, "pots").labels(["first", "second", "third"].map(Label::new));
    let handled: Arc<Mutex<BTreeMap<(String, String), u32>>> = Arc::default();
    let remembers = handled.clone();
    let slow = move |message: Message| {
        let handled = remembers.clone();
        async move {
            let key = (message.row().to_owned(), message.label().to_owned());
            *handled.lock().unwrap().entry(key).or_default() += 1;
            // It is about time.
            tokio::time::sleep(Duration::from_millis(600)).await;
            Ok(())
        }
    };
    let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
    let pots = builder.consume("slow", "*", slow).open().await.unwrap();
    rig.seed(20, |_, _| {}).await;
    pots.nudge();
    eventually(PATIENCE, "every row is marked", async || {
        rig.count(doc! { "published": false }).await == 0
    })
    .await;
    let handled = handled.lock().unwrap().clone();
    assert_eq!(handled.len(), 60);
    assert!(handled.values().all(|times| *times == 1), "{handled:?}");
    pots.shutdown().await;
}

/// Takes what it is given, and remembers how much that was.
#[derive(Clone, Default)]
struct Counts(Arc<AtomicUsize>);

impl Sink for Counts {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        self.0.fetch_add(batch.len(), Relaxed);
        Ok(vec![Verdict::Accepted; batch.len()])
    }
}

/// The failure is known, and its row owes the route by its own name still: whoever noted it died before the mark, or the mark
/// is late. It was not taken.
#[tokio::test]
async fn one_that_died_between_a_failure_and_its_mark_loses_nothing() {
    let rig = Rig::shared().await;
    let sink = Counts::default();
    let pots = rig
        .quiet(|builder| builder.sink("shop", ["*"], sink.clone()))
        .await;
    // Nothing of the one is done, and of the other all the rest is.
    rig.seed(2, |row, index| {
        if index == 1 {
            row.extend(doc! { "outstanding": ["shop/created"], "partial": true });
        }
    })
    .await;
    let rows: Vec<Document> = rig
        .rows()
        .find(doc! {})
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let failed = rows.iter().map(|row| {
        let id = doc! { "row": row.get("_id").cloned(), "route": "shop/created" };
        doc! { "_id": id, "sink": "shop", "state": "retrying", "attempts": 1, "next": DateTime::now() }
    });
    deliveries(&rig).insert_many(failed).await.unwrap();
    let tried = doc! { "claim": { "$exists": false }, "next": { "$lte": DateTime::now() } };
    eventually(PATIENCE, "they are looked at", async || {
        deliveries(&rig)
            .count_documents(tried.clone())
            .await
            .unwrap()
            == 0
    })
    .await;
    pots.nudge();
    eventually(PATIENCE, "both are delivered", async || {
        sink.0.load(Relaxed) == 2
    })
    .await;
    rig.settled().await;
    eventually(PATIENCE, "no failure is known any more", async || {
        deliveries(&rig).count_documents(doc! {}).await.unwrap() == 0
    })
    .await;
    pots.shutdown().await;
}

/// What came for a consumer since it is back is owed to it, though a replica is still at what it was owed before.
#[tokio::test]
async fn a_consumer_that_comes_back_while_it_is_given_up_keeps_what_is_left() {
    let mut rig = Rig::shared().await;
    rig.settings.interval = Duration::from_millis(200);
    rig.seed(3000, |row, _| {
        row.extend(doc! { "outstanding": ["billing/created"], "partial": true });
    })
    .await;
    let sinks: Collection<Document> = rig.database.collection("outbox_sinks");
    let long_ago = DateTime::from_millis(0);
    let leaving = |sink: &str| {
        let route = format!("{sink}/created");
        doc! {
            "_id": { "collection": rig.rows().name(), "sink": sink },
            "kind": "consumer", "mode": "lanes", "since": long_ago, "routes": [],
            "leaving": [{ "route": route, "at": long_ago }],
        }
    };
    // The second is looked at when the first is done.
    let (first, second) = (leaving("billing"), leaving("mailing"));
    sinks.insert_many([&first, &second]).await.unwrap();
    let pots = rig.open().await;
    eventually(PATIENCE, "it is being given up", async || {
        deliveries(&rig).count_documents(doc! {}).await.unwrap() > 0
    })
    .await;
    let served = doc! { "$set": {
        "leaving": [],
        "routes": [{ "route": "billing/created", "at": DateTime::now() }],
    } };
    let id = |sink: &Document| doc! { "_id": sink.get("_id").cloned() };
    sinks.update_one(id(&first), served).await.unwrap();
    eventually(PATIENCE, "the next was looked at", async || {
        sinks.count_documents(id(&second)).await.unwrap() == 0
    })
    .await;
    let abandoned = deliveries(&rig).count_documents(doc! {}).await.unwrap();
    let owed = rig.count(doc! { "outstanding": "billing/created" }).await;
    assert!(
        abandoned <= 1000 && owed == 3000 - abandoned,
        "{abandoned} {owed}"
    );
    pots.shutdown().await;
}
