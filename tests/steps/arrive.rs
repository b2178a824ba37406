//! What a consumer gets.

use std::{collections::HashSet, time::Duration};

use cucumber::then;
use serde_json::Value;

use super::{
    change::now,
    consumer::pot,
    json,
    world::{PATIENCE, Tea},
};
use crate::support::{Delivery, eventually};

fn is(delivery: &Delivery, label: &str, of: &str) -> bool {
    delivery.kind == label && pot(delivery).is_some_and(|pot| pot == of)
}

#[then(regex = r#"^"(\w+)" arrives for the pot "(\w+)"(?: within (\d+) seconds)?$"#)]
async fn arrives(w: &mut Tea, label: String, of: String, seconds: String) {
    let within = seconds.parse().map_or(PATIENCE, Duration::from_secs);
    w.delivery = Some(
        w.consumer()
            .arrival(within, |delivery| is(delivery, &label, &of))
            .await,
    );
    w.pot = of;
}

/// Without waiting for more than what the broker has already.
#[then(regex = r#"^"(\w+)" has arrived for the pot "(\w+)"$"#)]
async fn has_arrived(w: &mut Tea, label: String, of: String) {
    w.consumer().flush().await;
    arrives(w, label, of, "0".into()).await;
}

#[then(regex = r#"^"(\w+)" arrives for the pot "(\w+)", not before it was due$"#)]
async fn arrives_when_due(w: &mut Tea, label: String, of: String) {
    arrives(w, label, of.clone(), String::new()).await;
    let age = w.delivery.as_ref().expect("a message").at.elapsed();
    let at = now() - age.as_millis() as i64;
    let due = w.seeds[&of].get_i64("pending").unwrap();
    assert!(at >= due, "{} ms early", due - at);
}

#[then(regex = r#"^"(\w+)" arrives as (\{.*\})(?:, which is (\S+))?$"#)]
async fn arrives_as(w: &mut Tea, label: String, expected: String, content_type: String) {
    let expected = json::value(&expected);
    let fits = |delivery: &Delivery| {
        let kind = delivery.properties.content_type().as_ref();
        delivery.kind == label
            && json::body(delivery).as_ref() == Ok(&expected)
            && (content_type.is_empty() || kind.is_some_and(|kind| kind.as_str() == content_type))
    };
    w.delivery = Some(w.consumer().arrival(PATIENCE, fits).await);
}

/// Field by field, so that a failure names one.
#[then(regex = r#"^"(\w+)" arrives for the pot "(\w+)" with that JSON$"#)]
async fn arrives_with(w: &mut Tea, label: String, of: String) {
    arrives(w, label, of, String::new()).await;
    let body = json::body(w.delivery.as_ref().expect("a message")).unwrap();
    for (field, expected) in &w.fields {
        assert_eq!(&body[field], expected, "{field}");
    }
}

#[then(regex = r#"^"(\w+)" arrives (\d+) times in all$"#)]
async fn arrives_times(w: &mut Tea, label: String, count: usize) {
    let consumer = w.consumer();
    let of = |label: &str, news: Vec<Delivery>| {
        news.into_iter()
            .filter(|delivery| delivery.kind == label)
            .count()
    };
    eventually(PATIENCE, "so many messages", async || {
        of(&label, consumer.news()) >= count
    })
    .await;
    w.settled().await;
    w.pump().await;
    w.consumer().flush().await;
    assert_eq!(of(&label, w.consumer().news()), count);
}

#[then(
    regex = r#"^"(\w+)" (arrives|has arrived) (exactly|at least) once for each of the (\d+) pots(?: within (\d+) seconds)?$"#
)]
async fn arrives_for_each(
    w: &mut Tea,
    label: String,
    when: String,
    how: String,
    count: usize,
    seconds: String,
) {
    let within = seconds.parse().map_or(PATIENCE, Duration::from_secs);
    let expected: HashSet<String> = w.pots.iter().cloned().collect();
    assert_eq!(expected.len(), count);
    if when == "arrives" {
        let consumer = w.consumer();
        eventually(within, "each of them", async || {
            pots(consumer.news(), &label).len() == count
        })
        .await;
        w.settled().await;
        w.pump().await;
    }
    w.consumer().flush().await;
    let news = w.consumer().news();
    assert_eq!(pots(news.clone(), &label), expected);
    if how == "exactly" {
        assert_eq!(
            news.len(),
            count,
            "some more than once: {:#?}",
            w.consumer().list()
        );
    }
    w.consumer().speak_of(&news);
}

fn pots(news: Vec<Delivery>, label: &str) -> HashSet<String> {
    news.iter()
        .filter(|delivery| delivery.kind == label)
        .filter_map(pot)
        .collect()
}

#[then(
    regex = r#"^"(\w+)" arrives for each version of the pot "(\w+)" from (\d+) to (\d+), each from the one before$"#
)]
async fn arrives_for_versions(w: &mut Tea, label: String, of: String, first: i64, last: i64) {
    for version in first..=last {
        let fits = |delivery: &Delivery| {
            let body = json::body(delivery).unwrap_or_default();
            let (origin, state) = (&body["origin"], &body["state"]);
            let warmer = |state: &Value| {
                state["temperature"]
                    .as_i64()
                    .map(|temperature| temperature + 1)
            };
            delivery.kind == label
                && state["_id"] == of.as_str()
                && state["_version"] == version
                && origin["_version"] == version - 1
                && warmer(origin) == state["temperature"].as_i64()
        };
        w.consumer().arrival(PATIENCE, fits).await;
    }
}

/// After another cycle of the pump, and everything the broker had before it.
#[then("nothing else arrives")]
async fn nothing_else(w: &mut Tea) {
    w.pump().await;
    nothing(w).await;
}

#[then("nothing has arrived")]
async fn nothing(w: &mut Tea) {
    w.consumer().flush().await;
    assert!(w.consumer().news().is_empty(), "{:#?}", w.consumer().list());
}
