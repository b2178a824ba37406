//! How fast a backlog drains, beside the raw client on the same broker.
//!
//! Ours: due rows of 1 KB are read, published with confirms, and marked. Raw: the same bodies, published with
//! the same client, the same window and the same confirms, by nobody who reads or marks anything. Interleaved
//! pairs, fresh data each; the figure is the ratio, since machines differ and drift.
//!
//! `ROWS` and `PAIRS` change the size of a run.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures::{StreamExt, stream};
use lapin::{BasicProperties, Channel, options::*, types::FieldTable};
use support::{Rabbit, ReplicaSet, eventually, unique};
use toa_outbox::{Component, Label, Outbox, Settings, Slot};

/// As many as our cap on what is in flight lets a sweep have.
const WINDOW: usize = 750;

#[tokio::main]
async fn main() {
    let (rows, pairs) = (number("ROWS", 20_000), number("PAIRS", 5));
    let (mongo, rabbit) = tokio::join!(ReplicaSet::start(1), Rabbit::start());
    let connection = lapin::Connection::connect(&rabbit.uri(), Default::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(Default::default()).await.unwrap();
    println!("{:>12} {:>12} {:>7}", "ours rows/s", "raw rows/s", "ratio");
    let mut ratios = Vec::new();
    for _ in 0..pairs {
        let ours = rows as f64 / ours(&mongo, &rabbit, &channel, rows).await.as_secs_f64();
        let raw = rows as f64 / raw(&channel, rows).await.as_secs_f64();
        println!("{ours:>12.0} {raw:>12.0} {:>7.2}", ours / raw);
        ratios.push(ours / raw);
    }
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    println!(
        "drain of {rows} rows: median ratio {:.2}, from {least:.2} to {most:.2}",
        ratios[ratios.len() / 2]
    );
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().expect(name))
}

fn body() -> String {
    "x".repeat(1000)
}

/// A durable queue on a durable fanout.
async fn queue(channel: &Channel, exchange: &str) {
    let (durable, none) = (true, FieldTable::default);
    let options = ExchangeDeclareOptions {
        durable,
        ..Default::default()
    };
    let fanout = lapin::ExchangeKind::Fanout;
    channel
        .exchange_declare(exchange.into(), fanout, options, none())
        .await
        .unwrap();
    let options = QueueDeclareOptions {
        durable,
        ..Default::default()
    };
    channel
        .queue_declare(exchange.into(), options, none())
        .await
        .unwrap();
    let options = QueueBindOptions::default();
    channel
        .queue_bind(exchange.into(), exchange.into(), "".into(), options, none())
        .await
        .unwrap();
}

async fn delete(channel: &Channel, queue: &str) {
    channel
        .queue_delete(queue.into(), QueueDeleteOptions::default())
        .await
        .unwrap();
}

async fn ours(mongo: &ReplicaSet, rabbit: &Rabbit, channel: &Channel, rows: usize) -> Duration {
    let namespace = unique("bench");
    let database = mongo.client().await.database(&namespace);
    let collection = database.collection::<Document>(&format!("{namespace}_pots_outbox"));
    let settings = Settings {
        amqp: vec![rabbit.uri()],
        slot: Some(Slot::WHOLE),
        ..Settings::default()
    };
    let component = Component::new(&namespace, "pots").labels([Label::created()]);
    Outbox::open(&database, component.clone(), settings.clone())
        .await
        .unwrap()
        .shutdown()
        .await;
    let exchange = format!("{namespace}.pots.created");
    queue(channel, &exchange).await;
    seed(&collection, rows).await;
    let begun = Instant::now();
    let outbox = Outbox::open(&database, component, settings).await.unwrap();
    eventually(
        Duration::from_secs(600),
        "everything is marked",
        async || {
            collection
                .count_documents(doc! { "published": false, "lane": { "$gte": 0 } })
                .await
                .unwrap()
                == 0
        },
    )
    .await;
    let took = begun.elapsed();
    outbox.shutdown().await;
    delete(channel, &exchange).await;
    database.drop().await.unwrap();
    took
}

async fn seed(collection: &mongodb::Collection<Document>, rows: usize) {
    let state = doc! { "text": body() };
    let rows: Vec<Document> = (0..rows)
        .map(|index| {
            let event = doc! { "origin": null, "state": &state, "trailers": null, "input": null };
            let id = bson::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes());
            doc! { "_id": id, "lane": (index % 128) as i32, "published": false, "pending": 0_i64, "event": event }
        })
        .collect();
    for chunk in rows.chunks(10_000) {
        collection.insert_many(chunk).await.unwrap();
    }
}

async fn raw(channel: &Channel, rows: usize) -> Duration {
    let exchange = unique("raw");
    queue(channel, &exchange).await;
    let body = serde_json::to_vec(&serde_json::json!({ "text": body() })).unwrap();
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into());
    let begun = Instant::now();
    stream::iter(0..rows)
        .map(|_| async {
            let options = BasicPublishOptions::default();
            let sent = channel.basic_publish(
                exchange.as_str().into(),
                "".into(),
                options,
                &body,
                properties.clone(),
            );
            sent.await.unwrap().await.unwrap()
        })
        .buffer_unordered(WINDOW)
        .for_each(async |confirmation| assert!(confirmation.is_ack()))
        .await;
    let took = begun.elapsed();
    delete(channel, &exchange).await;
    took
}
