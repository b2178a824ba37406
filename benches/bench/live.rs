//! How soon what is committed reaches a consumer, beside the same by hand.
//!
//! Timed from the acknowledged commit, or by hand from the moment before the publication, to the consumer that reads the
//! queues of both sides. Two hundred a second in all, so that nothing waits for anything but its own way.

use std::{
    collections::HashMap,
    process::{Child, Command},
    time::{Duration, Instant},
};

use bson::{Document, RawDocumentBuf, oid::ObjectId};
use futures::StreamExt;
use hdrhistogram::Histogram;
use lapin::options::*;
use mongodb::Collection;
use toa_outbox::{Event, Outbox, Settings};
use tokio::sync::mpsc;

use crate::{
    Size, raw,
    report::{Aim, Figure},
    sidecar::Sidecar,
    stage::{self, Stage, Town, row, state},
    support::unique,
    write,
};

/// Ours, what it is compared with, and what else is shown.
const SIDES: usize = 3;

const EVERY: Duration = Duration::from_millis(5);

/// Rows before the clock starts: connections are open and code is warm by then.
pub const WARM: usize = 400;

pub type Arrivals = mpsc::UnboundedReceiver<(String, Instant)>;

/// The library: from the commit's return to the consumer, beside a publication to its consumer, one at a time. The latter
/// has machine and disk for itself, so what the same takes by hand after a commit is shown too.
pub async fn library(size: &Size) -> Vec<Figure> {
    let stage = Stage::new().await;
    let town = stage.town().await;
    let bare = unique("raw");
    stage.queue(&bare).await;
    let mut arrivals = arrivals(&stage, &[&town.exchange, &bare]).await;
    let pots = write::open(&stage, &town, Settings::default()).await;
    let (turns, mut timed) = (turns(size), Timed::new(size));
    let (channel, outbox, by_hand) = (stage.channel.clone(), pots.clone(), town.clone());
    // As a service would, on a thread of the runtime.
    let measuring = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(EVERY);
        for turn in 0..WARM + turns {
            ticks.tick().await;
            let side = turn % SIDES;
            let begun = match side {
                0 => {
                    commit(&outbox).await;
                    Instant::now()
                }
                _ => {
                    if side == 2 {
                        write::by_hand(&by_hand).await.unwrap();
                    }
                    let begun = Instant::now();
                    raw::one(&channel, &bare, &ObjectId::new().to_hex()).await;
                    begun
                }
            };
            // One at a time: what arrives is what was sent.
            let (_, arrived) = arrivals.recv().await.unwrap();
            if turn >= WARM {
                let took = arrived.saturating_duration_since(begun);
                timed.record(side, turn - WARM, turns, took);
            }
        }
        timed
    });
    let timed = measuring.await.unwrap();
    pots.shutdown().await;
    let by_hand = timed.whole(2);
    let note = format!(
        "published by hand right after the same commit: p50 {:.2} ms, p99 {:.2} ms",
        at(&by_hand, 0.5),
        at(&by_hand, 0.99)
    );
    vec![timed.figure("live", 0, 1).aim(Aim::AtMost(1.3)).note(note)]
}

/// The sidecar: from the commit's return to the consumer, beside a bare change stream that is published.
pub async fn sidecar(size: &Size) -> Vec<Figure> {
    let stage = Stage::new().await;
    let town = stage.town().await;
    let bare = unique("raw");
    stage.queue(&bare).await;
    let mut arrivals = arrivals(&stage, &[&town.exchange, &bare]).await;
    let raw_rows: Collection<Document> = town.database.collection(&bare);
    town.database.create_collection(&bare).await.unwrap();
    let relay = Relay::start(&stage, &town, &bare);
    let sidecar = Sidecar::start(&stage, &town, &[]);
    sidecar.owns().await;
    // Until the tail is open, the pump brings it.
    let sides = [town.rows(), raw_rows];
    for rows in &sides {
        insert(rows).await;
        arrivals.recv().await;
    }

    let (turns, mut timed) = (turns(size), Timed::new(size));
    let mut ticks = tokio::time::interval(EVERY);
    let (committed, mut commits) = mpsc::unbounded_channel();
    for turn in 0..WARM + turns {
        ticks.tick().await;
        let (rows, committed) = (sides[turn % 2].clone(), committed.clone());
        tokio::spawn(async move {
            let (id, at) = insert(&rows).await;
            let _ = committed.send((id, turn, at));
        });
    }
    drop(committed);
    let mut arrived = HashMap::new();
    while let Some((id, turn, at)) = commits.recv().await {
        while !arrived.contains_key(&id) {
            let (id, at) = arrivals.recv().await.unwrap();
            arrived.insert(id, at);
        }
        if turn >= WARM {
            // It may arrive before its writer is told that it is committed.
            let took = arrived[&id].saturating_duration_since(at);
            timed.record(turn % 2, turn - WARM, turns, took);
        }
    }
    drop(relay);
    vec![timed.figure("tail-live", 0, 1).aim(Aim::AtMost(1.2))]
}

