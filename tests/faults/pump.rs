//! CASES 12–14, and what a cycle costs and recovers.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures::TryStreamExt;
use toa_outbox::{Component, Label, Settings};

use crate::{
    rig::{PATIENCE, Rig, soak},
    support::{Cable, Checker, eventually, servers},
};

/// How many cycles are looked at.
const PASSES: usize = 5;

/// A component whose rows go to a missing exchange unless their state says otherwise.
async fn misdirected() -> (Rig, Checker) {
    let mut rig = Rig::shared().await;
    let good = |event: &toa_outbox::Event| Ok(event.state.get_bool("good").unwrap_or(false));
    let bad = move |event: &toa_outbox::Event| Ok(!good(event)?);
    // An exchange with a name the broker reserves can never be declared.
    rig.component = Component::new(rig.namespace(), "pots")
        .labels([Label::new("good").when(good), Label::new("bad").when(bad)])
        .exchange(format!("{}.{{label}}", rig.namespace()));
    let good = Checker::bind(&rig.settings.amqp[0], &format!("{}.good", rig.namespace())).await;
    // Of another type than ours: a declaration of it is refused.
    rig.declare_topic(&format!("{}.bad", rig.namespace())).await;
    (rig, good)
}

/// CASE 12.
#[tokio::test]
async fn a_batch_of_rows_that_all_fail_delays_nothing_behind_it() {
    let (rig, good) = misdirected().await;
    let failing = i64::from(rig.settings.batch) * 5;
    rig.seed(failing, |row, index| {
        row.insert("lane", 0);
        row.insert("pending", 1_000 + index);
    })
    .await;
    rig.seed(1, |row, _| {
        row.insert("lane", 127);
        let event = doc! { "origin": null, "state": { "good": true } };
        row.insert("event", event);
    })
    .await;
    let pots = rig.open().await;
    let begun = Instant::now();
    good.wait_for(1, PATIENCE).await;
    tracing::info!(took = ?begun.elapsed(), "the good row behind {failing} bad ones");
    eventually(PATIENCE, "the good row is marked", async || {
        rig.count(doc! { "published": true }).await == 1
    })
    .await;
    assert_eq!(rig.count(doc! { "published": false }).await, failing as u64);
    pots.shutdown().await;
}

/// CASE 13: the confirm comes back only after several cycles.
#[tokio::test]
async fn a_row_whose_confirm_is_late_is_not_sent_again() {
    let cable = Cable::to(servers().await.rabbit.port()).await;
    let mut rig = Rig::shared().await;
    let created = rig.consume("created").await;
    rig.settings.amqp = vec![format!("amqp://127.0.0.1:{}", cable.port())];
    rig.seed(50, |_, _| {}).await;
    let pots = rig.open().await;
    created.wait_for(50, PATIENCE).await;
    // The session is up and its channel open; from here on nothing comes back.
    rig.settled().await;
    cable.swallow_back();
    rig.seed(50, |_, _| {}).await;
    for _ in 0..20 {
        pots.create(doc! {}, doc! {}).await.unwrap();
    }
    created.wait_for(120, PATIENCE).await;
    for _ in 0..8 {
        // A pass waits for what it publishes, and this one finds nothing to publish.
        assert_eq!(pots.pass().await.unwrap().found, 0);
        tokio::time::sleep(rig.settings.interval).await; // Time is the subject: cycles have to pass.
    }
    cable.release();
    rig.settled().await;
    pots.shutdown().await;
    assert_eq!(created.count(), 120);
}

