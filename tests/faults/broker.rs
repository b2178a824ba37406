//! CASES 4, 22–25, 29: brokers that are away, silent, full, or not the ones one meant.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use bson::doc;
use futures::future::join_all;
use toa_outbox::Left;

use crate::{
    load::{Pulse, breakable, bulky, commit, dose, p50, seed, within},
    log::Log,
    rig::{PATIENCE, Rig, memory},
    support::{Cable, Checker, eventually, servers},
};

const MIB: u64 = 1024;

/// Where a cable begins, as a URI.
fn through(cable: &Cable) -> String {
    format!("amqp://guest:guest@127.0.0.1:{}/%2f", cable.port())
}

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
    let log = Log::read();
    let pulse = Pulse::start();
    let rounds = dose(10, 100);
    let rows = 60;
    for round in 0..rounds {
        // One row first, so that the connection the last round may have ended is there again.
        commit(&pots, 1, |_| bulky(100_000)).await;
        rig.settled().await;
        let written = commit(&pots, rows, |_| bulky(100_000));
        let fault = async {
            match round % 5 {
                0 | 1 => rabbit.close_all_connections().await,
                2 => {
                    cable.swallow_back();
                    let key = cable.port().to_string();
                    let silent = || {
                        log.ours(&key)
                            .iter()
                            .filter(|line| line.contains("stayed away"))
                            .count()
                    };
                    let before = silent();
                    eventually(PATIENCE, "a confirm stays away", async || silent() > before).await;
                    cable.release();
                }
                3 => {
                    cable.cut();
                    cable.mend();
                }
                _ => {
                    rabbit.stop().await;
                    rabbit.start_again().await;
                }
            }
        };
        tokio::join!(written, fault);
        rig.settled().await;
    }
    // Less than any wait of the sink, more than a busy machine takes for a thread's turn.
    assert!(
        pulse.longest() < Duration::from_millis(900),
        "{:?}",
        pulse.longest()
    );
    println!("longest pause {:?}", pulse.longest());
    assert_eq!(pots.shutdown().await, Left::default());
    taken.drain(&admin_uri).await;
    assert_eq!(taken.distinct(), rounds * (rows + 1));
    println!("delivered more than once: {}", taken.duplicates().len());
}

/// A port that nothing listens on any more.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Accepts connections and does `each` with them, for as long as the test process lives.
fn listen(each: impl Fn(std::net::TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(each));
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_cannot_be_used_is_named_with_the_cause() {
    let rabbit = servers().await.rabbit.port();
    let silent = {
        let kept = std::sync::Mutex::new(Vec::new());
        listen(move |stream| kept.lock().unwrap().push(stream))
    };
    // What a TLS server says to a client that does not speak TLS: alert, fatal, unexpected message.
    let tls = listen(|mut stream| {
        use std::io::{Read, Write};
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, 10]);
    });
    let closing = listen(drop);
    let cases = [
        (
            format!("127.0.0.1:{}/%2f", closed_port()),
            "amqp",
            "refused",
        ),
        (
            format!("127.0.0.1:{silent}/%2f"),
            "amqp",
            "no answer within 10 s",
        ),
        (
            format!("127.0.0.1:{silent}/%2f"),
            "amqps",
            "no answer within 10 s",
        ),
        (format!("127.0.0.1:{closing}/%2f"), "amqp", "connection"),
        (format!("127.0.0.1:{tls}/%2f"), "amqp", ""),
        (format!("127.0.0.1:{rabbit}/%2f"), "amqps", ""),
        (
            format!("127.0.0.1:{rabbit}/no_such_vhost"),
            "amqp",
            "vhost no_such_vhost not found",
        ),
        (format!("127.0.0.1:{rabbit}/%2f"), "amqp", "ACCESS_REFUSED"),
        ("no-such-host.invalid:5672/%2f".into(), "amqp", "lookup"),
    ];
    join_all(cases.map(|(place, scheme, cause)| unusable(place, scheme, cause))).await;
}