pub fn turns(size: &Size) -> usize {
    size.pairs() * size.seconds(600, 2000) as usize
}

pub async fn commit(pots: &Outbox) {
    let written = pots.transaction(async move |tx| {
        let pot = state();
        tx.entities().insert_one(&pot).session(tx.session()).await?;
        tx.emit(Event::created(pot)).await
    });
    written.await.unwrap();
}

/// How long it took on both sides, in as many parts as there are to be ratios.
pub struct Timed {
    parts: Vec<[Histogram<u64>; SIDES]>,
}

impl Timed {
    pub fn new(size: &Size) -> Self {
        let parts = (0..size.pairs()).map(|_| [(); SIDES].map(|()| histogram()));
        Self {
            parts: parts.collect(),
        }
    }

    pub fn record(&mut self, side: usize, turn: usize, turns: usize, took: Duration) {
        let part = turn * self.parts.len() / turns;
        let micros = took.as_micros() as u64;
        self.parts[part][side].record(micros).expect("it grows");
    }

    /// One side beside another, of the medians of each part.
    pub fn figure(&self, name: &str, ours: usize, raw: usize) -> Figure {
        let pairs: Vec<(f64, f64)> = self
            .parts
            .iter()
            .map(|part| (at(&part[ours], 0.5), at(&part[raw], 0.5)))
            .collect();
        let [ours, raw] = [ours, raw].map(|side| at(&self.whole(side), 0.99));
        let p99 = format!("p99: ours {ours:.2} ms, raw {raw:.2} ms");
        Figure::of_pairs(name, "ms, p50", &pairs).note(p99)
    }

    fn whole(&self, side: usize) -> Histogram<u64> {
        let mut whole = histogram();
        for part in &self.parts {
            whole.add(&part[side]).expect("it grows");
        }
        whole
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits")
}

fn at(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1000.0
}

/// What arrives on these queues: which message, and when.
pub async fn arrivals(stage: &Stage, queues: &[&str]) -> Arrivals {
    let (arrived, arrivals) = mpsc::unbounded_channel();
    for queue in queues {
        let options = BasicConsumeOptions {
            no_ack: true,
            ..Default::default()
        };
        let consumed =
            stage
                .channel
                .basic_consume((*queue).into(), "".into(), options, Default::default());
        let mut consumer = consumed.await.unwrap();
        let arrived = arrived.clone();
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = consumer.next().await {
                let id = delivery
                    .properties
                    .message_id()
                    .as_ref()
                    .map(ToString::to_string);
                let _ = arrived.send((id.expect("an id"), Instant::now()));
            }
        });
    }
    arrivals
}

/// A change stream that is published, and nothing else: a process of its own, as a sidecar is.
struct Relay(Child);

/// What its settings are in.
const RELAY: &str = "BENCH_RELAY";

impl Relay {
    fn start(stage: &Stage, town: &Town, collection: &str) -> Self {
        let settings = [&town.uri, &stage.rabbit.uri(), collection].join(" ");
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self(command.env(RELAY, settings).spawn().unwrap())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Is that process, if this one is to be; it then lives until it is killed.
pub async fn relay() {
    let Ok(settings) = std::env::var(RELAY) else {
        return;
    };
    let settings: Vec<&str> = settings.split(' ').collect();
    let [mongodb, amqp, collection] = settings[..] else {
        panic!("{RELAY} is {settings:?}");
    };
    let client = mongodb::Client::with_uri_str(mongodb).await.unwrap();
    let database = client.default_database().unwrap();
    let (_connection, channel) = stage::connect(amqp).await;
    let stream = database.collection::<Document>(collection).watch().await;
    let mut stream = stream.unwrap().with_type::<RawDocumentBuf>();
    while let Some(Ok(event)) = stream.next().await {
        let row = event.get_document("fullDocument").unwrap();
        let id = row.get_binary("_id").unwrap();
        let id = uuid::Uuid::from_slice(id.bytes).unwrap();
        let event = row.get_document("event").unwrap();
        let state: Document = event.get_document("state").unwrap().try_into().unwrap();
        let body = serde_json::to_vec(&state).unwrap();
        let sent = raw::send(&channel, collection, &id.to_string(), &body).await;
        tokio::spawn(sent);
    }
}

async fn insert(rows: &Collection<Document>) -> (String, Instant) {
    let row = row();
    let id = row.get("_id").cloned().unwrap();
    rows.insert_one(row).await.unwrap();
    let at = Instant::now();
    let bson::Bson::Binary(id) = id else {
        unreachable!("a UUID")
    };
    (id.to_uuid().unwrap().to_string(), at)
}
