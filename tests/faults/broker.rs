//! CASES 4, 22, 24, 29: brokers that go away and come back.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use bson::doc;
use toa_outbox::Left;

use crate::{
    load::{Pulse, breakable, bulky, commit, dose, is_alone, p50, seed, through},
    log::Log,
    rig::{PATIENCE, Rig, memory},
    support::{Cable, Checker, eventually},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_publication_resolves_whatever_ends_it() {
    let rabbit = breakable().await;
    let cable = Cable::to(rabbit.port()).await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![through(&cable)];
    rig.settings.confirm_timeout = Duration::from_secs(1);
    let admin_uri = rabbit.uri();
    let taken = Checker::queue(&admin_uri, &rig.exchange("created")).await;
    let pots = rig.open().await;
    let pulse = Pulse::start();
    let rounds = dose(10, 100);
    let (least, most) = (60, 150);
    let mut rows = 0;
    let port = cable.port().to_string();
    let marked = async || {
        eventually(3 * PATIENCE, "every row is marked", async || {
            rig.count(doc! { "published": false }).await == 0
        })
        .await;
    };
    for round in 0..rounds {
        // What is marked now has come by a connection that the round before did not end.
        rows += commit(&pots, 1, |_| doc! {}).await.len();
        marked().await;
        let log = Log::read();
        let is_over = AtomicBool::new(false);
        let written = async {
            let mut count = 0;
            while count < least || (count < most && !is_over.load(Relaxed)) {
                count += commit(&pots, 10, |_| bulky(100_000)).await.len();
            }
            count
        };
        let fault = async {
            match round % 5 {
                0 | 1 => rabbit.close_all_connections().await,
                2 => {
                    cable.swallow_back();
                    let is_silence = |line: &String| line.contains("stayed away");
                    eventually(PATIENCE, "the silence is noticed", async || {
                        log.ours(&port).iter().any(is_silence)
                    })
                    .await;
                    cable.release();
                }
                3 => {
                    tokio::task::block_in_place(|| cable.cut());
                    cable.mend();
                }
                _ => {
                    rabbit.stop().await;
                    rabbit.start_again().await;
                }
            }
        };
        let fault = async {
            fault.await;
            is_over.store(true, Relaxed);
        };
        rows += tokio::join!(written, fault).0;
        marked().await;
    }
    let (runtime, machine) = pulse.longest();
    println!("{rows} rows, longest pause {runtime:?}, of the machine {machine:?}");
    // Nothing that waits for a broker may wait on the runtime; an unoptimised build is busy for a while.
    assert!(runtime < machine + Duration::from_secs(1), "{runtime:?}");
    assert_eq!(pots.shutdown().await, Left::default());
    taken.drain(&admin_uri).await;
    assert_eq!(taken.distinct(), rows);
    println!("delivered more than once: {}", taken.duplicates().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_was_away_gets_everything_within_a_minute() {
    if !is_alone("broker::a_broker_that_was_away_gets_everything_within_a_minute") {
        return;
    }
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    let taken = Checker::queue(&rabbit.uri(), &rig.exchange("created")).await;
    let pots = rig.open().await;
    let usual = p50(commit(&pots, 2000, |_| bulky(8000)).await);
    rig.settled().await;

    let log = Log::read();
    rabbit.stop().await;
    let before = memory();
    let away = Instant::now() + Duration::from_secs(dose(20, 300));
    seed(&rig, 1000, |_| doc! {}).await;
    let mut times = Vec::new();
    // Time is the subject: 500 changes a second, or what this machine can do.
    let mut pace = tokio::time::interval(Duration::from_millis(400));
    while Instant::now() < away {
        pace.tick().await;
        times.extend(commit(&pots, 200, |_| bulky(8000)).await);
    }
    let (written, meanwhile) = (times.len(), p50(times));
    let grown = memory().saturating_sub(before) / 1024;
    let lines = log.ours(&rabbit.port().to_string()).len() + log.ours(rig.namespace()).len();
    rabbit.start_again().await;
    let begun = Instant::now();
    // A minute for what CASE 24 asks, and the time a backlog needs for what CASE 4 adds to it.
    let limit = Duration::from_secs(60) + Duration::from_millis(written as u64);
    eventually(limit, "all are marked", async || {
        rig.count(doc! { "published": false }).await == 0
    })
    .await;
    println!(
        "{written} written; p50 {usual:?}, {meanwhile:?} without a broker; {grown} MiB more; {lines} lines; caught up in {:?}",
        begun.elapsed()
    );
    assert!(
        meanwhile < usual * 2,
        "p50 was {usual:?} and is {meanwhile:?}"
    );
    assert!(grown < 60, "{grown} MiB more");
    assert!(lines < 20, "{lines} lines");
    pots.shutdown().await;
    taken.drain(&rabbit.uri()).await;
    assert_eq!(taken.distinct(), 3000 + written);
}

#[tokio::test]
async fn the_next_node_of_the_list_takes_over() {
    let first = breakable().await;
    let mut rig = Rig::shared().await;
    let second = rig.settings.amqp[0].clone();
    rig.settings.amqp = vec![first.uri(), second.clone()];
    let (on_first, on_second) = (
        rig.consume("created").await,
        Checker::bind(&second, &rig.exchange("created")).await,
    );
    let pots = rig.open().await;
    commit(&pots, 10, |_| doc! {}).await;
    on_first.wait_for(10, PATIENCE).await;
    rig.settled().await;
    first.stop().await;
    seed(&rig, 1000, |_| doc! {}).await;
    commit(&pots, 1000, |_| doc! {}).await;
    on_second.wait_for(2000, PATIENCE).await;
    rig.settled().await;
    pots.shutdown().await;
    first.start_again().await;
}

#[tokio::test]
async fn what_was_confirmed_survives_a_restart_of_the_broker() {
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    let taken = Checker::queue(&rabbit.uri(), &rig.exchange("created")).await;
    let pots = rig.open().await;
    commit(&pots, 100, |_| doc! {}).await;
    rig.settled().await;
    assert_eq!(pots.shutdown().await, Left::default());
    rabbit.kill().await;
    rabbit.start_again().await;
    taken.drain(&rabbit.uri()).await;
    assert_eq!((taken.distinct(), taken.count()), (100, 100));
}