async fn unusable(place: String, scheme: &str, cause: &str) {
    let mut rig = Rig::shared().await;
    // The right name and the wrong word, except where the vhost is what is wrong.
    let word = if place.ends_with("vhost") {
        "guest"
    } else {
        "s3cr3t-w0rd"
    };
    rig.settings.amqp = vec![format!("{scheme}://guest:{word}@{place}")];
    let log = Log::read();
    let pots = rig.open().await;
    commit(&pots, 3, |_| doc! {}).await;
    let key = format!("{scheme}://{}", place.replace("%2f", "/"));
    let lines = || log.ours(&key);
    eventually(Duration::from_secs(15), &key, async || {
        lines()
            .iter()
            .any(|line| line.contains("cannot connect") && line.contains(cause))
    })
    .await;
    println!("{}", lines()[0]);
    let begun = Instant::now();
    let left = pots.shutdown().await;
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(left.unsent, 3, "{left:?}");
    assert_eq!(rig.count(doc! { "published": false }).await, 3);
    let told = log.all("s3cr3t-w0rd");
    assert!(told.is_empty(), "{told:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_was_away_gets_everything_within_a_minute() {
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    let taken = Checker::queue(&rabbit.uri(), &rig.exchange("created")).await;
    let pots = rig.open().await;
    let usual = p50(commit(&pots, 2000, |_| doc! {}).await);
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
        times.extend(commit(&pots, 200, |_| doc! {}).await);
    }
    let (written, meanwhile) = (times.len(), p50(times));
    let grown = memory().saturating_sub(before) / MIB;
    let lines = log.ours(&rabbit.port().to_string()).len() + log.ours(rig.namespace()).len();
    rabbit.start_again().await;
    let begun = Instant::now();
    // A minute for what CASE 24 asks, and the time a backlog needs for what CASE 4 adds to it.
    let limit = Duration::from_secs(60) + Duration::from_millis(written as u64);
    within(limit, "all are marked", async {
        while rig.count(doc! { "published": false }).await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_blocks_holds_nothing_up_and_gets_everything_later() {
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    rig.settings.grace = Duration::from_secs(3);
    rig.settings.confirm_timeout = Duration::from_secs(2);
    let taken = Checker::queue(&rabbit.uri(), &rig.exchange("created")).await;
    let pots = rig.open().await;
    commit(&pots, 10, |_| doc! {}).await;
    rig.settled().await;

    let log = Log::read();
    let key = rabbit.port().to_string();
    rabbit.block().await;
    commit(&pots, 100, |_| bulky(1000)).await;
    eventually(PATIENCE, "it is told", async || {
        log.ours(&key)
            .iter()
            .any(|line| line.contains("blocks the connection"))
    })
    .await;
    let before = memory();
    let times = commit(&pots, 6000, |_| bulky(10_000)).await;
    let grown = memory().saturating_sub(before) / MIB;
    println!("p50 {:?}, {grown} MiB more", p50(times));
    // Nobody lost patience: a blocked connection waits. What is in flight is at most 1000 rows.
    assert!(
        !log.ours(&key)
            .iter()
            .any(|line| line.contains("stayed away"))
    );
    assert!(grown < 60, "{grown} MiB more");
    rabbit.unblock().await;
    rig.settled().await;

    rabbit.block().await;
    commit(&pots, 1000, |_| bulky(1000)).await;
    let begun = Instant::now();
    let left = pots.shutdown().await;
    println!("{left:?} after {:?}", begun.elapsed());
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    rabbit.unblock().await;
    let waiting = rig.count(doc! { "published": false }).await;
    assert!(waiting > 0);
    let pots = rig.open().await;
    rig.settled().await;
    pots.shutdown().await;
    taken.drain(&rabbit.uri()).await;
    assert_eq!(taken.distinct(), 10 + 100 + 6000 + 1000);
    println!(
        "delivered more than once: {}, in flight at the cut {waiting}",
        taken.duplicates().len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_link_is_noticed() {
    let mut rig = Rig::shared().await;
    let cable = Cable::to(servers().await.rabbit.port()).await;
    let direct = rig.settings.amqp[0].clone();
    let taken = Checker::bind(&direct, &rig.exchange("created")).await;
    rig.settings.amqp = vec![through(&cable)];
    let pots = rig.open().await;
    commit(&pots, 10, |_| doc! {}).await;
    rig.settled().await;
    let log = Log::read();
    cable.blackhole();
    let begun = Instant::now();
    commit(&pots, 10, |_| doc! {}).await;
    let key = cable.port().to_string();
    eventually(
        Duration::from_secs(27),
        "the link is given up",
        async || {
            log.ours(&key)
                .iter()
                .any(|line| line.contains("lost the connection"))
        },
    )
    .await;
    println!("noticed after {:?}: {}", begun.elapsed(), log.ours(&key)[0]);
    cable.mend();
    taken.wait_for(20, PATIENCE).await;
    rig.settled().await;
    pots.shutdown().await;
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
