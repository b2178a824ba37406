//! A row that is to blame, and one that is not.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
};

use bson::{Bson, Document, doc};
use mongodb::Collection;
use toa_outbox::{BoxError, Label, Message, Outbox, Sink, SinkOptions, Verdict};

use super::{Log, SINK, cursor_of, cursors, dead, dead_row, open, patience, rig};
use crate::{
    rig::{PATIENCE, Rig, soak},
    support::{Commits, eventually},
};

/// A good many rows with one that `bad` says, and an outage in the middle: just that row is dead.
async fn poison(bad: impl Fn(&Log) -> &Mutex<BTreeSet<String>>) -> (Rig, Log, Outbox, String) {
    let rig = rig().await;
    let count: i64 = if soak() { 10_000 } else { 2_000 };
    let log = Log::default();
    // In the stream.
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    let commits = Commits::of(&rig.rows()).await;
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
    let mut order = commits.all(2 * count as usize, patience()).await;
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
