//! Lanes that move while rows of them are in flight.

use std::time::Duration;

use libtest_mimic::Trial;

use crate::{
    stage::{PATIENCE, Stage, assert_one_owner, servers},
    support::{Cable, eventually},
    timeline, trial,
};

pub fn tests() -> Vec<Trial> {
    vec![
        trial!(rows_in_flight_are_nobody_elses_until_they_are_let_go),
        trial!(a_handover_waits_for_confirms_and_marks_and_repeats_nothing),
        trial!(without_a_broker_the_lanes_are_given_to_who_has_one),
    ]
}

fn amqp(cable: &Cable) -> String {
    format!("amqp://guest:guest@127.0.0.1:{}/%2f", cable.port())
}

/// The confirms stay away: after ten seconds the connection is cut, and only then are they another's.
async fn rows_in_flight_are_nobody_elses_until_they_are_let_go() {
    let stage = Stage::shared().await;
    let consumer = stage.consume().await;
    let cable = Cable::to(servers().await.rabbit.port()).await;
    let stuck = stage.casting().with("TOA_OUTBOX_AMQP", amqp(&cable));
    let mut crew = vec![stuck.start()];
    stage.whole(&crew).await;
    // The exchange is declared, the channel is open.
    stage.seed(128).await;
    stage.all_arrive(&consumer).await;
    cable.swallow_back();
    stage.seed(256).await;
    consumer.wait_for(128 + 256, PATIENCE).await;
    let (started, at) = (timeline::now(), tokio::time::Instant::now());
    crew.push(stage.casting().start());
    eventually(PATIENCE, "the lanes are let go", async || {
        crew[0].count("let go of its lanes") > 0
    })
    .await;
    let told = crew[0].told();
    let let_go = told
        .iter()
        .find(|line| line["message"] == "let go of its lanes")
        .unwrap();
    let let_go = Duration::from_nanos(let_go["now"].as_u64().unwrap() - started);
    assert!(
        let_go > Duration::from_secs(9) && let_go < Duration::from_secs(14),
        "{let_go:?}"
    );
    cable.mend();
    let repeated = stage.all_arrive(&consumer).await;
    println!(
        "let go after {let_go:.2?}, {} of 256 repeated after that",
        repeated.len()
    );
    assert!(!repeated.is_empty(), "without a confirm, all of them");
    for delivery in &repeated {
        assert!(
            delivery.at >= at + let_go - Duration::from_millis(50),
            "sent while another had it in flight"
        );
    }
    stage.whole(&crew).await;
    assert_one_owner(&crew);
}

/// Slow confirms, and members that come and go meanwhile.
async fn a_handover_waits_for_confirms_and_marks_and_repeats_nothing() {
    let mut stage = Stage::shared().await.unhurried();
    stage.interval = Duration::from_secs(2);
    let consumer = stage.consume().await;
    let cable = Cable::to(servers().await.rabbit.port()).await;
    cable.delay(Duration::from_millis(150));
    let slow = stage
        .casting()
        .with("TOA_OUTBOX_AMQP", amqp(&cable))
        .with("TOA_OUTBOX_INFLIGHT", 100);
    let mut crew = vec![slow.start()];
    stage.whole(&crew).await;
    stage.seed(5_000).await;
    consumer.wait_for(500, PATIENCE).await;
    for _ in 0..3 {
        crew.push(slow.start());
        stage.whole(&crew).await;
    }
    assert_eq!(stage.all_arrive(&consumer).await.len(), 0);
    assert_one_owner(&crew);
}

/// It keeps its membership, writes and marks; only its lanes are another's.
async fn without_a_broker_the_lanes_are_given_to_who_has_one() {
    let stage = Stage::shared().await;
    let consumer = stage.consume().await;
    let cable = Cable::to(servers().await.rabbit.port()).await;
    let cut_off = stage.casting().with("TOA_OUTBOX_AMQP", amqp(&cable));
    let mut crew = vec![cut_off.start(), stage.casting().start()];
    stage.whole(&crew).await;
    crew[0].write(20).await;
    cable.cut();
    stage.whole_of(&crew, 1).await;
    stage.seed(1_000).await;
    // Its own rows go out by the other one.
    crew[0].write_no_more().await;
    stage.all_arrive(&consumer).await;
    assert_eq!(stage.members().await, 2);
    cable.mend();
    stage.whole_of(&crew, 2).await;
    stage.seed(1_000).await;
    stage.all_arrive(&consumer).await;
    assert_one_owner(&crew);
}
