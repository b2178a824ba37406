//! CASE 33: told to stop with a thousand rows in flight, whatever the servers do.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Cable, Checker, Rabbit, ReplicaSet, eventually},
    town::Town,
};

/// What is waited for, what leaving may take, and what a busy machine needs.
const GRACE: Duration = Duration::from_secs(13);

const ROWS: usize = 1000;

/// Servers of its own, with a cable to the broker.
struct Stage {
    mongo: ReplicaSet,
    rabbit: Rabbit,
    cable: Cable,
    town: Town,
    consumer: Checker,
    sidecar: Sidecar,
}

impl Stage {
    /// A thousand rows are on their way, and no confirm has come.
    async fn in_flight() -> Self {
        let (mongo, rabbit) = tokio::join!(ReplicaSet::start(1), Rabbit::start());
        let cable = Cable::to(rabbit.port()).await;
        let mut town = Town::on(&mongo, &rabbit.uri()).await.unhurried();
        town.write(1).await;
        let consumer = town.consumer().await;
        town.amqp = town
            .amqp
            .replace(&rabbit.port().to_string(), &cable.port().to_string());
        let sidecar = town.sidecar();
        town.settled().await;
        cable.swallow_back();
        town.write(ROWS).await;
        // Sweeps get three quarters of the places at most, the tail has all.
        eventually(PATIENCE, "they are in flight", async || {
            consumer.distinct() > ROWS / 2
        })
        .await;
        Self {
            mongo,
            rabbit,
            cable,
            town,
            consumer,
            sidecar,
        }
    }

    /// Told to stop, it is gone within the grace.
    async fn stops(&mut self) {
        let begun = Instant::now();
        self.sidecar.signal(Signal::TERM);
        self.sidecar.exits().await;
        assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
        assert!(self.sidecar.said("panicked").is_empty());
    }

    /// Another sidecar brings what was left; how many were repeated.
    async fn rest(&mut self) -> usize {
        self.cable.cut();
        self.cable.mend();
        self.sidecar = self.town.sidecar();
        self.town.settled().await;
        eventually(PATIENCE, "all arrive", async || {
            self.consumer.distinct() == ROWS + 1
        })
        .await;
        self.consumer.count() - self.consumer.distinct()
    }
}

#[tokio::test]
async fn when_all_is_well_nothing_is_repeated() {
    let mut stage = Stage::in_flight().await;
    stage.sidecar.signal(Signal::TERM);
    // The confirms come while it drains.
    stage.cable.release();
    stage.sidecar.exits().await;
    assert_eq!(stage.rest().await, 0);
}

#[tokio::test]
async fn without_a_broker() {
    let mut stage = Stage::in_flight().await;
    stage.rabbit.kill().await;
    stage.stops().await;
    stage.rabbit.start_again().await;
    stage.consumer = stage.town.consumer_of(&stage.rabbit.uri()).await;
    stage.cable.cut();
    stage.cable.mend();
    stage.sidecar = stage.town.sidecar();
    stage.town.settled().await;
}

#[tokio::test]
async fn with_a_broker_that_blocks() {
    let mut stage = Stage::in_flight().await;
    stage.rabbit.block().await;
    stage.town.write(10).await;
    stage.stops().await;
    stage.rabbit.unblock().await;
    stage.cable.cut();
    stage.cable.mend();
    stage.sidecar = stage.town.sidecar();
    stage.town.settled().await;
    eventually(PATIENCE, "all arrive", async || {
        stage.consumer.distinct() == ROWS + 11
    })
    .await;
}

#[tokio::test]
async fn without_mongodb() {
    let mut stage = Stage::in_flight().await;
    stage.mongo.kill(0).await;
    stage.stops().await;
    stage.mongo.start_again(0).await;
    stage.rest().await;
}

#[tokio::test]
async fn with_mongodb_paused_and_a_second_signal_that_ends_it_at_once() {
    let mut stage = Stage::in_flight().await;
    stage.mongo.pause(0);
    stage.sidecar.signal(Signal::TERM);
    stage.sidecar.says("stopping").await;
    let begun = Instant::now();
    stage.sidecar.signal(Signal::TERM);
    assert_eq!(stage.sidecar.exits().await.code(), Some(1));
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    stage.mongo.resume(0);
    stage.rest().await;
}

#[tokio::test]
async fn with_mongodb_paused() {
    let mut stage = Stage::in_flight().await;
    stage.mongo.pause(0);
    stage.stops().await;
    stage.mongo.resume(0);
    stage.rest().await;
}
