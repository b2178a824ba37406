//! One delivery after the other to a server that misbehaves.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use tokio::time::Instant;

use super::*;
use crate::sinks::samples::{message, message_of};

// The one that tests from outside use.
#[path = "../../../tests/support/hook.rs"]
mod hook;

use hook::{Asked, Hook, Reply as Says};

const SECRET: &str = "whsec_aHVudGVyMg==";

/// Long enough on a busy machine, short enough to be waited for.
const SHORT: Duration = Duration::from_millis(300);

fn http(hook: &Hook) -> HttpBuilder {
    Http::builder(hook.url("/in?t=1")).secret(SECRET)
}

fn messages(count: usize) -> Vec<Message> {
    (0..count)
        .map(|number| message(&number.to_string(), "{}"))
        .collect()
}

async fn deliver(http: &Http, batch: &[Message]) -> Result<Vec<Verdict>, String> {
    let delivered = http.deliver(batch).await;
    delivered.map_err(|error| match error.is::<Unreachable>() {
        true => format!("unreachable: {error}"),
        false => error.to_string(),
    })
}

/// What the server's answer to one message means.
async fn verdict(says: Says) -> Verdict {
    let hook = Hook::start().await;
    hook.answers(move |_| says.clone());
    let http = http(&hook).timeout(SHORT).build().unwrap();
    match deliver(&http, &messages(1)).await {
        Ok(mut verdicts) => verdicts.remove(0),
        // As whoever delivers takes it of a message alone.
        Err(reason) => Verdict::Retry {
            reason,
            after: None,
        },
    }
}

fn seconds(verdict: &Verdict) -> Option<u64> {
    match verdict {
        Verdict::Retry { after, .. } | Verdict::Paused { after, .. } => {
            after.map(|after| after.as_secs())
        }
        other => panic!("{other:?}"),
    }
}

fn rows(asked: &Asked) -> Vec<String> {
    let objects: Vec<Value> = serde_json::from_slice(&asked.body).unwrap();
    let row = |object: &Value| object["row"].as_str().unwrap().to_owned();
    objects.iter().map(row).collect()
}

#[tokio::test]
async fn a_batch_is_one_signed_request_and_the_next_goes_on_the_same_connection() {
    let hook = Hook::start().await;
    let http = http(&hook).build().unwrap();
    let mut batch = messages(3);
    batch[1].attempt = 4;
    for _ in 0..2 {
        assert_eq!(deliver(&http, &batch).await, Ok(vec![Verdict::Accepted; 3]));
    }
    assert_eq!((hook.answered(204).len(), hook.connections()), (2, 1));
    let asked = &hook.asked()[0];
    assert_eq!(asked.line, "POST /in?t=1 HTTP/1.1");
    assert_eq!(rows(asked), ["0", "1", "2"]);
    let key = Key::of("secret", SECRET).unwrap();
    let timestamp = asked.header("webhook-timestamp").parse().unwrap();
    let signature = key.sign(asked.header("webhook-id"), timestamp, &asked.body);
    for (name, value) in [
        ("webhook-signature", &*signature),
        ("webhook-id", &batch_id(&batch)),
        ("content-type", "application/json"),
        ("toa-delivery", "live"),
        ("toa-attempt", "4"),
        ("host", hook.url("").strip_prefix("http://").unwrap()),
    ] {
        assert_eq!(asked.header(name), value, "{name}");
    }
    let sent = UNIX_EPOCH + Duration::from_secs(timestamp);
    assert!(sent.elapsed().unwrap() < Duration::from_secs(60));
}

#[tokio::test]
async fn nothing_is_asked_for_no_message() {
    let hook = Hook::start().await;
    let http = http(&hook).build().unwrap();
    assert_eq!(deliver(&http, &[]).await, Ok(Vec::new()));
    assert_eq!(hook.connections(), 0);
}

