//! A destination that is away, and one that is closed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use bson::doc;
use toa_outbox::{BoxError, Message, Outbox, Sink, SinkOptions, Unreachable, Verdict};

use super::{Log, SINK, cursors, open, rig, write};
use crate::{rig::PATIENCE, support::eventually};

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
