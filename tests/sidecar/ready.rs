//! What an orchestrator is told, and what becomes of rows meanwhile.

use std::time::Duration;

use bson::doc;
use lapin::ExchangeKind;
use tokio::time::Instant;

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Admin, Cable, Checker, Rabbit, ReplicaSet, eventually, servers},
    town::Town,
};

/// A town with a broker of its own.
async fn stage() -> (Rabbit, Town) {
    let rabbit = Rabbit::start().await;
    let town = Town::on(&servers().await.mongo, &rabbit.uri())
        .await
        .unhurried();
    town.write(1).await;
    (rabbit, town)
}

fn start(town: &Town) -> Sidecar {
    let mut settings = town.settings();
    settings.push(("LISTEN", "127.0.0.1:0".into()));
    Sidecar::start(&settings)
}

/// Waits for an answer of `/readyz`, which names what is wrong.
async fn is_ready(sidecar: &Sidecar, status: u16, text: &str) {
    eventually(
        PATIENCE,
        &format!("/readyz is {status}, {text}"),
        async || {
            let (answered, body) = sidecar.get("/readyz").await;
            answered == status && body.contains(text)
        },
    )
    .await;
}

/// CASE 34.
#[tokio::test]
async fn without_a_broker_it_is_alive_and_not_ready() {
    let (rabbit, town) = stage().await;
    let sidecar = start(&town);
    is_ready(&sidecar, 200, "connected").await;
    rabbit.kill().await;
    let killed = Instant::now();
    is_ready(&sidecar, 503, "away").await;
    assert!(
        killed.elapsed() < Duration::from_secs(10),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(sidecar.get("/livez").await.0, 200);
    rabbit.start_again().await;
    is_ready(&sidecar, 200, "connected").await;
    assert!(sidecar.stop().await.success());
}

/// CASE 25.
#[tokio::test]
async fn a_blocked_broker_is_told_and_costs_no_memory() {
    let (rabbit, town) = stage().await;
    let consumer = town.consumer().await;
    let sidecar = start(&town);
    town.settled().await;
    rabbit.block().await;
    town.write(100).await;
    is_ready(&sidecar, 503, "blocked").await;
    let before = sidecar.memory();
    for _ in 0..20 {
        town.write(1000).await;
    }
    eventually(PATIENCE, "the metrics tell", async || {
        let (_, metrics) = sidecar.get("/metrics").await;
        let waits = |line: &str| {
            line.starts_with("toa_outbox_unpublished_rows{") && line.ends_with(" 20100")
        };
        metrics.lines().any(waits) && metrics.contains("toa_outbox_blocked 1")
    })
    .await;
    let more = sidecar.memory().saturating_sub(before);
    assert!(more < 32 * 1024, "{more} KiB more for 20 000 rows");
    let slots = town.database.collection::<bson::Document>("outbox_slots");
    let group = slots
        .find_one(doc! { "_id": town.database.name() })
        .await
        .unwrap()
        .unwrap();
    let members = group.get_array("members").unwrap();
    let routes = members[0]
        .as_document()
        .unwrap()
        .get_array("routes")
        .unwrap();
    assert!(
        members.len() == 1 && !routes.is_empty(),
        "its slot is held: {group}"
    );
    rabbit.unblock().await;
    is_ready(&sidecar, 200, "connected").await;
    consumer.wait_for(20_101, PATIENCE).await;
    town.settled().await;
    assert!(sidecar.stop().await.success());
}

/// CASE 27.
#[tokio::test]
async fn an_exchange_deleted_while_others_are_in_flight_delays_no_other() {
    let (mongo, rabbit) = (&servers().await.mongo, Rabbit::start().await);
    let cable = Cable::to(rabbit.port()).await;
    let through = format!("amqp://guest:guest@127.0.0.1:{}/%2f", cable.port());
    let good = Town {
        // Who cannot keep up with its beats cuts the connection, and the next one declares what is missing.
        beat: Duration::from_secs(2),
        ..Town::on(mongo, &through).await
    };
    // Of one database, so that one sidecar follows both.
    let bad = Town {
        database: good.database.clone(),
        mongodb: good.mongodb.clone(),
        ..Town::on(mongo, &through).await
    };
    let exchange = bad.exchange("created");
    bad.write(1).await;
    good.write(1).await;
    let consumer = good.consumer_of(&rabbit.uri()).await;
    let sidecar = start(&good);
    consumer.wait_for(1, PATIENCE).await;
    for town in [&good, &bad] {
        town.settled().await;
    }

    cable.swallow_back();
    good.write(100).await;
    consumer.wait_for(101, PATIENCE).await;
    assert_eq!(good.unpublished().await, 100, "in flight");
    Admin::of(&rabbit.uri()).await.delete(&exchange).await;
    let begun = Instant::now();
    bad.write(20).await;
    good.write(100).await;
    cable.release();
    consumer.wait_for(201, Duration::from_secs(10)).await;
    good.settled().await;
    // Several sweeps find the bad ones again meanwhile.
    for round in 1..=10 {
        good.write(10).await;
        let sent = 201 + round * 10;
        consumer.wait_for(sent, Duration::from_secs(10)).await;
    }
    // With a new connection it would be declared again.
    assert!(sidecar.said("lost the connection").is_empty());
    assert_eq!(bad.unpublished().await, 20, "wait");
    eventually(PATIENCE, "it is said what they wait for", async || {
        sidecar
            .said(&exchange)
            .iter()
            .any(|line| line.contains("NOT_FOUND"))
    })
    .await;

    let late = Checker::bind(&rabbit.uri(), &exchange).await;
    late.wait_for(20, PATIENCE).await;
    bad.settled().await;
    // One of each kind a second: what everything goes on, and what suspects go on.
    let (closed, allowed) = (rabbit.missed(&exchange), 2 + 2 * begun.elapsed().as_secs());
    assert!(
        closed > 0 && closed as u64 <= allowed,
        "{closed} in {:?}",
        begun.elapsed()
    );
    assert!(sidecar.stop().await.success());
}

/// CASE 27, and a kind of bad that is there from the start.
#[tokio::test]
async fn an_exchange_that_cannot_be_used_delays_no_other() {
    let (mongo, rabbit) = (&servers().await.mongo, Rabbit::start().await);
    let (good, bad) = (
        Town::on(mongo, &rabbit.uri()).await,
        Town::on(mongo, &rabbit.uri()).await,
    );
    // Of one database, so that one sidecar follows both.
    let bad = Town {
        database: good.database.clone(),
        mongodb: good.mongodb.clone(),
        ..bad
    };
    let admin = Admin::of(&rabbit.uri()).await;
    let exchange = bad.exchange("created");
    // One that is missing would just be declared.
    admin.declare_as(&exchange, ExchangeKind::Direct).await;
    good.write(1).await;
    let consumer = good.consumer().await;
    let sidecar = start(&good);
    good.settled().await;
    for _ in 0..10 {
        bad.write(10).await;
        good.write(100).await;
    }
    consumer.wait_for(1001, PATIENCE).await;
    good.settled().await;
    assert_eq!(bad.unpublished().await, 100);
    admin.delete(&exchange).await;
    let late = Checker::bind(&rabbit.uri(), &exchange).await;
    late.wait_for(100, PATIENCE).await;
    bad.settled().await;
    assert!(sidecar.stop().await.success());
}

/// What to alert on has to be there, and to grow, whatever is broken: no index, no broker, and then no database.
#[tokio::test]
async fn how_long_rows_wait_is_told_without_an_index_and_without_mongodb() {
    let mongo = ReplicaSet::start(1).await;
    let town = Town::on(&mongo, "amqp://127.0.0.1:1").await;
    town.write(3).await;
    let mut settings = town.settings();
    settings.push(("LISTEN", "127.0.0.1:0".into()));
    settings.push(("ENSURE", "0".into()));
    let sidecar = Sidecar::start(&settings);
    eventually(PATIENCE, "three rows wait", async || {
        let waits = metric(&sidecar, "toa_outbox_unpublished_rows{").await;
        waits == Some(3.0)
    })
    .await;
    let age = async || metric(&sidecar, "toa_outbox_oldest_unpublished_seconds{").await;
    eventually(PATIENCE, "for some time", async || {
        age().await.is_some_and(|age| age > 1.0)
    })
    .await;
    mongo.pause(0);
    let before = age().await.unwrap();
    eventually(PATIENCE, "and for longer and longer", async || {
        age().await.is_some_and(|age| age > before + 15.0)
    })
    .await;
    mongo.resume(0);
}

async fn metric(sidecar: &Sidecar, name: &str) -> Option<f64> {
    let (_, metrics) = sidecar.get("/metrics").await;
    let line = metrics.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}
