//! What was there before the sink was.

use std::{collections::BTreeSet, time::Duration};

use bson::doc;
use toa_outbox::{Outbox, SinkOptions};

use super::{Log, SINK, open, patience, rig, write};
use crate::{
    rig::{PATIENCE, Rig, soak},
    support::{Commits, ReplicaSet, eventually},
};

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_beside_an_expiry_of_seconds_misses_nothing() {
    // Its server looks for what has expired every second.
    let set = ReplicaSet::start_with(1, &["--setParameter", "ttlMonitorSleepSecs=1"]).await;
    let amqp = crate::support::servers().await.rabbit.uri();
    let mut rig = Rig::new(&set.uri(), &amqp).await;
    let held = if soak() { 20_000 } else { 2_000 };
    rig.settings.retention = Duration::from_secs(5);
    let _checker = rig.consume("created").await;
    let before = rig.open().await;
    // Published by one who did not know the sink.
    let until =
        |left: i64| bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() + left);
    let minute = until(60_000);
    rig.seed(held, |row, _| {
        row.insert("published", true);
        row.insert("publishedAt", minute);
    })
    .await;
    let held: BTreeSet<String> = rig.ids(doc! {}).await.into_iter().collect();
    let log = Log::default();
    let commits = Commits::of(&rig.rows()).await;
    let writer = before.clone();
    let writing = tokio::spawn(async move {
        let mut written = 0;
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        while tokio::time::Instant::now() < until {
            write(&writer, 1).await;
            written += 1;
        }
        written
    });
    let more = held.len() as u64 + 20;
    eventually(PATIENCE, "some of those are published too", async || {
        rig.count(doc! { "published": true }).await > more
    })
    .await;
    // To expire in three seconds, long before all of it can be kept one by one.
    let soon = doc! { "$set": { "publishedAt": until(3000 - 5000) } };
    let which = doc! { "publishedAt": minute };
    rig.rows().update_many(which, soon).await.unwrap();
    let there: BTreeSet<String> = rig.ids(doc! {}).await.into_iter().collect();
    assert!(there.is_superset(&held), "nothing has expired yet");
    let pots = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone())
        .sink_with(SINK, ["*"], log.clone(), SinkOptions::ordered())
        .open()
        .await
        .unwrap();
    let written = writing.await.unwrap();
    let order = commits.all(written, patience()).await;
    let expected: BTreeSet<String> = there.into_iter().chain(order).collect();
    let is_whole = async || log.distinct().len() >= expected.len();
    let whole = tokio::time::timeout(PATIENCE * 2, eventually(PATIENCE * 3, "", is_whole)).await;
    let missed = expected.difference(&log.distinct()).count();
    let of_held = held.difference(&log.distinct()).count();
    assert!(
        whole.is_ok(),
        "{missed} of {} missed, {of_held} of those that were held",
        expected.len()
    );
    eventually(PATIENCE, "all of it expires", async || {
        rig.count(doc! {}).await == 0
    })
    .await;
    before.shutdown().await;
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_begins_now_is_given_what_is_committed_after_it() {
    let rig = rig().await;
    rig.seed(50, |_, _| {}).await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered().from_now()).await;
    write(&pots, 20).await;
    log.has(20).await;
    // And owes nothing of the others.
    rig.settled().await;
    assert_eq!(log.rows().len(), 20);
    pots.shutdown().await;
}
