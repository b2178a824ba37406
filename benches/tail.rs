//! How soon a row of a foreign writer reaches a consumer, beside the same by hand.
//!
//! Both sides run at once and take turns row by row, 200 rows a second in all, so that noise of the machine falls on
//! both alike. Ours: the sidecar as a process, with its defaults. Raw: a change stream on a collection of its own, and
//! whatever it brings published by the same client, by nobody who marks or keeps account of anything. Timed from the
//! acknowledged commit to the consumer that reads both queues.
//!
//! `SECONDS` changes the length of a run.

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bson::{Document, RawDocumentBuf, doc, oid::ObjectId};
use futures::StreamExt;
use hdrhistogram::Histogram;
use lapin::{BasicProperties, Channel, options::*, types::FieldTable};
use mongodb::{Collection, options::WriteConcern};
use support::{Rabbit, ReplicaSet, unique};
use tokio::sync::mpsc;

const RATE: f64 = 200.0;

/// Rows after which the clock starts: connections are open and code is warm by then.
const WARM: usize = 200;

#[tokio::main]
async fn main() {
    let seconds: usize = std::env::var("SECONDS").map_or(20, |text| text.parse().expect("SECONDS"));
    let (mongo, rabbit) = tokio::join!(ReplicaSet::start(1), Rabbit::start());
    let pots = unique("tea");
    let name = unique("bench");
    let database = mongo.client().await.database(&name);
    let (ours, raw) = (format!("{pots}_outbox"), format!("{pots}_raw"));
    for collection in [&ours, &raw] {
        database.create_collection(collection).await.unwrap();
    }
    let (namespace, entity) = pots.split_once('_').unwrap();
    let exchange = format!("{namespace}.{entity}.created");
    let connection = lapin::Connection::connect(&rabbit.uri(), Default::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(Default::default()).await.unwrap();
    let arrivals = consume(&channel, &[&exchange, &raw]).await;
    let stream = database.collection::<Document>(&raw).watch().await.unwrap();
    tokio::spawn(relay(stream.with_type(), channel.clone(), raw.clone()));
    let _sidecar = sidecar(
        &mongo.uri().replace("/?", &format!("/{name}?")),
        &rabbit.uri(),
    );
    let rows = [database.collection(&ours), database.collection(&raw)];
    measure(rows, arrivals, RATE as usize * seconds).await;
}

/// A queue on each exchange, and what arrives: which row, and when.
async fn consume(
    channel: &Channel,
    exchanges: &[&str],
) -> mpsc::UnboundedReceiver<(String, Instant)> {
    let (arrived, arrivals) = mpsc::unbounded_channel();
    for exchange in exchanges {
        let none = FieldTable::default;
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let fanout = lapin::ExchangeKind::Fanout;
        channel
            .exchange_declare((*exchange).into(), fanout, durable, none())
            .await
            .unwrap();
        let durable = QueueDeclareOptions {
            durable: true,
            ..Default::default()
        };
        channel
            .queue_declare((*exchange).into(), durable, none())
            .await
            .unwrap();
        let bind = QueueBindOptions::default();
        channel
            .queue_bind(
                (*exchange).into(),
                (*exchange).into(),
                "".into(),
                bind,
                none(),
            )
            .await
            .unwrap();
        let options = BasicConsumeOptions {
            no_ack: true,
            ..Default::default()
        };
        let mut consumer = channel
            .basic_consume((*exchange).into(), "".into(), options, none())
            .await
            .unwrap();
        let arrived = arrived.clone();
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = consumer.next().await {
                let id = delivery
                    .properties
                    .message_id()
                    .as_ref()
                    .unwrap()
                    .to_string();
                let _ = arrived.send((id, Instant::now()));
            }
        });
    }
    arrivals
}

/// A change stream that is published, and nothing else.
async fn relay(
    mut stream: mongodb::change_stream::ChangeStream<RawDocumentBuf>,
    channel: Channel,
    exchange: String,
) {
    while let Some(Ok(event)) = stream.next().await {
        let row = event.get_document("fullDocument").unwrap();
        let id = row.get_object_id("_id").unwrap().to_hex();
        let state: Document = row
            .get_document("event")
            .unwrap()
            .get_document("state")
            .unwrap()
            .try_into()
            .unwrap();
        let body = serde_json::to_vec(&state).unwrap();
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_message_id(id.into());
        let options = BasicPublishOptions::default();
        let sent = channel.basic_publish(
            exchange.as_str().into(),
            "".into(),
            options,
            &body,
            properties,
        );
        tokio::spawn(sent.await.unwrap());
    }
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sidecar(mongodb: &str, amqp: &str) -> Ended {
    let child = Command::new(env!("CARGO_BIN_EXE_toa-outbox"))
        .args(["run", "--mongodb", mongodb, "--amqp", amqp])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Ended(child.unwrap())
}

async fn write(rows: &Collection<Document>) -> (String, Instant) {
    let id = ObjectId::new();
    let event = doc! { "origin": null, "state": { "text": "x".repeat(1000) }, "trailers": null, "input": null };
    let row = doc! {
        "_id": id, "lane": rand::random_range(0..128), "published": false,
        "pending": bson::DateTime::now().timestamp_millis(), "event": event,
    };
    rows.insert_one(row)
        .write_concern(WriteConcern::majority())
        .await
        .unwrap();
    (id.to_hex(), Instant::now())
}

/// Takes turns, and tells how long each took.
async fn measure(
    sides: [Collection<Document>; 2],
    mut arrivals: mpsc::UnboundedReceiver<(String, Instant)>,
    count: usize,
) {
    // Until the tail is open, the pump brings it.
    write(&sides[0]).await;
    arrivals.recv().await;
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / RATE));
    let (committed, mut commits) = mpsc::unbounded_channel();
    for index in 0..count + WARM {
        ticks.tick().await;
        let (side, rows, committed) = (index % 2, sides[index % 2].clone(), committed.clone());
        tokio::spawn(async move {
            let (id, at) = write(&rows).await;
            let _ = committed.send((id, side, at, index >= WARM));
        });
    }
    drop(committed);
    let mut arrived = HashMap::new();
    let mut histograms = [
        Histogram::<u64>::new(3).unwrap(),
        Histogram::new(3).unwrap(),
    ];
    while let Some((id, side, at, counts)) = commits.recv().await {
        while !arrived.contains_key(&id) {
            let (id, at) = arrivals.recv().await.unwrap();
            arrived.insert(id, at);
        }
        if counts {
            // It may arrive before its writer is told that it is committed.
            let took = arrived[&id].saturating_duration_since(at);
            histograms[side].record(took.as_micros() as u64).unwrap();
        }
    }
    println!("{:>6} {:>10} {:>10}", "ms", "p50", "p99");
    let [ours, raw] = &histograms;
    for (name, histogram) in [("ours", ours), ("raw", raw)] {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        println!("{name:>6} {:>10.2} {:>10.2}", at(0.5), at(0.99));
    }
    let ratio = |quantile| {
        ours.value_at_quantile(quantile) as f64 / raw.value_at_quantile(quantile).max(1) as f64
    };
    println!("{:>6} {:>10.2} {:>10.2}", "ratio", ratio(0.5), ratio(0.99));
}
