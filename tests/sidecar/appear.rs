//! Collections that appear, go, or cannot be followed.

use std::time::Duration;

use bson::{Document, doc};
use futures::TryStreamExt;
use toa_outbox::{Component, Label, Outbox, Settings};
use tokio::time::Instant;

use crate::{
    process::{PATIENCE, Sidecar},
    support::eventually,
    town::Town,
};

/// Another collection of the same database.
async fn neighbour(town: &Town) -> Town {
    let other = Town::shared().await;
    Town {
        database: town.database.clone(),
        mongodb: town.mongodb.clone(),
        ..other
    }
}

#[tokio::test]
async fn what_another_group_had_is_taken_up_when_it_is_free() {
    let town = Town::shared().await;
    let taken = neighbour(&town).await;
    let slots = town.database.collection::<Document>("outbox_slots");
    let id = doc! { "collection": taken.rows().name() };
    slots
        .insert_one(doc! { "_id": &id, "pumpedBy": "group of others" })
        .await
        .unwrap();
    town.write(1).await;
    taken.write(1).await;
    let sidecar = town.sidecar();
    town.settled().await;
    sidecar.says("are pumped by group of others").await;
    assert_eq!(taken.unpublished().await, 1);
    slots.delete_one(doc! { "_id": id }).await.unwrap();
    taken.settled().await;
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn one_that_cannot_be_followed_keeps_no_other_from_it() {
    let town = Town::shared().await;
    let bad = neighbour(&town).await;
    bad.write(1).await;
    // Under the name of ours, with other keys.
    let index = mongodb::IndexModel::builder()
        .keys(doc! { "elsewhere": 1 })
        .options(
            mongodb::options::IndexOptions::builder()
                .name("publishedAt_1".to_owned())
                .build(),
        )
        .build();
    bad.rows().create_index(index).await.unwrap();
    town.write(1).await;
    let sidecar = town.sidecar();
    town.settled().await;
    let said = sidecar.says("is not followed").await;
    assert!(said.contains(bad.rows().name()), "{said}");
    bad.rows().drop_index("publishedAt_1").await.unwrap();
    bad.settled().await;
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn one_that_is_dropped_and_made_again_is_prepared_again() {
    let town = Town::shared().await;
    town.write(1).await;
    let sidecar = town.sidecar();
    town.settled().await;
    town.rows().drop().await.unwrap();
    town.write(1).await;
    town.settled().await;
    eventually(PATIENCE, "it has its indexes", async || {
        let indexes = town.rows().list_indexes().await.unwrap();
        let indexes: Vec<_> = indexes.try_collect().await.unwrap();
        indexes.len() == 3
    })
    .await;
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn with_a_static_slot_the_first_collection_has_a_tail() {
    let mut town = Town::shared().await;
    town.interval = Duration::from_secs(30);
    let consumer = town.consumer().await;
    let mut settings = town.settings();
    settings.push(("SLOT", "0/1".into()));
    let sidecar = Sidecar::start(&settings);
    sidecar.says("no outbox collection yet").await;
    town.write(1).await;
    consumer.wait_for(1, PATIENCE).await;
    let begun = Instant::now();
    for written in 2..5 {
        town.write(1).await;
        consumer.wait_for(written, PATIENCE).await;
    }
    assert!(begun.elapsed() < town.interval / 2, "{:?}", begun.elapsed());
    assert!(sidecar.stop().await.success());
}

/// Who stands by still marks what it wrote, and must not mark away what the others are there for.
#[tokio::test]
async fn what_a_library_beside_it_writes_is_owed_to_its_labels_too() {
    let town = Town::shared().await;
    town.write(1).await;
    let consumer = town.consumer().await;
    let sidecar = town.sidecar();
    town.settled().await;
    let (namespace, name) = town.pots.split_once('_').unwrap();
    let component = Component::new(namespace, name).labels([Label::sync()]);
    let settings = Settings {
        amqp: vec![town.amqp.clone()],
        interval: town.interval,
        ..Settings::default()
    };
    let pots = Outbox::open(&town.database, component, settings)
        .await
        .unwrap();
    pots.create(doc! { "material": "glass" }, doc! {})
        .await
        .unwrap();
    consumer.wait_for(2, PATIENCE).await;
    town.settled().await;
    pots.shutdown().await;
    assert!(sidecar.stop().await.success());
}
