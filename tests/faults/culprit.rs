//! CASE 27: one exchange or message that the broker cannot take delays nothing but itself.

use std::time::Duration;

use bson::doc;
use toa_outbox::{Label, Outbox};

use crate::{
    admin::Admin,
    load::{bulky, commit, seed},
    log::Log,
    rig::{PATIENCE, Rig},
    support::{Cable, servers},
};

fn addressed(rig: &Rig) -> toa_outbox::Component {
    let label = |name: &'static str| {
        Label::new(name).when(move |event| Ok(event.state.get_str("to")? == name))
    };
    rig.bare().labels([label("good"), label("bad")])
}

async fn deleted_exchange(size: usize) {
    let mut rig = Rig::shared().await;
    let direct = rig.settings.amqp[0].clone();
    let cable = Cable::to(servers().await.rabbit.port()).await;
    rig.settings.amqp = vec![format!("amqp://guest:guest@127.0.0.1:{}/%2f", cable.port())];
    rig.component = addressed(&rig);
    let admin = Admin::of(&direct).await;
    let log = Log::read();
    let good = rig.consume("good").await;
    let bad = rig.consume("bad").await;
    let pots = rig.open().await;
    let to = |label: &str| {
        let mut state = bulky(size);
        state.insert("to", label);
        state
    };
    commit(&pots, 2, |number| to(["good", "bad"][number])).await;
    rig.settled().await;
    drop(bad);
    admin.delete(&rig.exchange("bad")).await;

    let begun = std::time::Instant::now();
    let rows = 600;
    seed(
        &rig,
        (0..rows).map(|number| to(["good", "bad"][number % 2])),
    )
    .await;
    println!("{size}: seeded {:?}", begun.elapsed());
    pots.nudge();
    good.wait_for(1 + rows / 2, PATIENCE).await;
    println!(
        "{size}: good {:?}, duplicates {}, lost {:?}",
        begun.elapsed(),
        good.duplicates().len(),
        log.ours(&cable.port().to_string()),
    );
    println!("channels closed: {}", log.all("Channel closed").len());
    assert_eq!(
        rig.count(doc! { "published": false, "event.state.to": "bad" })
            .await,
        300
    );
    let bad = rig.consume("bad").await;
    bad.wait_for(300, PATIENCE).await;
    rig.settled().await;
    println!(
        "{size}: all {:?}, lines {:?}",
        begun.elapsed(),
        log.ours(&cable.port().to_string())
    );
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_exchange_small() {
    deleted_exchange(100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_exchange_large() {
    deleted_exchange(100_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_exchange_congested() {
    let rabbit = crate::load::breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    rig.component = addressed(&rig);
    let admin = Admin::of(&rabbit.uri()).await;
    let log = Log::read();
    let good = rig.consume("good").await;
    let bad = rig.consume("bad").await;
    let pots = rig.open().await;
    let to = |label: &str| {
        let mut state = bulky(100_000);
        state.insert("to", label);
        state
    };
    commit(&pots, 2, |number| to(["good", "bad"][number])).await;
    rig.settled().await;
    drop(bad);
    admin.delete(&rig.exchange("bad")).await;
    rabbit.pause();
    let begun = std::time::Instant::now();
    let rows = 600;
    commit(&pots, rows, |number| {
        to(["bad", "good"][(number % 20).min(1)])
    })
    .await;
    println!("committed {:?}", begun.elapsed());
    rabbit.resume();
    let key = rabbit.port().to_string();
    let goods = rows - rows / 20;
    let res =
        tokio::time::timeout(PATIENCE, good.wait_for(1 + goods, Duration::from_secs(60))).await;
    println!(
        "good {:?}, {:?} duplicates {}, lost {:#?}",
        res.is_ok(),
        begun.elapsed(),
        good.duplicates().len(),
        log.ours(&key),
    );
    println!(
        "channels closed: {:#?}",
        log.all("hannel")
            .iter()
            .filter(|l| !l.contains("create channel"))
            .take(40)
            .collect::<Vec<_>>()
    );
    pots.shutdown().await;
}
