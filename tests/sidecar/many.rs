//! Many collections, one sidecar.

use std::time::Duration;

use bson::{Document, doc};
use futures::{StreamExt, TryStreamExt, stream};
use mongodb::Collection;
use tokio::time::Instant;

use crate::{
    process::PATIENCE,
    support::{Checker, ReplicaSet, eventually, servers, unique},
    town::{Town, row},
};

const COLLECTIONS: usize = 200;

/// As a service of another language leaves it: collections, and no indexes.
async fn settle(town: &Town) -> Vec<Collection<Document>> {
    let names = (0..COLLECTIONS).map(|n| format!("{}_{n}_outbox", town.pots));
    let created = stream::iter(names).map(async |name| {
        town.database.create_collection(&name).await.unwrap();
        town.database.collection(&name)
    });
    created.buffered(8).collect().await
}

/// How many change streams are open on the database or any collection of it.
async fn streams(town: &Town) -> usize {
    let admin = town.database.client().database("admin");
    let all = admin.aggregate([
        doc! { "$currentOp": { "allUsers": true, "idleCursors": true, "localOps": true } },
        doc! { "$match": { "ns": { "$regex": format!("^{}[.]", town.database.name()) } } },
    ]);
    let all: Vec<Document> = all.await.unwrap().try_collect().await.unwrap();
    let is_stream = |op: &&Document| op.to_string().contains("$changeStream");
    all.iter().filter(is_stream).count()
}

#[tokio::test]
async fn two_hundred_collections_are_one_stream() {
    let mongo = ReplicaSet::start(1).await;
    let town = Town::on(&mongo, &servers().await.rabbit.uri()).await;
    let mut town = town.unhurried();
    town.pots = unique("tea");
    let collections = settle(&town).await;
    let first = Instant::now();
    let sidecar = town.sidecar();
    town.owned(&sidecar).await;
    println!("first start, with indexes to create: {:?}", first.elapsed());
    assert!(sidecar.stop().await.success());

    let begun = Instant::now();
    let sidecar = town.sidecar();
    town.owned(&sidecar).await;
    println!("start: {:?}", begun.elapsed());
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    eventually(PATIENCE, "the stream is open", async || {
        streams(&town).await == 1
    })
    .await;
    let (namespace, name) = town.pots.split_once('_').unwrap();
    let exchanges: Vec<String> = (0..COLLECTIONS)
        .map(|n| format!("{namespace}.{name}_{n}.created"))
        .collect();
    let exchanges: Vec<&str> = exchanges.iter().map(String::as_str).collect();
    let consumer = Checker::bind_all(&town.amqp, &exchanges).await;
    for rows in &collections {
        rows.insert_one(row(doc! {}).1).await.unwrap();
    }
    consumer.wait_for(COLLECTIONS, PATIENCE).await;
    let spent = sidecar.processor_time();
    // Time is the subject.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let spent = sidecar.processor_time() - spent;
    println!(
        "idle, at an interval of {:?}: {:.1} % of a core",
        town.interval,
        spent.as_secs_f64() / 5.0 * 100.0
    );
    eventually(PATIENCE, "it still is", async || streams(&town).await == 1).await;
    assert!(sidecar.stop().await.success());
}
