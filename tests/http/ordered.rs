//! Webhooks in the order of the commits: how much of a backlog at a time, and what is too much for one request.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use bson::doc;
use serde_json::Value;
use toa_outbox::{Policy, Safety, SinkOptions};
use tokio::time::timeout;

use crate::{
    PATH, PATIENCE,
    conformance::entities,
    log::Log,
    mongodb, patient,
    support::{Asked, Dead, Hook, Pots, Reply, eventually, unique},
};

const MINUTE: u64 = 60;

/// When it was sent, in seconds, and the bytes of its payloads.
fn cost(asked: &Asked) -> (u64, u64) {
    let objects: Vec<Value> = serde_json::from_slice(&asked.body).unwrap();
    let bytes = objects
        .iter()
        .map(|object| object["data"].to_string().len());
    let sent = asked.header("webhook-timestamp").parse().unwrap();
    (sent, bytes.sum::<usize>() as u64)
}

fn all(hook: &Hook) -> Vec<usize> {
    hook.answered(204).iter().flat_map(entities).collect()
}

/// Whatever minute one looks at.
fn assert_limits(asked: &[Asked], safety: &Safety) {
    let costs: Vec<(u64, u64)> = asked.iter().map(cost).collect();
    for &(first, bytes) in &costs {
        assert!(bytes <= safety.batch_bytes(), "{costs:?}");
        // They are whole seconds.
        let minute = first..first + MINUTE - 1;
        let within = costs.iter().filter(|(sent, _)| minute.contains(sent));
        let (requests, sum) =
            within.fold((0, 0), |(count, sum), (_, bytes)| (count + 1, sum + bytes));
        assert!(requests <= safety.window_requests(), "{costs:?}");
        assert!(sum <= safety.window_bytes(), "{costs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_backlog_no_minute_sees_more_than_it_may_and_what_is_new_does_not_wait() {
    let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    pots.settings.sink_timeout = PATIENCE;
    pots.seed([100; 120]).await;
    let safety = Safety::new(2000, 5, 9000, 1).unwrap();
    let sink = patient(hook.url(PATH)).build().unwrap();
    let options = SinkOptions::ordered().safety(safety);
    let builder = pots
        .builder()
        .sink_with("hook", [pots.labels()], sink, options);
    let outbox = builder.open().await.unwrap();
    // More than goes in one minute, less than in two.
    let patience = PATIENCE + Duration::from_secs(MINUTE);
    eventually(patience, "all of it arrives", async || {
        all(&hook).len() >= 120
    })
    .await;
    assert_eq!(all(&hook), (0..120).collect::<Vec<_>>());
    assert_limits(&hook.asked(), &safety);
    let backlog = hook.asked().len();
    // In less than a minute, more than goes in it.
    pots.make(&outbox, 1000..1300).await;
    eventually(PATIENCE, "what is new arrives", async || {
        all(&hook).len() >= 420
    })
    .await;
    assert_eq!(all(&hook)[120..], (1000..1300).collect::<Vec<_>>());
    let new: Vec<Asked> = hook.asked().split_off(backlog);
    let bytes: u64 = new.iter().map(|asked| cost(asked).1).sum();
    assert!(new.len() > 5 || bytes > 9000, "{} in {}", bytes, new.len());
    pots.owed("nothing is owed", |owed| owed == 0).await;
    assert!(pots.dead().await.is_empty());
    outbox.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_room_goes_at_once_when_told_and_another_goes_on() {
    let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    pots.settings.sink_timeout = PATIENCE;
    pots.seed([100; 60]).await;
    let options = SinkOptions::ordered().safety(Safety::new(2000, 2, 9000, 1).unwrap());
    for part in 1..3 {
        let sink = patient(hook.url(PATH)).build().unwrap();
        let builder = pots
            .builder()
            .sink_with("hook", [pots.labels()], sink, options.clone());
        let outbox = builder.open().await.unwrap();
        eventually(PATIENCE, "there is no more room", async || {
            hook.answered(204).len() == 2 * part
        })
        .await;
        let owed = 60 - all(&hook).len() as u64;
        assert!(owed > 0 || part == 2);
        pots.owed("what was taken is marked", |now| now == owed)
            .await;
        let gone = timeout(PATIENCE / 3, outbox.shutdown()).await;
        assert!(gone.is_ok(), "it waited for room");
    }
    assert_eq!(all(&hook), (0..all(&hook).len()).collect::<Vec<_>>());
    assert!(pots.dead().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_goes_into_one_request_goes_in_several() {
    for options in [SinkOptions::ordered(), SinkOptions::audit()] {
        let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
        pots.settings.sink_timeout = PATIENCE;
        pots.seed([300 * 1024; 10]).await;
        let sink = patient(hook.url(PATH)).build().unwrap();
        let options = options.safety(None);
        let builder = pots
            .builder()
            .sink_with("hook", [pots.labels()], sink, options);
        let outbox = builder.open().await.unwrap();
        pots.owed("nothing is owed", |owed| owed == 0).await;
        outbox.shutdown().await;
        let counts: Vec<usize> = hook
            .asked()
            .iter()
            .map(|asked| entities(asked).len())
            .collect();
        assert_eq!(counts, [3, 3, 3, 1]);
        assert_eq!(hook.answered(204).len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_larger_than_a_batch_may_be_is_given_up_or_stays_and_is_told_of() {
    for gives_up in [true, false] {
        let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
        pots.settings.sink_timeout = PATIENCE;
        pots.seed([100, 100, 3000, 100]).await;
        let (log, name) = (Log::read(), unique("hook"));
        let options = match gives_up {
            true => SinkOptions::ordered(),
            false => SinkOptions::audit(),
        };
        // And no operator is asked for anything.
        let options = options.safety(Safety::new(2000, 30, 9000, 0).unwrap());
        let sink = patient(hook.url(PATH)).build().unwrap();
        let builder = pots
            .builder()
            .sink_with(&name, [pots.labels()], sink, options);
        let outbox = builder.open().await.unwrap();
        if gives_up {
            pots.owed("nothing is owed", |owed| owed == 0).await;
            assert_eq!(pots.dead().await, [Dead::of(&name, 2, 1)]);
            assert_eq!(all(&hook), [0, 1, 3]);
        } else {
            eventually(PATIENCE, "it is told twice", async || {
                let lines = log.ours(&name);
                let told = lines
                    .iter()
                    .filter(|line| line.contains("raise batch_bytes"));
                told.count() >= 2
            })
            .await;
            pots.owed("two are owed", |owed| owed == 2).await;
            assert_eq!(
                log.ours(&name)
                    .iter()
                    .filter(|line| line.contains("paused"))
                    .count(),
                0
            );
            assert_eq!(hook.answered(204).len(), 1);
        }
        outbox.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_row_and_its_neighbour_fail_it_was_an_outage_and_an_operator_sees_the_first_that_is_taken()
 {
    let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    pots.settings.sink_timeout = PATIENCE;
    pots.seed([100; 20]).await;
    let name = unique("hook");
    // Until the neighbour of the first was asked twice.
    let neighbour = AtomicUsize::new(0);
    hook.answers(move |asked| {
        let before = match entities(asked).as_slice() {
            [1] => neighbour.fetch_add(1, Relaxed),
            _ => neighbour.load(Relaxed),
        };
        Reply::status(if before < 2 { 500 } else { 204 })
    });
    let options = SinkOptions::ordered()
        .policy(Policy::backoff().attempts(1))
        .safety(Safety::default().confirmed());
    let sink = patient(hook.url(PATH)).build().unwrap();
    let builder = pots
        .builder()
        .sink_with(&name, [pots.labels()], sink, options);
    let outbox = builder.open().await.unwrap();
    let paused = doc! { "_id": { "sink": &name }, "paused.reason": { "$regex": "operator" } };
    eventually(PATIENCE, "the sink is paused", async || {
        pots.sinks().count_documents(paused.clone()).await.unwrap() == 1
    })
    .await;
    assert_eq!(all(&hook), [0]);
    pots.sinks().delete_one(paused).await.unwrap();
    pots.owed("in the end nothing is owed", |owed| owed == 0)
        .await;
    outbox.shutdown().await;
    assert_eq!(all(&hook), (0..20).collect::<Vec<_>>());
    assert!(pots.dead().await.is_empty());
}
