//! CASES 23 and 25: connections that cannot be made, are blocked, or are there and say nothing.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use bson::doc;
use futures::future::join_all;
use toa_outbox::{Amqp, Outbox};

use crate::{
    load::{breakable, bulky, commit, is_alone, p50, through},
    log::Log,
    rig::{PATIENCE, Rig, memory},
    support::{Cable, Checker, eventually, servers},
};

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
        (
            format!("127.0.0.1:{closing}/%2f"),
            "amqp",
            "connection aborted",
        ),
        (
            format!("127.0.0.1:{tls}/%2f"),
            "amqp",
            "speaks neither AMQP",
        ),
        (
            format!("127.0.0.1:{rabbit}/%2f"),
            "amqps",
            "speaks neither AMQP",
        ),
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
async fn a_broker_that_blocks_holds_nothing_up_and_gets_everything_later() {
    if !is_alone("link::a_broker_that_blocks_holds_nothing_up_and_gets_everything_later") {
        return;
    }
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    rig.settings.grace = Duration::from_secs(3);
    rig.settings.confirm_timeout = Duration::from_secs(2);
    rig.settings.inflight = 200;
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
    let times = commit(&pots, 2500, |_| bulky(20_000)).await;
    let grown = memory().saturating_sub(before) / 1024;
    println!("p50 {:?}, {grown} MiB more", p50(times));
    // Nobody lost patience: a blocked connection waits. What is in flight is at most 200 rows, 4 MB.
    assert!(
        !log.ours(&key)
            .iter()
            .any(|line| line.contains("stayed away"))
    );
    assert!(grown < 30, "{grown} MiB more");
    rabbit.unblock().await;
    rig.settled().await;

    rabbit.block().await;
    commit(&pots, 1000, |_| bulky(1000)).await;
    let begun = Instant::now();
    let left = pots.shutdown().await;
    println!("{left:?} after {:?}", begun.elapsed());
    // What was on its way is told as such.
    assert!(left.in_flight > 0, "{left:?}");
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
    assert_eq!(taken.distinct(), 10 + 100 + 2500 + 1000);
}

/// What a shutdown gave up does not leave when nobody expects it any more: the broker reads nothing for
/// a while, and the system still holds what was given to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cut_does_not_leave_later() {
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    rig.settings.grace = Duration::from_secs(1);
    let taken = Checker::queue(&rabbit.uri(), &rig.exchange("created")).await;
    let pots = rig.open().await;
    commit(&pots, 1, |_| doc! {}).await;
    rig.settled().await;
    rabbit.pause();
    commit(&pots, 200, |_| bulky(10_000)).await;
    let left = pots.shutdown().await;
    rabbit.resume();
    let pots = rig.open().await;
    rig.settled().await;
    pots.shutdown().await;
    taken.drain(&rabbit.uri()).await;
    assert_eq!(taken.distinct(), 201);
    let late = taken.duplicates().len();
    println!("left after the cut: {late} of {}", left.in_flight);
    // What the broker's machine had received before the cut cannot be taken back.
    assert!(late < left.in_flight / 5, "{late} of {}", left.in_flight);
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

/// The broker's side of a channel hangs while the connection lives: neither a confirm nor the answer to
/// a declaration ever comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_hangs_holds_up_nothing_for_longer_than_its_time() {
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    let mut other = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    rig.settings.confirm_timeout = Duration::from_secs(2);
    other.settings.amqp = vec![rabbit.uri()];
    let (taken, others) = (rig.consume("created").await, other.consume("created").await);
    let sink = Amqp::start(&rig.settings).unwrap();
    let open = async |rig: &Rig| {
        let (component, settings) = (rig.component.clone(), rig.settings.clone());
        let outbox = Outbox::open_with(&rig.database, component, settings, &sink);
        outbox.await.unwrap()
    };
    let (pots, cups) = (open(&rig).await, open(&other).await);
    commit(&pots, 10, |_| doc! {}).await;
    rig.settled().await;

    let log = Log::read();
    let suspend = "[sys:suspend(Channel) || Channel <- rabbit_channel:list_local()], ok.";
    rabbit.ctl(&["eval", suspend]).await.unwrap();
    // The checkers' channels hang as well; they read what there is when all is well again.
    tokio::join!(
        commit(&pots, 50, |_| doc! {}),
        commit(&cups, 50, |_| doc! {})
    );
    rig.settled().await;
    other.settled().await;
    let key = rabbit.port().to_string();
    assert!(
        log.ours(&key)
            .iter()
            .any(|line| line.contains("stayed away"))
    );
    assert!(
        !log.ours(&key)
            .iter()
            .any(|line| line.contains("lost the connection"))
    );
    assert!(
        log.ours(&other.exchange("created"))
            .iter()
            .any(|line| line.contains("no answer"))
    );
    let resume = "[sys:resume(Channel) || Channel <- rabbit_channel:list_local()], ok.";
    rabbit.ctl(&["eval", resume]).await.unwrap();
    taken.wait_for(60, PATIENCE).await;
    others.wait_for(50, PATIENCE).await;
    tokio::join!(pots.shutdown(), cups.shutdown());
}
