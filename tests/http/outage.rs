//! What is given up and what is not, and what comes first when a destination is there again.

use std::time::Duration;

use bson::doc;
use toa_outbox::{Policy, Safety, SinkOptions};

use crate::{
    PATH, PATIENCE,
    conformance::entities,
    flat,
    log::Log,
    mongodb, patient,
    support::{Asked, Dead, Hook, Pots, Reply, eventually, unique},
    unlimited,
};

/// The pot that no destination can bear.
const POISON: usize = 37;

fn is_poisoned(asked: &Asked) -> bool {
    entities(asked).contains(&POISON)
}

/// All that it has accepted.
fn taken(hook: &Hook) -> Vec<usize> {
    let accepted = hook.answered(204);
    let mut pots: Vec<usize> = accepted.iter().flat_map(entities).collect();
    pots.sort_unstable();
    pots
}

fn all_but_the_poison() -> Vec<usize> {
    (0..100).filter(|&pot| pot != POISON).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_bad_in_a_hundred_is_dead_and_the_others_arrive() {
    let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    pots.settings.defer = true;
    pots.settings.sink_timeout = PATIENCE;
    hook.answers(|asked| Reply::status(if is_poisoned(asked) { 400 } else { 204 }));
    let sink = patient(hook.url(PATH)).build().unwrap();
    // With the limits of a backlog, since all of it is one.
    let builder = pots.builder().sink("hook", [pots.labels()], sink);
    let outbox = builder.open().await.unwrap();
    pots.make(&outbox, 0..100).await;
    pots.owed("nothing is owed", |owed| owed == 0).await;
    assert_eq!(taken(&hook), all_but_the_poison());
    assert_eq!(pots.dead().await, [Dead::of("hook", POISON, 1)]);
    outbox.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_fails_for_ever_is_dead_after_its_attempts_and_an_outage_gives_nothing_up() {
    let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    pots.settings.sink_timeout = PATIENCE;
    hook.answers(|asked| Reply::status(if is_poisoned(asked) { 500 } else { 204 }));
    let (log, name) = (Log::read(), unique("hook"));
    let policy = Policy::schedule([Duration::from_millis(500); 3]);
    let sink = patient(hook.url(PATH)).build().unwrap();
    let options = unlimited().policy(policy);
    let builder = pots
        .builder()
        .sink_with(&name, [pots.labels()], sink, options);
    let outbox = builder.open().await.unwrap();
    pots.make(&outbox, 0..50).await;
    eventually(PATIENCE, "it fails", async || {
        !hook.answered(500).is_empty()
    })
    .await;
    hook.leave().await;
    pots.make(&outbox, 50..100).await;
    eventually(PATIENCE, "nobody is there", async || {
        let lines = log.ours(&name);
        lines.iter().any(|line| line.contains("connecting to"))
    })
    .await;
    hook.come_back().await;
    pots.owed("nothing is owed", |owed| owed == 0).await;
    assert_eq!(pots.dead().await, [Dead::of(&name, POISON, 4)]);
    assert_eq!(taken(&hook), all_but_the_poison());
    outbox.shutdown().await;
}

/// Alone in each request, as they are where not much is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_that_says_it_is_out_of_order_has_nothing_given_up() {
    let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    pots.settings.sink_timeout = PATIENCE;
    for status in [503, 401, 404] {
        hook.answers(move |_| Reply::status(status));
        let policy = Policy::schedule([Duration::from_millis(50); 3]);
        let sink = patient(hook.url(PATH)).build().unwrap();
        let options = unlimited().policy(policy);
        let builder = pots
            .builder()
            .sink_with("hook", [pots.labels()], sink, options);
        let outbox = builder.open().await.unwrap();
        let pot = usize::from(status);
        pots.make(&outbox, pot..pot + 1).await;
        eventually(PATIENCE, "it is out of order for long", async || {
            hook.answered(status).len() > 6
        })
        .await;
        hook.answers(|_| Reply::status(204));
        pots.owed("nothing is owed", |owed| owed == 0).await;
        assert_eq!(pots.dead().await, [], "{status}");
        assert!(taken(&hook).contains(&pot), "{status}");
        outbox.shutdown().await;
    }
}

/// Pots that nobody was there for, and the destination that is there again; how many were in each of its requests then.
async fn after_an_outage(
    pots: &Pots,
    hook: &Hook,
    options: SinkOptions,
    enough: usize,
) -> Vec<usize> {
    let (log, name) = (Log::read(), unique("hook"));
    let sink = patient(hook.url(PATH)).build().unwrap();
    let builder = pots
        .builder()
        .sink_with(&name, [pots.labels()], sink, options);
    hook.leave().await;
    let outbox = builder.open().await.unwrap();
    pots.make(&outbox, 0..20).await;
    eventually(PATIENCE, "nobody is there", async || {
        !log.ours(&name).is_empty()
    })
    .await;
    hook.come_back().await;
    eventually(PATIENCE, "it is given something", async || {
        taken(hook).len() >= enough
    })
    .await;
    if enough < 20 {
        let paused = doc! { "_id": { "sink": &name }, "paused.reason": { "$regex": "operator" } };
        eventually(PATIENCE, "the sink is paused", async || {
            pots.sinks().count_documents(paused.clone()).await.unwrap() == 1
        })
        .await;
        assert_eq!(taken(hook).len(), enough);
        pots.sinks().delete_one(paused).await.unwrap();
    }
    pots.owed("in the end nothing is owed", |owed| owed == 0)
        .await;
    outbox.shutdown().await;
    assert_eq!(taken(hook), (0..20).collect::<Vec<_>>());
    hook.asked()
        .iter()
        .map(|asked| entities(asked).len())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_one_goes_first_and_where_an_operator_decides_the_others_wait() {
    let mongodb = mongodb().await;
    let none = Safety::new(1024, 30, 2048, 0).unwrap();
    for (options, enough, canary) in [
        (SinkOptions::new(), 20, true),
        (
            SinkOptions::new().safety(Safety::default().confirmed()),
            1,
            true,
        ),
        (SinkOptions::new().safety(none), 0, false),
        (SinkOptions::ordered(), 20, true),
        (
            SinkOptions::ordered().safety(Safety::default().confirmed()),
            1,
            true,
        ),
        (SinkOptions::ordered().safety(none), 0, false),
    ] {
        let (mut pots, hook) = (Pots::new(&mongodb).await, Hook::start().await);
        pots.settings.defer = true;
        pots.settings.sink_timeout = PATIENCE;
        let counts = after_an_outage(&pots, &hook, options, enough).await;
        assert!(!canary || counts[0] == 1, "{counts:?}");
        assert!(counts.len() < 20, "several went together: {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_gone_is_asked_for_nothing_until_it_is_resumed() {
    let paused = r#"{"disposition":"paused","circuit":"db-1"}"#;
    for (says, circuit) in [
        (Reply::status(410), None),
        (Reply::body(200, paused), Some("db-1")),
    ] {
        let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
        pots.settings.sink_timeout = PATIENCE;
        let name = unique("hook");
        hook.answers(move |_| says.clone());
        let sink = patient(hook.url(PATH)).build().unwrap();
        let builder = pots
            .builder()
            .sink_with(&name, [pots.labels()], sink, flat());
        let outbox = builder.open().await.unwrap();
        pots.make(&outbox, 0..1).await;
        let id = doc! { "_id": { "sink": &name } };
        let pause = eventually(PATIENCE, "it is paused", async || {
            let found = pots.sinks().find_one(id.clone()).await.unwrap();
            found.and_then(|sink| sink.get_document("paused").cloned().ok())
        })
        .await;
        let by: &str = pause.get_str("circuit").unwrap();
        assert!(circuit.is_none_or(|circuit| circuit == by), "{by}");
        hook.answers(|_| Reply::status(204));
        pots.make(&outbox, 1..10).await;
        for _ in 0..3 {
            outbox.pass().await.unwrap();
        }
        assert_eq!(hook.asked().len(), 1, "nothing is sent while it is paused");
        pots.sinks().delete_one(id).await.unwrap();
        pots.owed("it is given all", |owed| owed == 0).await;
        outbox.shutdown().await;
        assert_eq!(taken(&hook), (0..10).collect::<Vec<_>>());
    }
}