/// CASE 14, and the query of a cycle on what is due: one scan of one index, nothing sorted or merged.
#[tokio::test]
async fn a_cycle_examines_what_it_returns_and_nothing_else() {
    let rig = Rig::shared().await;
    let pots = rig.open().await;
    pots.shutdown().await;

    let published = if soak() { 2_000_000 } else { 50_000 };
    rig.seed(published, |row, _| {
        row.insert("published", true);
        row.insert("publishedAt", bson::DateTime::now());
    })
    .await;
    let idle = rig.profile(PASSES).await;
    let examined: Vec<_> = idle
        .iter()
        .map(|query| query.get_i32("docsExamined").unwrap())
        .collect();
    // One query a cycle; the loop's own first cycle may fall among the passes.
    assert!(
        [PASSES, PASSES + 1].contains(&examined.len()),
        "{} queries",
        examined.len()
    );
    assert!(
        examined.iter().all(|examined| *examined == 0),
        "{examined:?}"
    );

    let due = if soak() { 1_000_000 } else { 100_000 };
    rig.seed(due, |_, _| {}).await;
    let plan = rig.explain().await;
    let stages = stages(&plan);
    assert!(stages.contains(&"IXSCAN".into()), "{plan}");
    for stage in ["SORT", "SORT_MERGE", "COLLSCAN", "OR"] {
        assert!(!stages.contains(&stage.into()), "{stage} in {plan}");
    }
    let stats = plan.get_document("executionStats").unwrap();
    let examined = |name: &str| f64::from(stats.get_i32(name).unwrap());
    let returned = examined("nReturned");
    assert_eq!(returned, due as f64);
    assert_eq!(examined("totalDocsExamined"), returned);
    assert!(
        examined("totalKeysExamined") <= returned + 2.0 * 128.0,
        "{stats}"
    );
    println!(
        "due {due}: {} keys, {} documents examined",
        examined("totalKeysExamined"),
        examined("totalDocsExamined"),
    );
}

fn stages(plan: &Document) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in plan {
        match value {
            bson::Bson::String(stage) if key == "stage" => found.push(stage.clone()),
            bson::Bson::Document(inner) => found.extend(stages(inner)),
            bson::Bson::Array(inner) => {
                found.extend(
                    inner
                        .iter()
                        .filter_map(bson::Bson::as_document)
                        .flat_map(stages),
                );
            }
            _ => {}
        }
    }
    found
}

/// A row that a crash left is published between `gap` and `gap + interval` after it was written.
#[tokio::test]
async fn a_row_left_by_a_crash_is_recovered_after_the_gap() {
    let mut rig = Rig::shared().await;
    rig.settings.interval = Duration::from_millis(500);
    let gap = rig.settings.gap();
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    let mut slack = Vec::new();
    for round in 1..=5 {
        let begun = Instant::now();
        rig.seed(1, |row, _| {
            let pending = row.get_i64("pending").unwrap() + gap.as_millis() as i64;
            row.insert("pending", pending);
        })
        .await;
        created.wait_for(round, PATIENCE).await;
        let took = begun.elapsed();
        assert!(
            took >= gap - Duration::from_millis(20),
            "{took:?} is before the gap"
        );
        slack.push(took - gap);
    }
    println!("recovered after the gap by {slack:?}");
    // One interval, and as much again for a machine that is busy with other tests.
    assert!(
        slack.iter().all(|slack| *slack < rig.settings.interval * 2),
        "{slack:?}"
    );
    pots.shutdown().await;
}

/// What this process knows it could not send goes out when the sink is back, not when it is due.
#[tokio::test]
async fn what_is_known_unsent_goes_out_at_once_when_the_broker_is_back() {
    let cable = Cable::to(servers().await.rabbit.port()).await;
    let mut rig = Rig::shared().await;
    let created = rig.consume("created").await;
    rig.settings.amqp = vec![format!("amqp://127.0.0.1:{}", cable.port())];
    rig.settings.interval = Duration::from_secs(20);
    cable.cut();
    let pots = rig.open().await;
    for _ in 0..100 {
        pots.create(doc! {}, doc! {}).await.unwrap();
    }
    cable.mend();
    let begun = Instant::now();
    created.wait_for(100, Duration::from_secs(15)).await;
    println!(
        "100 rows after {:?}, with a gap of {:?}",
        begun.elapsed(),
        rig.settings.gap()
    );
    rig.settled().await;
    pots.shutdown().await;
    assert_eq!(created.count(), 100);
}

/// Law 7: a backlog drains in time proportional to its size; here only that it drains whole, once, and
/// in one pass, with reads far smaller than it is.
#[tokio::test]
async fn a_backlog_drains_in_one_pass() {
    let mut rig = Rig::shared().await;
    rig.settings = Settings {
        batch: 50,
        interval: Duration::from_secs(60),
        ..rig.settings
    };
    let rows = 5_000;
    rig.seed(rows, |_, _| {}).await;
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    created.wait_for(rows as usize, PATIENCE).await;
    rig.settled().await;
    assert_eq!(pots.pass().await.unwrap().found, 0);
    pots.shutdown().await;
    assert_eq!(created.count(), rows as usize);
    let marked: Vec<Document> = rig
        .rows()
        .find(doc! { "publishedAt": { "$type": "date" } })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(marked.len(), rows as usize);
}
