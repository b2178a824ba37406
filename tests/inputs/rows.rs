//! Rows that no pump can publish: each is named with what is wrong with it, and delays no other.

use std::time::Duration;

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use tokio::process::Command;

use crate::{
    stage::{Stage, stage},
    support::{eventually, unique},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn row(id: impl Into<Bson>) -> Document {
    let event = doc! { "origin": null, "state": {}, "trailers": null, "input": null };
    doc! { "_id": id.into(), "lane": 3, "published": false, "pending": 0_i64, "event": event }
}

/// A row that is wrong in one field, and is called after it.
fn with(field: &str, value: impl Into<Bson>) -> Document {
    let value = value.into();
    let mut row = row(format!("{field}={value}"));
    row.insert(field, value);
    row
}

fn without(field: &str) -> Document {
    let mut row = row(format!("no {field}"));
    row.remove(field);
    row
}

fn with_event(field: &str, value: impl Into<Bson>) -> Document {
    let value = value.into();
    let mut row = row(format!("event.{field}={value}"));
    row.get_document_mut("event").unwrap().insert(field, value);
    row
}

fn id(row: &Document) -> String {
    match row.get("_id").unwrap() {
        Bson::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A database of these rows and one that is good, and its name.
async fn town(stage: &Stage, bad: &[Document]) -> String {
    let name = unique("tea").replace('_', "");
    let rows = stage.open.client().await.database(&name);
    let rows = rows.collection(&format!("{name}_pots_outbox"));
    rows.insert_many(bad).await.unwrap();
    rows.insert_one(row("good")).await.unwrap();
    name
}

async fn good_is_published(stage: &Stage, name: &str) {
    let rows = stage.open.client().await.database(name);
    let rows = rows.collection::<Document>(&format!("{name}_pots_outbox"));
    let done = doc! { "_id": "good", "published": true };
    eventually(PATIENCE, "the good row is published", async || {
        rows.count_documents(done.clone()).await.unwrap() == 1
    })
    .await;
}

#[tokio::test]
async fn rows_a_pump_reads_are_named_in_its_log() {
    let stage = stage().await;
    let bytes = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![7; 16],
    };
    let bad = [
        row(7),
        row(bytes),
        row(doc! { "of": "two" }),
        without("pending"),
        with("pending", Bson::Null),
        with("pending", f64::NAN),
        without("event"),
        with("event", "text"),
        with("event", doc! {}),
        with_event("state", Bson::Null),
        with_event("state", "text"),
        with_event("origin", "text"),
        with_event("origin", vec![1]),
        with("outstanding", "amqp/created"),
        with("outstanding", vec![5]),
        with("outstanding", doc! {}),
        row("long".repeat(70)),
    ];
    let name = town(stage, &bad).await;
    let mut run = stage.sidecar(&name, "");
    for row in &bad {
        let id = id(row);
        let is_it = |line: &str| {
            let remedies = ["mend or delete it", "shorten it, or delete the row"];
            line.contains(&id) && remedies.iter().any(|remedy| line.contains(remedy))
        };
        if !run.said.iter().any(|line| is_it(line)) {
            assert!(run.says(is_it).await, "{id} is not named: {:#?}", run.said);
        }
    }
    good_is_published(stage, &name).await;
    assert!(!run.said.iter().any(|line| line.contains("panicked")));
}

/// Queries of pumps do not match them, so it takes a look of its own to find them.
#[tokio::test]
async fn rows_no_pump_finds_are_named_by_list_and_check() {
    let stage = stage().await;
    let bad = [
        without("lane"),
        with("lane", Bson::Null),
        with("lane", "3"),
        with("lane", -1),
        with("lane", 128),
        with("lane", 1.5),
        without("published"),
        with("published", Bson::Null),
        with("published", 0),
        with("published", "false"),
        with("published", true),
        with("pending", "now"),
        with("pending", bson::DateTime::now()),
        with("pending", f64::INFINITY),
    ];
    let name = town(stage, &bad).await;
    let _run = stage.sidecar(&name, "");
    good_is_published(stage, &name).await;
    let listed = said(stage, &name, &["list", "--unreadable"]).await;
    for row in &bad {
        let (id, column) = (id(row), id(row) + "\t");
        let line = listed.lines().find(|line| line.starts_with(&column));
        let line = line.unwrap_or_else(|| panic!("{id} is not named: {listed}"));
        assert!(line.contains(&format!("row {id}: ")), "{line}");
    }
    let checked = said(stage, &name, &["check"]).await;
    for part in ["rows that no pump can read", "mend or delete them"] {
        assert!(checked.contains(part), "{part}: {checked}");
    }
}

async fn said(stage: &Stage, name: &str, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_toa-outbox"))
        .args(args)
        .env("TOA_OUTBOX_MONGODB", stage.mongodb())
        .env("TOA_OUTBOX_AMQP", stage.rabbit.uri())
        .env("TOA_OUTBOX_DATABASE", name)
        .output()
        .await
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}
