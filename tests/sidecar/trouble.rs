//! What goes wrong between the sidecar and its servers.

use std::time::Duration;

use bson::{Document, doc};

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Mongo, ReplicaSet, eventually, servers},
    town::{Town, row},
};

/// CASE 6.
#[tokio::test]
async fn a_standalone_server_is_refused_in_one_line() {
    let mongo = Mongo::standalone().await;
    let uri = mongo.uri().replace("/?", "/tea?");
    let amqp = servers().await.rabbit.uri();
    let mut sidecar = Sidecar::start(&[("MONGODB", uri), ("AMQP", amqp)]);
    assert_eq!(sidecar.exits().await.code(), Some(1));
    let said = sidecar.said("toa-outbox:");
    assert!(
        said.len() == 1 && said[0].contains("standalone") && said[0].contains("replica set"),
        "{said:?}"
    );
}

/// CASE 7.
#[tokio::test]
async fn a_lost_history_is_a_new_stream() {
    let mongo = ReplicaSet::start(1).await;
    let mut town = Town::on(&mongo, &servers().await.rabbit.uri()).await;
    town.mongodb.push_str("&appName=follower");
    town.write(1).await;
    let consumer = town.consumer().await;
    let sidecar = town.sidecar();
    town.settled().await;
    fail(&mongo, 286, 3).await;
    for _ in 0..50 {
        town.write(2).await;
    }
    eventually(PATIENCE, "the stream was lost", async || {
        !sidecar.said("286").is_empty() || !sidecar.said("the tail ended").is_empty()
    })
    .await;
    eventually(PATIENCE, "all arrive", async || consumer.distinct() == 101).await;
    town.settled().await;
    assert!(
        sidecar.said("the tail ended").len() <= 2,
        "{:?}",
        sidecar.said("the tail ended")
    );
    assert!(sidecar.stop().await.success());
    assert_eq!(consumer.count(), 101, "none twice");
}

/// Makes the tail's next requests fail.
async fn fail(mongo: &ReplicaSet, code: i32, times: i32) {
    let settings = doc! {
        "mode": { "times": times },
        "data": { "failCommands": ["getMore"], "errorCode": code, "appName": "follower" },
    };
    mongo.fail_command(settings).await;
}

/// CASE 8.
#[tokio::test]
async fn an_event_too_large_for_the_stream_goes_by_the_pump() {
    let town = Town::shared().await.unhurried();
    town.write(1).await;
    let consumer = town.consumer().await;
    let sidecar = town.sidecar();
    town.settled().await;
    town.write(50).await;
    let (_, large) = row(doc! { "body": "x".repeat(16 * 1024 * 1024 - 4096) });
    town.rows().insert_one(large).await.unwrap();
    town.write(50).await;
    eventually(PATIENCE, "all arrive", async || consumer.distinct() == 102).await;
    town.settled().await;
    town.write(1).await;
    eventually(PATIENCE, "and those after it", async || {
        consumer.distinct() == 103
    })
    .await;
    assert_eq!(consumer.count(), 103, "none twice");
    assert!(sidecar.said("the tail ended").len() <= 2);
    assert!(sidecar.stop().await.success());
}

/// CASE 11.
#[tokio::test]
async fn a_restart_beside_a_busy_server_is_quick() {
    let town = Town::shared().await;
    town.write(1).await;
    let sidecar = town.sidecar();
    town.settled().await;
    assert!(sidecar.stop().await.success());
    let writes = match std::env::var_os("SOAK") {
        Some(_) => 2_000_000,
        None => 50_000,
    };
    let elsewhere = town.database.collection::<Document>("elsewhere");
    for _ in 0..writes / 10_000 {
        let documents = (0..10_000).map(|n| doc! { "n": n });
        elsewhere.insert_many(documents).await.unwrap();
    }
    let consumer = town.consumer().await;
    let begun = tokio::time::Instant::now();
    let sidecar = town.sidecar();
    town.change().await;
    eventually(PATIENCE, "it arrives", async || consumer.distinct() == 1).await;
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert!(sidecar.stop().await.success());
}
