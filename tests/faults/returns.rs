//! CASES 26 and 28: what a broker returns or refuses stays, and nothing else does.

use std::time::Duration;

use bson::{Document, doc};
use toa_outbox::{Amqp, Label, Outbox};

use crate::{
    load::{alone, breakable, commit, dose, seed},
    log::Log,
    rig::{PATIENCE, Rig, memory},
    support::{Admin, Checker, eventually},
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

/// CASE 26: half of what is due has a queue, and half has none; 5 000 messages on one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_what_is_returned_stays() {
    let (swept, at_once) = (4_000, 1_000);
    let half = (swept + at_once) / 2;
    for _ in 0..dose(5, 20) {
        let mut rig = Rig::shared().await;
        address(&mut rig, &["home", "nowhere"]);
        rig.component = rig.component.clone().mandatory(true);
        let home = rig.consume("home").await;
        let interleaved = |number: usize| to(["home", "nowhere"][number % 2]);
        seed(&rig, swept, interleaved).await;
        let pots = rig.open().await;
        commit(&pots, at_once, interleaved).await;
        home.wait_for(half, PATIENCE).await;
        let sent = |label: &'static str| {
            let rig = &rig;
            async move {
                rig.count(doc! { "published": true, "event.state.to": label })
                    .await
            }
        };
        eventually(PATIENCE, "what arrived is marked", async || {
            sent("home").await == half as u64
        })
        .await;
        eventually(PATIENCE, "everything has been tried", async || {
            pots.pass().await.unwrap().found == 0
        })
        .await;
        let kept = doc! { "published": false, "event.state.to": "nowhere" };
        assert_eq!(rig.count(kept).await, half as u64);
        pots.shutdown().await;
        assert_eq!(home.count(), half);
    }
}

/// CASE 26, the other half: a fanout without a queue takes what is not mandatory.
#[tokio::test]
async fn what_is_not_mandatory_is_sent_to_nobody() {
    let mut rig = Rig::shared().await;
    address(&mut rig, &["nowhere"]);
    seed(&rig, 100, |_| to("nowhere")).await;
    let pots = rig.open().await;
    rig.settled().await;
    pots.shutdown().await;
}

/// CASE 28: one of two queues of a fanout refuses.
#[tokio::test]
async fn what_a_queue_refuses_is_repeated_ever_more_seldom() {
    let rig = Rig::shared().await;
    let admin = Admin::of(&rig.settings.amqp[0]).await;
    let healthy = rig.consume("created").await;
    let full = admin.full_queue(&rig.exchange("created"), 1).await;
    let pots = rig.open().await;
    commit(&pots, 2, |_| doc! {}).await;
    eventually(
        PATIENCE,
        "one of the two is repeated four times",
        async || healthy.duplicates().len() >= 4,
    )
    .await;
    let repeated = healthy.duplicates();
    assert!(
        repeated
            .iter()
            .all(|message| message.message_id == repeated[0].message_id)
    );
    let waits: Vec<Duration> = repeated
        .windows(2)
        .map(|two| two[1].at - two[0].at)
        .collect();
    // Half an interval, doubled each time, and then the next tick: by now at least four intervals.
    assert!(
        waits[waits.len() - 1] >= rig.settings.interval * 4,
        "{waits:?}"
    );
    admin.delete_queue(&full).await;
    rig.settled().await;
    pots.shutdown().await;
}

/// CASE 30: errors leave nothing behind, neither channels nor memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_with_some_errors_leave_nothing_behind() {
    let _alone = alone().await;
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    address(&mut rig, &["home", "wrong"]);
    // Of another type than ours: every declaration of it closes a channel.
    rig.declare_topic(&rig.exchange("wrong")).await;
    let queue = Checker::queue(&rabbit.uri(), &rig.exchange("home")).await;
    let (rows, wrong) = (dose(20_000, 1_000_000), dose(200, 10_000));
    let chunk = 20_000;
    let state = |number: usize| to(["home", "wrong"][usize::from(number % 100 == 99)]);
    let pots = rig.open().await;
    let mut most = Vec::new();
    for _ in 0..rows / chunk {
        seed(&rig, chunk, state).await;
        pots.nudge();
        eventually(PATIENCE * 2, "only what is wrong is left", async || {
            rig.count(doc! { "published": false, "event.state.to": "home" })
                .await
                == 0
        })
        .await;
        most.push(memory());
    }
    let channels = rabbit
        .ctl(&["list_channels", "pid", "--quiet"])
        .await
        .unwrap();
    println!(
        "{rows} rows: {} channels, memory in KiB {most:?}",
        channels.lines().count()
    );
    // Ours: main, control, and the one of suspects at most; the checker's, and a header.
    assert!(channels.lines().count() <= 6, "{channels}");
    assert_eq!(rig.count(doc! { "published": false }).await, wrong);
    pots.shutdown().await;
    queue.drain(&rabbit.uri()).await;
    assert_eq!(queue.distinct(), rows - wrong as usize);
}
