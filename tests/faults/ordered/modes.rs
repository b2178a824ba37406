//! What an audit is given, and what a sink cannot become.

use std::sync::atomic::Ordering::Relaxed;

use toa_outbox::SinkOptions;

use super::{Log, dead, open, rig, try_open, write};
use crate::{
    rig::{PATIENCE, Rig},
    support::{Mongo, eventually},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_of_the_other_mode_and_a_server_alone_are_refused() {
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    pots.shutdown().await;
    let Err(error) = try_open(&rig, &log, SinkOptions::new()).await else {
        panic!("taken for what it was not");
    };
    assert!(
        error.to_string().contains("order of the commits"),
        "{error}"
    );
    let alone = Mongo::standalone().await;
    let amqp = crate::support::servers().await.rabbit.uri();
    let mut rig = Rig::new(&alone.uri(), &amqp).await;
    rig.settings.amqp.clear();
    let Err(error) = try_open(&rig, &log, SinkOptions::ordered()).await else {
        panic!("opened without a change stream");
    };
    assert!(matches!(error, toa_outbox::Error::Unfit { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_has_the_whole_event_and_gives_nothing_up() {
    let rig = rig().await;
    let log = Log::default();
    log.0.is_down.store(true, Relaxed);
    let pots = open(&rig, &log, SinkOptions::audit()).await;
    write(&pots, 1).await;
    let tried = |more: usize| {
        let log = log.clone();
        let before = log.0.calls.load(Relaxed);
        async move {
            eventually(PATIENCE, "it is tried", async || {
                log.0.calls.load(Relaxed) >= before + more
            })
            .await;
        }
    };
    tried(2).await;
    rig.seed(1_200, |_, _| {}).await;
    tried(1).await;
    log.0.is_down.store(false, Relaxed);
    log.has(1_201).await;
    rig.settled().await;
    let taken = log.0.taken.borrow().clone();
    assert_eq!(taken.len(), 1_201);
    for taken in &taken {
        let event: serde_json::Value = serde_json::from_slice(&taken.body).unwrap();
        let keys: Vec<&String> = event.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["input", "origin", "state", "trailers"]);
    }
    assert!(dead(&rig).await.is_empty());
    pots.shutdown().await;
}