#[tokio::test]
async fn a_single_message_goes_as_it_is_under_its_own_id() {
    let hook = Hook::start().await;
    let http = http(&hook).single().build().unwrap();
    let mut batch = vec![
        message_of("a", &[0, 255], "application/bson"),
        message("b", "7"),
    ];
    batch[1].is_replay = true;
    assert_eq!(http.at_once(&batch), 1);
    for message in batch.chunks(1) {
        assert_eq!(deliver(&http, message).await, Ok(vec![Verdict::Accepted]));
    }
    let [first, second] = &hook.asked()[..] else {
        panic!("two requests")
    };
    assert_eq!((&*first.body, &*second.body), (&[0, 255][..], &b"7"[..]));
    for (asked, name, value) in [
        (first, "webhook-id", "a.created"),
        (first, "content-type", "application/bson"),
        (first, "toa-delivery", "live"),
        (first, "toa-component", "tea.pots"),
        (first, "toa-time", "2026-01-02T03:04:05Z"),
        (second, "webhook-id", "b.created"),
        (second, "toa-delivery", "replay"),
    ] {
        assert_eq!(asked.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn every_answer_has_its_verdict() {
    let soon = |seconds| {
        let then = SystemTime::now() + Duration::from_secs(seconds);
        httpdate::fmt_http_date(then)
    };
    let late = Says::Late(SHORT / 3, Box::new(Says::status(200)));
    assert_eq!(verdict(late).await, Verdict::Accepted);
    let asked = verdict(Says::with(429, "retry-after", "30")).await;
    assert_eq!(seconds(&asked), Some(30));
    let asked = verdict(Says::with(503, "Retry-After", soon(100))).await;
    assert!((90..=100).contains(&seconds(&asked).unwrap()), "{asked:?}");
    for (status, value) in [(429, "0"), (429, "-1"), (503, "soon")] {
        let asked = verdict(Says::with(status, "retry-after", value)).await;
        assert_eq!(seconds(&asked), Some(0), "of itself: {status} {value}");
    }
    for status in [409, 413, 400, 422] {
        let asked = verdict(Says::body(status, "hunter2")).await;
        let Verdict::Rejected(reason) = asked else {
            panic!("{status}: {asked:?}")
        };
        assert!(
            reason.contains(&status.to_string()) && !reason.contains("hunter2"),
            "{reason}"
        );
    }
    for status in [401, 403, 404, 500] {
        let asked = verdict(Says::status(status)).await;
        assert!(
            matches!(asked, Verdict::Retry { .. }),
            "{status}: {asked:?}"
        );
    }
}

#[tokio::test]
async fn what_is_gone_is_paused_by_its_circuit_or_without_one() {
    for (body, expected, wait) in [
        ("hunter2", None, None),
        (
            r#"{"disposition":"paused","circuit":"db-1","retry_after":9}"#,
            Some("db-1"),
            Some(9),
        ),
        (
            r#"{"disposition":"paused","circuit":"hunter 2"}"#,
            None,
            None,
        ),
    ] {
        let paused = verdict(Says::body(410, body)).await;
        assert_eq!(seconds(&paused), wait);
        let Verdict::Paused {
            circuit, reason, ..
        } = paused
        else {
            panic!("{paused:?}")
        };
        assert_eq!(circuit.as_deref(), expected);
        assert!(!reason.contains("hunter"), "{reason}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_whole_is_a_failure() {
    for (says, reason) in [
        (Says::Half(200), "before the answer was whole"),
        (Says::HangUp, "the connection ended before"),
        (Says::Reset, "the connection"),
        (Says::Nonsense, "no HTTP"),
        (Says::Silence, "within 300ms"),
        (Says::Trickle, "within 300ms"),
    ] {
        let failed = verdict(says.clone()).await;
        let Verdict::Retry {
            reason: said,
            after: None,
        } = &failed
        else {
            panic!("{says:?}: {failed:?}")
        };
        assert!(said.contains(reason), "{says:?}: {said}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_read_up_to_a_bound_and_counts_by_its_status() {
    let began = Instant::now();
    assert_eq!(verdict(Says::Endless(200)).await, Verdict::Accepted);
    assert!(matches!(
        verdict(Says::Endless(400)).await,
        Verdict::Rejected(_)
    ));
    assert!(began.elapsed() < SHORT, "nobody waited for the end");
}

#[tokio::test]
async fn a_disposition_that_is_longer_than_what_is_read_says_nothing() {
    let long = format!(r#"{}{{"disposition":"retry"}}"#, " ".repeat(64 * 1024));
    assert_eq!(verdict(Says::body(200, long)).await, Verdict::Accepted);
    let padded = format!(r#"{}{{"disposition":"rejected"}}"#, " ".repeat(60 * 1024));
    assert!(matches!(
        verdict(Says::body(200, padded)).await,
        Verdict::Rejected(_)
    ));
}

#[tokio::test]
async fn a_redirect_is_followed_to_nowhere() {
    let (hook, other) = (Hook::start().await, Hook::start().await);
    for status in [301, 302, 303, 307, 308] {
        for to in [hook.url("/other"), other.url("/in"), "/other".into()] {
            hook.answers(move |_| Says::with(status, "location", to.clone()));
            let verdicts = deliver(&http(&hook).build().unwrap(), &messages(1)).await;
            assert!(matches!(verdicts.unwrap()[..], [Verdict::Retry { .. }]));
        }
    }
    assert_eq!(other.connections(), 0);
    assert!(
        hook.asked()
            .iter()
            .all(|asked| asked.line.contains("/in?t=1"))
    );
}

#[tokio::test]
async fn who_cannot_be_connected_to_is_unreachable_and_not_told_of_the_path() {
    let hook = Hook::start().await;
    let http_to = |url: String| {
        Http::builder(url)
            .secret(SECRET)
            .timeout(SHORT)
            .build()
            .unwrap()
    };
    let secure = hook.url("/hunter2").replace("http:", "https:");
    // It speaks no TLS.
    let text = deliver(&http_to(secure), &messages(2)).await.unwrap_err();
    assert!(
        text.starts_with("unreachable: ") && !text.contains("hunter2"),
        "{text}"
    );
    let http = http_to(hook.url("/hunter2"));
    deliver(&http, &messages(2)).await.unwrap();
    hook.leave().await;
    let text = deliver(&http, &messages(2)).await.unwrap_err();
    assert!(
        text.starts_with("unreachable: ") && text.contains("refused"),
        "{text}"
    );
    let nowhere = http_to("http://nobody.invalid/hunter2".into());
    let unknown = deliver(&nowhere, &messages(1)).await.unwrap_err();
    assert!(
        unknown.starts_with("unreachable: ") && !unknown.contains("hunter2"),
        "{unknown}"
    );
    hook.come_back().await;
    assert_eq!(
        deliver(&http, &messages(2)).await,
        Ok(vec![Verdict::Accepted; 2])
    );
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_costs_no_failure() {
    let hook = Hook::start().await;
    let http = http(&hook).build().unwrap();
    for round in 1..=20 {
        deliver(&http, &messages(1)).await.unwrap();
        // Ends the connections.
        hook.leave().await;
        hook.come_back().await;
        assert_eq!(hook.connections(), round);
    }
    assert_eq!(hook.asked().len(), 20);
}

#[tokio::test]
async fn a_batch_that_fails_or_is_rejected_is_left_to_be_halved() {
    let hook = Hook::start().await;
    let http = http(&hook).timeout(SHORT).build().unwrap();
    for says in [Says::status(500), Says::Reset, Says::Silence] {
        hook.answers(move |_| says.clone());
        deliver(&http, &messages(2)).await.unwrap_err();
    }
    hook.answers(|_| Says::status(400));
    let rejected = deliver(&http, &messages(2)).await.unwrap();
    assert!(matches!(
        rejected[..],
        [Verdict::Rejected(_), Verdict::Rejected(_)]
    ));
    // These speak of the destination: halves would fare no better.
    for status in [401, 429, 503, 302] {
        hook.answers(move |_| Says::status(status));
        let verdicts = deliver(&http, &messages(2)).await.unwrap();
        assert!(matches!(
            verdicts[..],
            [Verdict::Retry { .. }, Verdict::Retry { .. }]
        ));
    }
}

#[tokio::test]
async fn one_delivery_is_one_request_and_a_message_that_is_too_much_for_one_does_not_go() {
    let hook = Hook::start().await;
    let sink = http(&hook).build().unwrap();
    let large = |row: &str, kib: usize| message(row, &format!("\"{}\"", "x".repeat(kib * 1024)));
    let batch = [
        large("a", 600),
        large("b", 300),
        large("c", 1100),
        large("d", 600),
        message("e", "1"),
    ];
    deliver(&sink, &batch).await.unwrap_err();
    assert_eq!(hook.connections(), 0);
    let mut verdicts = Vec::new();
    while verdicts.len() < batch.len() {
        let rest = &batch[verdicts.len()..];
        let part = &rest[..sink.at_once(rest)];
        verdicts.extend(deliver(&sink, part).await.unwrap());
    }
    let [
        Verdict::Accepted,
        Verdict::Accepted,
        Verdict::Rejected(reason),
        Verdict::Accepted,
        Verdict::Accepted,
    ] = &verdicts[..]
    else {
        panic!("{verdicts:?}")
    };
    assert!(reason.starts_with("413, not sent"), "{reason}");
    let asked = hook.asked();
    assert_eq!(
        asked.iter().map(rows).collect::<Vec<_>>(),
        [vec!["a", "b"], vec!["d", "e"]]
    );
    assert!(asked.iter().all(|asked| asked.body.len() <= MOST));
    let single = http(&hook).single().build().unwrap();
    let verdicts = deliver(&single, &batch[2..3]).await.unwrap();
    assert!(matches!(verdicts[..], [Verdict::Rejected(_)]));
    assert_eq!(hook.asked().len(), 2);
}

#[tokio::test]
async fn nothing_leaves_any_more_when_a_delivery_was_dropped() {
    let hook = Hook::start().await;
    hook.answers(|_| Says::Silence);
    let http = http(&hook).build().unwrap();
    let batch = messages(1);
    let dropped = tokio::time::timeout(SHORT, http.deliver(&batch)).await;
    assert!(dropped.is_err());
    hook.answers(|_| Says::status(200));
    deliver(&http, &messages(1)).await.unwrap();
    assert_eq!((hook.asked().len(), hook.connections()), (2, 2));
}

#[tokio::test]
async fn the_secret_is_in_no_request() {
    let hook = Hook::start().await;
    deliver(&http(&hook).build().unwrap(), &messages(2))
        .await
        .unwrap();
    let shown = format!("{:?} {}", hook.asked(), hook.asked()[0].text());
    let encoded = SECRET.strip_prefix("whsec_").unwrap();
    let secret = String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap();
    assert!(
        !shown.contains(&secret) && !shown.contains(encoded),
        "{shown}"
    );
}
