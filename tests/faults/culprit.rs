//! CASE 27: one exchange or message that the broker cannot take delays nothing but itself.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bson::{Document, doc};
use toa_outbox::{Amqp, Component, Label, Outbox};

use crate::{
    load::{bulky, commit, seed, through},
    log::Log,
    rig::{PATIENCE, Rig},
    support::{Admin, Cable, Checker, Rabbit, eventually, servers},
};

/// A component with a label `good` and a label `bad`, told by the state's `to`.
fn addressed(rig: &Rig) -> Component {
    let label = |name: &'static str| {
        Label::new(name).when(move |event| Ok(event.state.get_str("to")? == name))
    };
    rig.bare().labels([label("good"), label("bad")])
}

fn to(label: &str, size: usize) -> Document {
    let mut state = bulky(size);
    state.insert("to", label);
    state
}

/// The most any one message was delivered.
fn most_often(checker: &Checker) -> usize {
    let mut times = HashMap::<_, usize>::new();
    for delivery in checker.received() {
        *times.entry(delivery.identity()).or_default() += 1;
    }
    times.into_values().max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_exchange_delays_nothing_but_itself() {
    let mut rig = Rig::shared().await;
    let direct = rig.settings.amqp[0].clone();
    let cable = Cable::to(servers().await.rabbit.port()).await;
    rig.settings.amqp = vec![format!("amqp://guest:guest@127.0.0.1:{}/%2f", cable.port())];
    rig.component = addressed(&rig);
    let admin = Admin::of(&direct).await;
    let (good, bad) = (rig.consume("good").await, rig.consume("bad").await);
    let pots = rig.open().await;
    commit(&pots, 2, |number| to(["good", "bad"][number], 10)).await;
    rig.settled().await;
    drop(bad);
    admin.delete(&rig.exchange("bad")).await;

    let log = Log::read();
    let begun = Instant::now();
    let rows = 600;
    seed(&rig, rows, |number| to(["good", "bad"][number % 2], 100)).await;
    commit(&pots, rows, |number| to(["good", "bad"][number % 2], 100)).await;
    // An innocent is struck at most once, and a channel is opened again within a second.
    good.wait_for(1 + rows, Duration::from_secs(10)).await;
    assert!(most_often(&good) <= 2, "{} times", most_often(&good));
    println!(
        "innocents delivered twice: {} of {rows}",
        good.duplicates().len()
    );
    let waiting = doc! { "published": false, "event.state.to": "bad" };
    assert_eq!(rig.count(waiting).await, rows as u64);

    let bad = rig.consume("bad").await;
    bad.wait_for(rows, PATIENCE).await;
    rig.settled().await;
    assert!(bad.duplicates().is_empty());
    let closed = log
        .all(&rig.exchange("bad"))
        .iter()
        .filter(|line| line.contains("Channel closed"))
        .count();
    // One of each kind a second: what everything goes on, and what suspects go on.
    let allowed = 2 + 2 * begun.elapsed().as_secs() as usize;
    assert!(
        closed <= allowed,
        "{closed} channels in {:?}",
        begun.elapsed()
    );
    let lost = log.ours(&cable.port().to_string());
    assert!(lost.is_empty(), "{lost:#?}");
    println!("channels closed: {closed} in {:?}", begun.elapsed());
    pots.shutdown().await;
}

/// So much waits in the client that it confirms the close of a channel ahead of what it still writes on
/// it, which the broker answers by closing the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_message_delays_nothing_but_itself() {
    let rabbit = Rabbit::start_with(&["max_message_size = 300000"]).await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    rig.component = addressed(&rig);
    let (good, bad) = (rig.consume("good").await, rig.consume("bad").await);
    let pots = rig.open().await;
    commit(&pots, 2, |number| to(["good", "bad"][number], 10)).await;
    rig.settled().await;

    let log = Log::read();
    let key = rabbit.port().to_string();
    rabbit.pause();
    let (rows, culprits) = (300, 3);
    commit(&pots, rows, |number| match number {
        5 | 10 | 15 => to("bad", 400_000),
        _ => to("good", 100_000),
    })
    .await;
    rabbit.resume();
    let begun = Instant::now();
    good.wait_for(1 + rows - culprits, PATIENCE).await;
    println!(
        "goods {:?}, twice {}, at most {} times, {:#?}",
        begun.elapsed(),
        good.duplicates().len(),
        most_often(&good),
        log.ours(&key),
    );
    assert!(
        most_often(&good) <= 1 + culprits,
        "{} times",
        most_often(&good)
    );

    // New ones are not disturbed by the attempts that go on.
    let strikes = log.all("is larger than configured max size").len();
    rig.settled_but(culprits as u64).await;
    // Whatever was repeated is in the queue ahead of this one.
    commit(&pots, 1, |_| to("good", 10)).await;
    good.wait_for(2 + rows - culprits, PATIENCE).await;
    let before = good.duplicates().len();
    commit(&pots, 1000, |_| to("good", 10)).await;
    good.wait_for(1002 + rows - culprits, PATIENCE).await;
    rig.settled_but(culprits as u64).await;
    assert_eq!(good.duplicates().len(), before);
    println!(
        "{strikes}, {:?}",
        log.all("is larger than configured max size").len()
    );
    assert_eq!(bad.count(), 1);
    pots.shutdown().await;
}

/// The headers of a message are one frame, which cannot be larger than what was agreed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_fit_no_frame_do_not_cost_the_connection() {
    let cable = Cable::to(servers().await.rabbit.port()).await;
    let (mut rig, mut other) = (Rig::shared().await, Rig::shared().await);
    rig.settings.amqp = vec![through(&cable)];
    rig.component = rig.component.clone().header("x", "y".repeat(200_000));
    other.component = other.component.clone().header("x", "y".repeat(128_000));
    let taken = other.consume("created").await;
    let log = Log::read();
    let sink = Amqp::start(&rig.settings).unwrap();
    let open = async |rig: &Rig| {
        let (component, settings) = (rig.component.clone(), rig.settings.clone());
        let outbox = Outbox::open_with(&rig.database, component, settings, &sink);
        outbox.await.unwrap()
    };
    let (pots, cups) = (open(&rig).await, open(&other).await);
    sink.up().await;
    commit(&pots, 3, |_| doc! {}).await;
    commit(&cups, 20, |_| doc! {}).await;
    taken.wait_for(20, PATIENCE).await;
    other.settled().await;
    eventually(PATIENCE, "the cause is told", async || {
        !log.ours("its headers have 200007 bytes").is_empty()
    })
    .await;
    assert!(taken.duplicates().is_empty());
    let lost = log.ours(&cable.port().to_string());
    assert!(
        !lost.iter().any(|line| line.contains("lost the connection")),
        "{lost:#?}"
    );
    assert_eq!(rig.count(doc! { "published": false }).await, 3);
    tokio::join!(pots.shutdown(), cups.shutdown());
}
