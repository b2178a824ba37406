//! CASES 26 and 28: what a broker returns or refuses stays, and nothing else does.

use std::{collections::HashSet, time::Duration};

use bson::{Document, doc};
use toa_outbox::{Amqp, Label, Outbox};

use crate::{
    admin::Admin,
    load::{breakable, commit, dose, is_alone, seed},
    log::Log,
    rig::{PATIENCE, Rig, memory},
    support::{Checker, eventually},
};

/// Makes the component have a label for each of these, told by the state's `to`.
fn address(rig: &mut Rig, labels: &[&'static str]) {
    let label = |&name: &&'static str| {
        Label::new(name).when(move |event| Ok(event.state.get_str("to")? == name))
    };
    rig.component = rig
        .bare()
        .labels(labels.iter().map(label).collect::<Vec<_>>());
}

fn to(label: &str) -> Document {
    doc! { "to": label }
}

/// What was set apart with a deleted exchange is judged like anything else when it is back.
#[tokio::test]
async fn a_message_that_was_set_apart_and_is_returned_stays() {
    let mut rig = Rig::shared().await;
    address(&mut rig, &["home"]);
    rig.component = rig.component.clone().mandatory(true);
    let admin = Admin::of(&rig.settings.amqp[0]).await;
    let home = rig.exchange("home");
    let log = Log::read();

    let first = rig.consume("home").await;
    let pots = rig.open().await;
    commit(&pots, 1, |_| to("home")).await;
    first.wait_for(1, PATIENCE).await;
    rig.settled().await;
    drop(first);

    admin.delete(&home).await;
    commit(&pots, 300, |_| to("home")).await;
    eventually(PATIENCE, "the exchange is missed", async || {
        !log.ours(&format!("no exchange '{home}'")).is_empty()
    })
    .await;
    admin.declare(&home).await;
    eventually(PATIENCE, "a message is returned", async || {
        !log.ours("(returned)").is_empty()
    })
    .await;
    // A pass tries whatever is not on its way already.
    for _ in 0..3 {
        pots.pass().await.unwrap();
    }
    assert_eq!(rig.count(doc! { "published": true }).await, 1);
    let home = rig.consume("home").await;
    rig.settled().await;
    assert_eq!(home.distinct(), 300);
    pots.shutdown().await;
}

/// Two outboxes on one connection publish from different threads; each row has its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn outboxes_that_share_a_connection_do_not_share_answers() {
    let rig = Rig::shared().await;
    let mut refused = Rig::shared().await;
    refused.component = refused.bare().labels([Label::created()]);
    let sink = Amqp::start(&rig.settings).unwrap();
    let admin = Admin::of(&rig.settings.amqp[0]).await;
    let full = admin.full_queue(&refused.exchange("created"), 10).await;
    let taken = rig.consume("created").await;

    let open = async |rig: &Rig| {
        let (component, settings) = (rig.component.clone(), rig.settings.clone());
        Outbox::open_with(&rig.database, component, settings, &sink)
            .await
            .unwrap()
    };
    let (pots, others) = (open(&rig).await, open(&refused).await);
    let rows = dose(4000, 50_000);
    let state = |number: usize| doc! { "number": number as i64 };
    tokio::join!(seed(&rig, rows, state), seed(&refused, rows, state));
    pots.nudge();
    others.nudge();
    taken.wait_for(rows, PATIENCE).await;
    rig.settled().await;

    let sent = refused.count(doc! { "published": true }).await;
    assert_eq!(sent, u64::from(admin.depth(&full).await));
    pots.shutdown().await;
    others.shutdown().await;
}

/// One outbox for two components' worth of messages: a label somebody takes and one nobody does.
async fn interleaved(rows: usize, is_pumped: bool) {
    let mut rig = Rig::shared().await;
    address(&mut rig, &["home", "lost"]);
    rig.component = rig.component.clone().mandatory(true);
    let home = rig.consume("home").await;
    let pots = rig.open().await;
    let state = |number: usize| to(["home", "lost"][number % 2]);
    if is_pumped {
        seed(&rig, rows, state).await;
        pots.nudge();
    } else {
        commit(&pots, rows, state).await;
    }
    let sent = doc! { "published": true };
    eventually(PATIENCE, "what is taken is marked", async || {
        rig.count(sent.clone()).await >= rows as u64 / 2
    })
    .await;
    // Once more for whoever was returned.
    pots.pass().await.unwrap();
    let lost = doc! { "published": false, "event.state.to": "lost" };
    assert_eq!(rig.count(sent.clone()).await, rows as u64 / 2);
    assert_eq!(rig.count(lost).await, rows as u64 / 2);
    assert_eq!(rig.ids(sent).await, ids(&home));
    assert!(home.duplicates().is_empty());
    assert!(
        home.received()
            .iter()
            .all(|one| *one.properties.delivery_mode() == Some(2))
    );
    pots.shutdown().await;
}

