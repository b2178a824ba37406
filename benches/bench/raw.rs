//! The servers without us: what is compared with.

use std::time::{Duration, Instant};

use bson::{Document, RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, doc, rawdoc};
use futures::{Stream, StreamExt, stream};
use lapin::{BasicProperties, Channel, PublisherConfirm, options::BasicPublishOptions};
use uuid::Uuid;

use crate::{
    stage::{Stage, Town, row, state},
    support::unique,
};

/// Unconfirmed messages at a time: more gain the broker nothing.
const WINDOW: usize = 1000;

/// What the contract asks of a message: each property costs the broker some time.
fn properties(id: &str) -> BasicProperties {
    BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_headers(Default::default())
        .with_message_id(id.into())
        .with_type("created".into())
        .with_app_id("bench0123456789ab.pots".into())
        .with_timestamp(1_700_000_000)
}

/// Hands one message over; what it returns resolves with the confirm.
pub async fn send(channel: &Channel, exchange: &str, id: &str, body: &[u8]) -> PublisherConfirm {
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish(exchange.into(), "".into(), options, body, properties(id));
    sent.await.unwrap()
}

/// Publishes one message and waits for its confirm.
pub async fn one(channel: &Channel, exchange: &str, id: &str) {
    let confirm = send(channel, exchange, id, &body()).await;
    assert!(confirm.await.unwrap().is_ack());
}

fn body() -> Vec<u8> {
    serde_json::to_vec(&state()).expect("a document of text")
}

/// Publishes so many bodies, pipelined, and waits for the last confirm.
pub async fn publish(stage: &Stage, count: usize, is_consumed: bool) -> Duration {
    let exchange = unique("raw");
    stage.queue(&exchange).await;
    let reader = match is_consumed {
        true => Some(stage.consumer(&exchange).await),
        false => None,
    };
    let body = body();
    let begun = Instant::now();
    stream::iter(0..count)
        .map(|_| async {
            let id = Uuid::now_v7().to_string();
            send(&stage.channel, &exchange, &id, &body)
                .await
                .await
                .unwrap()
        })
        .buffer_unordered(WINDOW)
        .for_each(async |answer| assert!(answer.is_ack()))
        .await;
    let took = begun.elapsed();
    if let Some(reader) = reader {
        reader.has(count).await;
    }
    stage.delete(&exchange).await;
    took
}

/// Reads due rows by one cursor and marks them by a thousand, by the driver alone; how long that took.
pub async fn mark(town: &Town) -> Duration {
    let lanes: Vec<i32> = (0..128).collect();
    let due = doc! { "published": false, "lane": { "$in": lanes } };
    let begun = Instant::now();
    let cursor = town.rows().find(due).batch_size(200).await.unwrap();
    let rows = cursor.with_type::<RawDocumentBuf>();
    mark_all(town, rows.map(|row| id(&row.unwrap()))).await;
    begun.elapsed()
}

/// Inserts so many rows at full speed, and reads them from a change stream; from the first insert to the last event, or
/// the last mark if they are marked as well.
pub async fn follow(town: &Town, count: usize, is_marked: bool) -> Duration {
    let inserts = [doc! { "$match": { "operationType": "insert" } }];
    let stream = town.rows().watch().pipeline(inserts).await.unwrap();
    let events = stream.with_type::<RawDocumentBuf>();
    let ids = events.map(|event| id(event.unwrap().get_document("fullDocument").unwrap()));
    let ids = ids.take(count);
    let begun = Instant::now();
    let reading = async {
        match is_marked {
            true => mark_all(town, ids).await,
            false => ids.for_each(async |_| {}).await,
        }
        begun.elapsed()
    };
    tokio::join!(insert(town, count), reading).1
}

fn id(row: &RawDocument) -> RawBson {
    RawBson::from(row.get("_id").unwrap().unwrap())
}

/// The next thousand are read while one is marked.
async fn mark_all(town: &Town, ids: impl Stream<Item = RawBson>) {
    let marked = ids.chunks(1000).map(async |ids| {
        let mut list = RawArrayBuf::new();
        ids.into_iter().for_each(|id| list.push(id));
        let these = rawdoc! { "_id": { "$in": list }, "published": false };
        let these = Document::try_from(these).unwrap();
        let update =
            doc! { "$set": { "published": true }, "$currentDate": { "publishedAt": true } };
        let marked = town.rows().update_many(these, update).await.unwrap();
        assert!(marked.modified_count > 0);
    });
    marked.buffer_unordered(2).for_each(async |()| {}).await;
}

/// Inserts so many rows at full speed, a thousand in one command.
pub async fn insert(town: &Town, count: usize) {
    let rows = town.rows();
    for first in (0..count).step_by(1000) {
        let chunk = (first..count.min(first + 1000)).map(|_| row());
        rows.insert_many(chunk).await.unwrap();
    }
}
