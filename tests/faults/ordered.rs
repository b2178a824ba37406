//! Sinks to which the order of the commits is kept: while owners die, rows expire, destinations fail, and history is lost.

mod destination;
mod history;
mod modes;
mod order;
mod origin;
mod poison;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::Collection;
use toa_outbox::{BoxError, Label, Message, Outbox, Sink, SinkOptions, Verdict};
use tokio::sync::watch;

use crate::rig::{PATIENCE, Rig, id, soak};

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
