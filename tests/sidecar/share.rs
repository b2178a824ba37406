//! Several sidecars of one database.

use std::time::Duration;

use bson::doc;
use tokio::time::Instant;

use crate::{
    process::PATIENCE,
    support::{Checker, Rabbit, ReplicaSet, eventually},
    town::Town,
};

async fn all_arrive(consumer: &Checker, count: usize) {
    eventually(
        PATIENCE,
        &format!("{count} different messages arrive"),
        async || consumer.distinct() >= count,
    )
    .await;
}

/// CASE 9, without a fault.
#[tokio::test]
async fn three_sidecars_repeat_nothing() {
    let town = Town::shared().await.unhurried();
    town.write(1).await;
    let consumer = town.consumer().await;
    let sidecars = [town.sidecar(), town.sidecar(), town.sidecar()];
    for sidecar in &sidecars {
        town.owned(sidecar).await;
    }
    for _ in 0..100 {
        town.write(100).await;
    }
    all_arrive(&consumer, 10_001).await;
    town.settled().await;
    assert_eq!(consumer.count(), 10_001, "none twice");
    for sidecar in sidecars {
        assert!(sidecar.stop().await.success());
    }
    let members = town.database.collection::<bson::Document>("outbox_slots");
    let group = members
        .find_one(doc! { "_id": town.database.name() })
        .await
        .unwrap();
    assert!(group.unwrap().get_array("members").unwrap().is_empty());
}

/// CASE 9, with one killed, one stopped, one started.
#[tokio::test]
async fn of_three_sidecars_one_is_killed_one_stopped_one_started() {
    let town = Town::shared().await.unhurried();
    town.write(1).await;
    let consumer = town.consumer().await;
    let mut sidecars = vec![town.sidecar(), town.sidecar(), town.sidecar()];
    for sidecar in &sidecars {
        town.owned(sidecar).await;
    }
    for round in 0..100 {
        town.write(100).await;
        match round {
            20 => sidecars.remove(0).kill(),
            40 => assert!(sidecars.remove(0).stop().await.success()),
            60 => sidecars.push(town.sidecar()),
            _ => {}
        }
    }
    all_arrive(&consumer, 10_001).await;
    town.settled().await;
    let repeated = consumer.count() - 10_001;
    println!("{repeated} repeated after a kill");
    // What may be in flight, and what a mark may wait for: half a second at most.
    assert!(repeated <= 2_000, "{repeated}");
}

/// All of it at once: a sidecar is killed, one stopped, one started, the primary killed, the broker restarted.
#[tokio::test]
async fn whatever_happens_nothing_is_lost() {
    let (mongo, rabbit) = tokio::join!(ReplicaSet::start(3), Rabbit::start());
    let town = Town::on(&mongo, &rabbit.uri()).await.unhurried();
    town.write(1).await;
    // A queue that outlives the broker's restart, read at the end.
    let queue = Checker::queue(&town.amqp, &town.exchange("created")).await;
    let mut sidecars = vec![town.sidecar(), town.sidecar(), town.sidecar()];
    for sidecar in &sidecars {
        town.owned(sidecar).await;
    }
    for round in 0..100 {
        town.write_surely(100).await;
        match round {
            15 => sidecars.remove(0).kill(),
            30 => assert!(sidecars.remove(0).stop().await.success()),
            45 => sidecars.push(town.sidecar()),
            60 => mongo.kill(mongo.primary_index().await).await,
            75 => rabbit.stop().await,
            85 => rabbit.start_again().await,
            _ => {}
        }
    }
    town.settled().await;
    queue.drain(&town.amqp).await;
    let written = town.rows().count_documents(doc! {}).await.unwrap();
    assert_eq!(queue.distinct() as u64, written);
    println!("{} of {written} repeated", queue.count() - queue.distinct());
}

/// CASE 10: a row that is committed while the stream is being opened, at a start and at a rebalance.
#[tokio::test]
async fn rows_written_while_the_tail_opens_arrive_once_and_soon() {
    let town = Town::shared().await.unhurried();
    town.write(1).await;
    let consumer = town.consumer().await;
    let lasting = town.sidecar();
    town.owned(&lasting).await;
    let rounds = match std::env::var_os("SOAK") {
        Some(_) => 200,
        None => 10,
    };
    let mut written = 1;
    for round in 0..rounds {
        let joining = town.sidecar();
        // Time is the subject: the stream is opened at some moment of this.
        let moment = Duration::from_millis(rand::random_range(0..800));
        let mut ticks = tokio::time::interval(Duration::from_millis(5));
        let until = Instant::now() + moment + Duration::from_millis(200);
        while Instant::now() < until {
            ticks.tick().await;
            town.write(1).await;
            written += 1;
        }
        let begun = Instant::now();
        all_arrive(&consumer, written).await;
        // An interval, and what a handover may take on a busy machine.
        assert!(
            begun.elapsed() < town.interval * 2,
            "round {round}: {:?}",
            begun.elapsed()
        );
        assert!(joining.stop().await.success());
    }
    town.settled().await;
    assert_eq!(consumer.count(), written, "none twice");
    assert!(lasting.stop().await.success());
}
