//! What is stored of a pot itself.

use bson::{Bson, Document, doc};
use cucumber::{given, then, when};

use super::{
    change::{now, of},
    json,
    world::{PATIENCE, Tea},
};
use crate::support::eventually;

#[given(regex = r#"^the pot "(\w+)" is stored as (\{.*\})$"#)]
async fn store(w: &mut Tea, pot: String, fields: String) {
    w.entities()
        .insert_one(of(&pot, json::document(&fields)))
        .await
        .unwrap();
}

#[given(regex = r#"^the pot "(\w+)" is stored with (\d+) million bytes$"#)]
async fn store_large(w: &mut Tea, pot: String, millions: usize) {
    let fields = doc! { "story": "x".repeat(millions * 1_000_000), "_version": 1 };
    w.entities().insert_one(of(&pot, fields)).await.unwrap();
}

async fn stored(w: &Tea, pot: &str) -> Option<Document> {
    w.entities().find_one(doc! { "_id": pot }).await.unwrap()
}

#[then(regex = r#"^the pot "(\w+)" is stored as (\{.*\})$"#)]
async fn is_stored(w: &mut Tea, pot: String, expected: String) {
    let state = stored(w, &pot).await.expect("stored");
    assert_eq!(json::plain(state), json::value(&expected));
}

#[then(regex = r#"^the pot "(\w+)" is not stored$"#)]
async fn is_not_stored(w: &mut Tea, pot: String) {
    assert_eq!(stored(w, &pot).await, None);
}

#[then(regex = r#"^the pot "(\w+)" is stored with a date as "(\w+)"$"#)]
async fn is_stored_with_date(w: &mut Tea, pot: String, field: String) {
    let state = stored(w, &pot).await.expect("stored");
    let age = now() - state.get_datetime(&field).unwrap().timestamp_millis();
    assert!((0..60_000).contains(&age), "{age} ms ago");
}

#[then(regex = r#"^the pot "(\w+)" is at version (\d+)$"#)]
async fn is_at_version(w: &mut Tea, pot: String, version: i64) {
    let state = stored(w, &pot).await.expect("stored");
    assert_eq!(
        json::bson(&state.get("_version").unwrap().to_string()),
        Bson::from(version as i32)
    );
}

#[when(regex = r#"^the pot "(\w+)" has been stored$"#)]
async fn has_been_stored(w: &mut Tea, pot: String) {
    eventually(PATIENCE, "the pot is stored", async || {
        stored(w, &pot).await.is_some()
    })
    .await;
}
