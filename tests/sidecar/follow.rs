//! Rows of others reach the broker at once.

use std::time::Duration;

use bson::doc;
use tokio::time::Instant;

use crate::{
    process::PATIENCE,
    support::eventually,
    town::{Town, row},
};

#[tokio::test]
async fn what_a_foreign_service_commits_is_published_at_once_and_marked() {
    let mut town = Town::shared().await;
    // So long that the pump has no part in it.
    town.interval = Duration::from_secs(60);
    town.database
        .create_collection(town.rows().name())
        .await
        .unwrap();
    let consumer = town.consumer().await;
    let sidecar = town.sidecar();
    town.owned(&sidecar).await;
    // The first shows that the tail is open.
    let first = town.change().await;
    let ids = |consumer: &crate::support::Checker| {
        consumer
            .received()
            .iter()
            .map(|d| d.message_id.clone())
            .collect::<Vec<_>>()
    };
    eventually(PATIENCE, "the first arrives", async || {
        ids(&consumer).contains(&first)
    })
    .await;
    let begun = Instant::now();
    for _ in 0..20 {
        let id = town.change().await;
        eventually(PATIENCE, "it arrives", async || {
            ids(&consumer).contains(&id)
        })
        .await;
    }
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    town.settled().await;
    assert_eq!(consumer.count(), 21, "none twice");
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn collections_are_followed_as_they_appear() {
    let town = Town::shared().await;
    let consumer = town.consumer().await;
    let sidecar = town.sidecar();
    sidecar.says("no outbox collection yet").await;
    town.change().await;
    town.settled().await;
    assert_eq!(consumer.count(), 1);
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn rows_of_later_are_sent_later_and_those_of_a_clock_that_is_ahead_a_little_in_time() {
    let mut town = Town::shared().await;
    town.interval = Duration::from_secs(60);
    town.write(1).await;
    let consumer = town.consumer().await;
    let sidecar = town.sidecar();
    town.settled().await;
    let later = |millis: i64| {
        let (id, mut row) = row(doc! {});
        let pending = bson::DateTime::now().timestamp_millis() + millis;
        row.insert("pending", pending);
        (id, row)
    };
    let (soon, soon_row) = later(700);
    let (late, late_row) = later(3_600_000);
    let written = Instant::now();
    town.rows().insert_many([soon_row, late_row]).await.unwrap();
    eventually(PATIENCE, "the one that is soon due arrives", async || {
        consumer
            .received()
            .iter()
            .any(|delivery| delivery.message_id == soon)
    })
    .await;
    assert!(
        written.elapsed() > Duration::from_millis(500),
        "not before it is due"
    );
    eventually(PATIENCE, "all but the late one are marked", async || {
        town.unpublished().await == 1
    })
    .await;
    assert!(
        consumer
            .received()
            .iter()
            .all(|delivery| delivery.message_id != late)
    );
    assert!(sidecar.stop().await.success());
}
