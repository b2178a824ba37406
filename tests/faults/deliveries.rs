//! Deliveries that fail by the thousand.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
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

/// It is noted before its row is marked, and the mark may take longer than it takes until it is due.
#[tokio::test]
async fn what_is_due_before_its_row_knows_is_not_taken_for_done() {
    let rig = Rig::shared().await;
    let with_sink = |builder: Builder| builder.sink("well", ["*.created"], Well);
    let pots = rig.quiet(with_sink).await;
    let tomorrow = DateTime::now().timestamp_millis() + 86_400_000;
    // Nobody delivers it yet.
    rig.seed(1, |row, _| drop(row.insert("pending", tomorrow)))
        .await;
    let row = rig.rows().find_one(doc! {}).await.unwrap().unwrap();
    let row = row.get("_id").cloned();
    let id = doc! { "row": row, "route": "well/created" };
    let noted = DateTime::now();
    let failed = doc! {
        "_id": &id, "sink": "well", "state": "retrying", "attempts": 1, "first": noted, "next": noted,
        "error": "not yet",
    };
    let all = deliveries(&rig);
    all.insert_one(failed).await.unwrap();
    let known = async || all.find_one(doc! { "_id": &id }).await.unwrap();
    eventually(PATIENCE, "it is looked at", async || {
        known().await.is_none_or(|known| {
            known.get("claim").is_none() && known.get_datetime("next").ok() != Some(&noted)
        })
    })
    .await;
    let left = known().await.expect("it is still known");
    assert_eq!(left.get_i32("attempts").unwrap(), 1);
    assert_eq!(
        rig.count(doc! { "published": false }).await,
        1,
        "it is owed"
    );
    let now = doc! { "$set": { "pending": noted.timestamp_millis() } };
    rig.rows().update_one(doc! {}, now).await.unwrap();
    pots.pass().await.unwrap();
    eventually(PATIENCE, "it is taken, and forgotten", async || {
        rig.count(doc! { "published": true }).await == 1 && known().await.is_none()
    })
    .await;
    pots.shutdown().await;
}
