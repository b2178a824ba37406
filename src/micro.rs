//! What the microbenchmarks measure: the steps of a row within this process. Not part of the API.

use std::{hint::black_box, time::Instant};

use bson::doc;

use crate::{
    label::{Encoding, Label},
    relay::ledger::{Ledger, Sent},
    routes::RouteSet,
    row::{Event, Row, RowId},
    store::{decode, encode},
};

/// One step, done once by each call.
pub type Step = Box<dyn FnMut()>;

/// The steps by name.
pub fn steps() -> Vec<(&'static str, Step)> {
    vec![
        ("encode", writing()),
        ("decode", reading()),
        ("render", rendering()),
        ("ledger", bookkeeping()),
    ]
}

/// A row to BSON.
fn writing() -> Step {
    let row = row();
    Box::new(move || drop(black_box(encode(black_box(&row)))))
}

/// And back.
fn reading() -> Step {
    let raw = encode(&row()).expect("a document of text");
    Box::new(move || drop(black_box(decode(black_box(&raw)))))
}

/// An event to a body.
fn rendering() -> Step {
    let (label, event) = (Label::updated(), row().event);
    Box::new(move || drop(black_box(label.render(black_box(&event), Encoding::Json))))
}

/// A row that is swept, sent and marked.
fn bookkeeping() -> Step {
    let ledger = Ledger::new(10_000);
    let mut row = row();
    Box::new(move || {
        row.id = RowId::new();
        let claim = ledger.claim(&row, Instant::now());
        let claim = claim.expect("an id that is new is free");
        claim.sending(true);
        claim.settle(Sent::Whole, RouteSet::default());
        ledger.marked([&row.id]);
    })
}

/// Of an entity with a few fields of each kind, 1 KB.
fn row() -> Row {
    let state = |volume: i64| {
        doc! {
            "_id": bson::oid::ObjectId::from_bytes([7; 12]),
            "_version": 3,
            "material": "porcelain",
            "volume": volume,
            "boiled": true,
            "temperature": 97.5,
            "made": bson::DateTime::from_millis(1_700_000_000_000),
            "owner": { "name": "Ada", "tags": ["kitchen", "guests"] },
            "story": "x".repeat(300),
        }
    };
    Row {
        id: RowId::new(),
        lane: 42,
        pending: 1_700_000_000_000,
        event: Event::changed(state(500), state(750)).input(doc! { "pour": 250, "by": "Ada" }),
        outstanding: None,
    }
}