fn ids(checker: &Checker) -> HashSet<String> {
    checker
        .received()
        .into_iter()
        .map(|delivery| delivery.message_id)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_what_is_returned_stays_pumped() {
    for _ in 0..dose(3, 20) {
        interleaved(dose(2000, 5000), true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_what_is_returned_stays_published_at_once() {
    for _ in 0..dose(2, 20) {
        interleaved(dose(1000, 5000), false).await;
    }
}

#[tokio::test]
async fn without_mandatory_an_exchange_without_a_queue_accepts() {
    let rig = Rig::shared().await;
    let pots = rig.open().await;
    commit(&pots, 10, |_| doc! {}).await;
    rig.settled().await;
    pots.shutdown().await;
}

/// A full queue beside a healthy one: the healthy one gets what the other refuses, again and again and
/// ever more seldom, under the same id.
#[tokio::test]
async fn what_a_queue_refuses_is_repeated_ever_more_seldom() {
    let rig = Rig::shared().await;
    let admin = Admin::of(&rig.settings.amqp[0]).await;
    let full = admin.full_queue(&rig.exchange("created"), 1).await;
    let healthy = rig.consume("created").await;
    let pots = rig.open().await;
    commit(&pots, 1, |_| doc! {}).await;
    rig.settled().await;
    healthy.wait_for(1, PATIENCE).await;
    commit(&pots, 1, |_| doc! {}).await;
    eventually(PATIENCE, "it is repeated", async || healthy.count() >= 7).await;
    let at: Vec<_> = healthy.received()[1..7]
        .iter()
        .map(|delivery| delivery.at)
        .collect();
    let waits: Vec<Duration> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // From half an interval, doubling; the load of the machine only makes it longer.
    for (number, wait) in waits.iter().enumerate() {
        let least = rig.settings.interval / 2 * (1 << number);
        assert!(*wait >= least.mul_f64(0.9), "{number}: {waits:?}");
    }
    assert_eq!(healthy.distinct(), 2);
    assert_eq!(rig.count(doc! { "published": false }).await, 1);
    admin.delete_queue(&full).await;
    rig.settled().await;
    pots.shutdown().await;
}

/// CASE 30: errors of one kind after the other cost neither channels nor memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_leave_nothing_behind() {
    if !is_alone("returns::errors_leave_nothing_behind") {
        return;
    }
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    address(&mut rig, &["home", "full"]);
    let admin = Admin::of(&rabbit.uri()).await;
    admin.full_queue(&rig.exchange("full"), 1).await;
    let home = Checker::queue(&rabbit.uri(), &rig.exchange("home")).await;
    let pots = rig.open().await;
    let state = |number: usize| to(if number % 100 == 99 { "full" } else { "home" });
    let (parts, rows) = (10, dose(2000, 20_000));
    let mut measured = Vec::new();
    for part in 1..=parts {
        seed(&rig, rows, state).await;
        pots.nudge();
        let sent = doc! { "published": true, "event.state.to": "home" };
        let expected = (rows * part * 99 / 100) as u64;
        eventually(2 * PATIENCE, "the good ones are marked", async || {
            rig.count(sent.clone()).await == expected
        })
        .await;
        let listed = rabbit
            .ctl(&["list_channels", "pid", "--no-table-headers"])
            .await;
        measured.push((listed.unwrap().lines().count(), memory() / 1024));
    }
    println!("(channels, MiB): {measured:?}");
    // Ours are at most four; one is the administrator's.
    assert!(
        measured.iter().all(|&(channels, _)| channels <= 5),
        "{measured:?}"
    );
    let grown = measured[parts - 1].1.saturating_sub(measured[2].1);
    assert!(grown < 40, "{measured:?}");
    pots.shutdown().await;
    home.drain(&rabbit.uri()).await;
    assert_eq!(home.distinct(), rows * parts * 99 / 100);
}
