//! What is too much for one request.

use bson::{Document, doc};
use serde_json::Value;

use crate::{
    PATH, PATIENCE, flat, mongodb, patient,
    support::{Hook, Pots, eventually},
};

const MOST: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_batch_is_split_and_a_message_that_is_too_large_is_owed_and_not_sent() {
    let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    // They go together, once the pump finds them.
    pots.settings.defer = true;
    pots.settings.sink_timeout = PATIENCE;
    let sink = patient(hook.url(PATH)).build().unwrap();
    let builder = pots
        .builder()
        .sink_with("hook", [pots.labels()], sink, flat());
    let outbox = builder.open().await.unwrap();
    hook.leave().await;
    for number in 0..20 {
        let size = if number == 7 { 1100 } else { 300 };
        let pot = doc! { "_id": number, "text": "x".repeat(size * 1024) };
        outbox.create(pot, Document::new()).await.unwrap();
    }
    hook.come_back().await;
    pots.owed("one is owed", |owed| owed == 1).await;
    outbox.shutdown().await;
    let asked = hook.asked();
    assert!(asked.iter().all(|asked| asked.body.len() <= MOST));
    let counts: Vec<Vec<Value>> = asked
        .iter()
        .map(|asked| serde_json::from_slice(&asked.body).unwrap())
        .collect();
    let mut entities: Vec<i64> = counts
        .iter()
        .flatten()
        .map(|pot| pot["entity"].as_i64().unwrap())
        .collect();
    entities.sort_unstable();
    assert_eq!(
        entities,
        (0..20).filter(|&number| number != 7).collect::<Vec<_>>()
    );
    assert!(
        counts.iter().any(|objects| objects.len() == 3),
        "several went together"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_nothing_to_say_nobody_is_called() {
    let (pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    let sink = patient(hook.url(PATH)).build().unwrap();
    let builder = pots
        .builder()
        .sink_with("hook", [pots.labels()], sink, flat());
    let outbox = builder.open().await.unwrap();
    for _ in 0..3 {
        outbox.pass().await.unwrap();
    }
    assert_eq!(hook.connections(), 0);
    pots.make(&outbox, 0..1).await;
    eventually(PATIENCE, "now it is", async || hook.connections() == 1).await;
    outbox.shutdown().await;
}
