//! Rows with a digest of their event, which a service of any language can make, and rows that were changed since.

use std::{collections::BTreeSet, time::Duration};

use bson::{Binary, Document, doc, spec::BinarySubtype};

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Checker, eventually},
    town::{Town, row},
};

/// The same with the digest of its event; its keys, and those of its state, are in order here.
fn sealed(mut row: Document) -> Document {
    let state = row
        .get_document("event")
        .unwrap()
        .get_document("state")
        .unwrap();
    let event = doc! { "input": null, "origin": null, "state": state, "trailers": null };
    let bytes = bson::RawDocumentBuf::try_from(&event).unwrap().into_bytes();
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    let digest = Binary {
        subtype: BinarySubtype::Generic,
        bytes: digest.as_ref().to_vec(),
    };
    row.insert("digest", digest);
    row
}

/// Rows with the digest, changed after it, and without one; the ids of each.
fn rows() -> ([String; 3], [Document; 3]) {
    let [(good, one), (altered, other), (bare, last)] =
        [(), (), ()].map(|()| row(doc! { "material": "clay" }));
    let mut other = sealed(other);
    let event = other.get_document_mut("event").unwrap();
    event.insert("state", doc! { "material": "gold" });
    ([good, altered, bare], [sealed(one), other, last])
}

async fn arrived(consumer: &Checker, expected: &BTreeSet<String>) {
    eventually(PATIENCE, "what is as it was written arrives", async || {
        let received = consumer.received();
        let ids: BTreeSet<String> = received.iter().map(|one| one.message_id.clone()).collect();
        ids == *expected
    })
    .await;
}

/// Rows that were there before are the pump's, the later ones the tail's: its cycles are far apart.
async fn sends(config: Option<&str>, is_bare_sent: bool) {
    let mut town = Town::shared().await;
    town.interval = Duration::from_secs(60);
    let consumer = town.consumer().await;
    let (swept, first) = rows();
    town.rows().insert_many(first).await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut settings = town.settings();
    if let Some(line) = config {
        let (namespace, name) = town.pots.split_once('_').unwrap();
        let text = format!("[[component]]\nnamespace = {namespace:?}\nname = {name:?}\n{line}\n");
        std::fs::write(file.path(), text).unwrap();
        settings.push(("CONFIG", file.path().display().to_string()));
    }
    let sidecar = Sidecar::start(&settings);
    let expected = |ids: &[String; 3]| {
        let [good, _, bare] = ids.clone();
        [Some(good), Some(bare).filter(|_| is_bare_sent)]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
    };
    let mut all: BTreeSet<String> = expected(&swept).into_iter().collect();
    arrived(&consumer, &all).await;
    sidecar.says(&swept[1]).await;
    // By the tail, whichever of them it meets first.
    for _ in 0..3 {
        let (tailed, more) = rows();
        town.rows().insert_many(more).await.unwrap();
        all.extend(expected(&tailed));
        arrived(&consumer, &all).await;
    }
    let unsent = if is_bare_sent { 4 } else { 8 };
    eventually(PATIENCE, "the others are marked", async || {
        town.unpublished().await == unsent
    })
    .await;
    assert_eq!(consumer.count(), all.len(), "none twice");
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn a_row_that_was_edited_is_sent_neither_by_the_pump_nor_by_the_tail() {
    sends(None, true).await;
}

#[tokio::test]
async fn nor_is_a_row_without_a_digest_where_integrity_is_asked_for() {
    sends(Some("integrity = true"), false).await;
}
