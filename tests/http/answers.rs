//! Whatever a server answers: what it did not take is owed, what it took is not, and nothing that it says is told to anyone.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::{
    PATH, PATIENCE, SECRET, flat, http,
    log::Log,
    mongodb, patient,
    support::{Hook, Pots, Reply, eventually, memory},
};

/// A word that a server says, and nobody should repeat.
const WORD: &str = "swordfish";

async fn asked(hook: &Hook, times: usize) {
    eventually(PATIENCE, "it is asked", async || {
        hook.asked().len() >= times
    })
    .await;
}

/// With this answer nothing is taken; with another, then, all of it is.
async fn owed_while(says: Reply) -> Vec<String> {
    let (pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    let answer = says.clone();
    hook.answers(move |_| answer.clone());
    let log = Log::read();
    // By which its lines are known.
    let name = crate::support::unique("hook");
    let sink = http(hook.url(PATH)).build().unwrap();
    let builder = pots
        .builder()
        .sink_with(&name, [pots.labels()], sink, flat());
    let outbox = builder.open().await.unwrap();
    pots.make(&outbox, 0..3).await;
    asked(&hook, 1).await;
    let lines = || log.ours(&name);
    eventually(PATIENCE, "it is told", async || !lines().is_empty()).await;
    pots.owed("all of it is owed", |owed| owed == 3).await;
    hook.answers(|_| Reply::status(200));
    pots.owed("in the end nothing is", |owed| owed == 0).await;
    outbox.shutdown().await;
    for secret in [SECRET, WORD] {
        let leaked = log.all(secret);
        assert!(leaked.is_empty(), "{says:?}: {leaked:?}");
    }
    lines()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_taken_is_owed_until_it_is() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(1));
    for (says, told) in [
        (Reply::with(429, "retry-after", "1"), "429"),
        (Reply::with(503, "retry-after", date), "503"),
        (Reply::with(429, "retry-after", WORD), "429"),
        (Reply::body(503, WORD), "503"),
        (Reply::body(500, WORD), "500"),
        (Reply::body(401, WORD), "401"),
        (Reply::body(404, WORD), "404"),
        (Reply::body(409, WORD), "409"),
        (Reply::body(413, WORD), "413"),
        (
            Reply::body(200, r#"{"disposition":"retry","retry_after":1}"#),
            "sent again",
        ),
        (
            Reply::body(200, r#"{"disposition":"rejected"}"#),
            "rejected",
        ),
        (Reply::Half(200), "before the answer was whole"),
        (Reply::Trickle, "no whole answer within"),
        (Reply::Silence, "no whole answer within"),
        (Reply::HangUp, "ended before the answer"),
        (Reply::Reset, "the connection"),
        (Reply::Nonsense, "no HTTP"),
        (Reply::Endless(400), "400"),
    ] {
        let lines = owed_while(says.clone()).await;
        assert!(
            lines.iter().any(|line| line.contains(told)),
            "{says:?}: {lines:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_slowly_or_with_many_words_is_taken() {
    let late = Reply::Late(Duration::from_millis(100), Box::new(Reply::status(202)));
    let wrong = r#"{"disposition":"retry","retry_after":-1}"#;
    for says in [
        late,
        Reply::body(200, WORD),
        Reply::body(200, wrong),
        Reply::body(409, r#"{"disposition":"duplicate"}"#),
    ] {
        let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
        pots.settings.sink_timeout = PATIENCE;
        hook.answers(move |_| says.clone());
        let sink = patient(hook.url(PATH)).build().unwrap();
        let builder = pots
            .builder()
            .sink_with("hook", [pots.labels()], sink, flat());
        let outbox = builder.open().await.unwrap();
        pots.make(&outbox, 0..3).await;
        pots.owed("nothing is owed", |owed| owed == 0).await;
        outbox.shutdown().await;
        let objects = hook.asked().into_iter().flat_map(|asked| {
            let objects: Vec<Value> = serde_json::from_slice(&asked.body).unwrap();
            objects
        });
        let mut pots: Vec<u64> = objects.map(|pot| pot["entity"].as_u64().unwrap()).collect();
        pots.sort_unstable();
        assert_eq!(pots, [0, 1, 2], "each once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_end_cost_no_memory() {
    let (mut pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    pots.settings.sink_timeout = PATIENCE;
    hook.answers(|_| Reply::Endless(200));
    let sink = patient(hook.url(PATH)).single().build().unwrap();
    let builder = pots
        .builder()
        .sink_with("hook", [pots.labels()], sink, flat());
    let outbox = builder.open().await.unwrap();
    let before = memory(std::process::id());
    pots.make(&outbox, 0..100).await;
    pots.owed("nothing is owed", |owed| owed == 0).await;
    let grown = memory(std::process::id()).saturating_sub(before);
    // In KiB. Other tests run beside this one.
    assert!(grown < 64 * 1024, "{grown} KiB more");
    assert_eq!(hook.asked().len(), 100);
    outbox.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_takes_nothing_anywhere() {
    let (pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    let other = Hook::start().await;
    let (here, there) = (hook.url("/other"), other.url("/in"));
    hook.answers(move |asked| {
        let is_even = asked
            .header("webhook-timestamp")
            .ends_with(['0', '2', '4', '6', '8']);
        Reply::with(307, "location", if is_even { &*here } else { &*there })
    });
    let sink = http(hook.url(PATH)).build().unwrap();
    let builder = pots
        .builder()
        .sink_with("hook", [pots.labels()], sink, flat());
    let outbox = builder.open().await.unwrap();
    pots.make(&outbox, 0..3).await;
    asked(&hook, 10).await;
    pots.owed("all of it is owed", |owed| owed == 3).await;
    hook.answers(|_| Reply::status(200));
    pots.owed("in the end nothing is", |owed| owed == 0).await;
    outbox.shutdown().await;
    assert_eq!(other.connections(), 0);
    let line = format!("POST {PATH} HTTP/1.1");
    assert!(hook.asked().iter().all(|asked| asked.line == line));
}

/// Of a batch some are taken, by their ids, and those that are not come again alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_has_its_own_disposition() {
    let (pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    hook.answers(|asked| {
        let objects: Vec<Value> = serde_json::from_slice(&asked.body).unwrap();
        let dispositions: Vec<Value> = objects
            .iter()
            .rev()
            .map(|object| match object["entity"].as_u64().unwrap() % 3 {
                0 => json!({ "id": object["id"], "disposition": "rejected" }),
                1 => json!({ "id": object["id"], "disposition": "accepted" }),
                _ => json!({ "id": object["id"], "disposition": "duplicate" }),
            })
            .collect();
        Reply::body(500, json!({ "dispositions": dispositions }).to_string())
    });
    let sink = http(hook.url(PATH)).build().unwrap();
    let builder = pots
        .builder()
        .sink_with("hook", [pots.labels()], sink, flat());
    let outbox = builder.open().await.unwrap();
    pots.make(&outbox, 0..30).await;
    pots.owed("a third is owed", |owed| owed == 10).await;
    hook.answers(|_| Reply::status(200));
    pots.owed("in the end nothing is", |owed| owed == 0).await;
    outbox.shutdown().await;
}
