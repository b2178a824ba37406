//! What stands in the outbox collection.

use bson::{Bson, Document, doc, spec::BinarySubtype};
use cucumber::then;
use futures::TryStreamExt;

use super::{
    json,
    world::{PATIENCE, Tea},
};
use crate::support::eventually;

/// The row of a pot: the seeded one, or that of its last change.
pub async fn row(w: &Tea, pot: &str) -> Option<Document> {
    let filter = match w.seeds.get(pot) {
        Some(seed) => doc! { "_id": seed.get("_id").cloned() },
        None => doc! { "event.state._id": pot },
    };
    let rows = w.rows();
    rows.find_one(filter)
        .sort(doc! { "_id": -1 })
        .await
        .unwrap()
}

/// Waits for the row to be as it should.
async fn becomes(w: &mut Tea, pot: String, what: &str, fits: impl Fn(&Document) -> bool) {
    eventually(PATIENCE, what, async || {
        row(w, &pot).await.is_some_and(|row| fits(&row))
    })
    .await;
    w.pot = pot;
}

async fn it(w: &Tea) -> Document {
    row(w, &w.pot).await.expect("a row")
}

fn is_marked(row: &Document) -> bool {
    row.get_bool("published").is_ok_and(|published| published)
        && row.get_datetime("publishedAt").is_ok()
        && !row.contains_key("outstanding")
        && !row.contains_key("partial")
}

#[then(regex = r#"^the row of the pot "(\w+)" is marked$"#)]
async fn marked(w: &mut Tea, pot: String) {
    becomes(w, pot, "the row is marked", is_marked).await;
}

#[then("it is not marked")]
async fn not_marked(w: &mut Tea) {
    let row = it(w).await;
    assert!(!row.get_bool("published").unwrap());
    assert!(!row.contains_key("publishedAt"), "{row}");
}

#[then("every row is marked")]
async fn all_marked(w: &mut Tea) {
    w.settled().await;
}

#[then("every row has been marked")]
async fn all_have_been_marked(w: &mut Tea) {
    assert_eq!(w.count(doc! { "published": false }).await, 0);
}

#[then("it was marked between its writing and now, by the server's clock")]
async fn marked_at(w: &mut Tea) {
    let hello = w.database.run_command(doc! { "hello": 1 }).await.unwrap();
    let now = hello.get_datetime("localTime").unwrap().timestamp_millis();
    let at = it(w)
        .await
        .get_datetime("publishedAt")
        .unwrap()
        .timestamp_millis();
    assert!((w.written.0..=now).contains(&at), "{at}, {now}");
}

#[then(regex = r#"^the row of the pot "(\w+)" owes only (\S+)$"#)]
async fn owes(w: &mut Tea, pot: String, route: String) {
    let expected = Bson::from(vec![route]);
    becomes(w, pot, "the row owes that only", |row| {
        row.get("outstanding") == Some(&expected)
            && row.get_bool("published").is_ok_and(|published| !published)
    })
    .await;
}

#[then(regex = r#"^the row of the pot "(\w+)" is gone$"#)]
async fn gone(w: &mut Tea, pot: String) {
    eventually(PATIENCE, "the row is gone", async || {
        row(w, &pot).await.is_none()
    })
    .await;
}

#[then(regex = r#"^the row of the pot "(\w+)" is left as it was$"#)]
async fn as_it_was(w: &mut Tea, pot: String) {
    assert_eq!(row(w, &pot).await.as_ref(), Some(&w.seeds[&pot]));
}

#[then(regex = r#"^it still has "(\w+)" as (.+)$"#)]
async fn still_has(w: &mut Tea, field: String, value: String) {
    assert_eq!(it(w).await.get(&field), Some(&json::bson(&value)));
}

#[then(regex = r"^there (?:are|is) (\d+) rows?$")]
async fn counted(w: &mut Tea, count: u64) {
    assert_eq!(w.count(doc! {}).await, count);
}

#[then("there is no outbox collection")]
async fn no_collection(w: &mut Tea) {
    let names = w.database.list_collection_names().await.unwrap();
    assert!(!names.contains(&w.rows().name().to_owned()), "{names:?}");
}

#[then(regex = r#"^the row of the pot "(\w+)" has the fields (.+) and (.+)$"#)]
async fn fields(w: &mut Tea, pot: String, first: String, last: String) {
    w.pot = pot;
    let row = it(w).await;
    let expected: Vec<&str> = first.split(", ").chain([last.as_str()]).collect();
    assert_eq!(row.keys().collect::<Vec<_>>(), expected);
    assert!(!row.get_bool("published").unwrap());
}

#[then(regex = r"^its id is a UUID of version (\d)$")]
async fn id(w: &mut Tea, version: usize) {
    match it(w).await.get("_id") {
        Some(Bson::Binary(binary)) if binary.subtype == BinarySubtype::Uuid => {
            let id = uuid::Uuid::from_slice(&binary.bytes).unwrap();
            assert_eq!(id.get_version_num(), version);
        }
        other => panic!("{other:?}"),
    }
}

#[then("its lane is a whole number from 0 to 127")]
async fn lane(w: &mut Tea) {
    assert!((0..128).contains(&it(w).await.get_i32("lane").unwrap()));
}

#[then("it is due three intervals after it was written")]
async fn due(w: &mut Tea) {
    let gap = 3 * w.settings.interval.as_millis() as i64;
    let written = it(w).await.get_i64("pending").unwrap() - gap;
    assert!((w.written.0..=w.written.1).contains(&written), "{written}");
}

#[then(regex = r"^its event is (\{.*\})$")]
async fn event(w: &mut Tea, expected: String) {
    let event = it(w).await.get_document("event").unwrap().clone();
    assert_eq!(json::plain(event), json::value(&expected));
}

#[then("every row is in an odd lane")]
async fn odd(w: &mut Tea) {
    let rows: Vec<Document> = w
        .rows()
        .find(doc! {})
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(rows.len(), w.pots.len());
    assert!(rows.iter().all(|row| row.get_i32("lane").unwrap() % 2 == 1));
}

/// With the broker's refusal, a cycle after the other: the wait grows between attempts.
#[then(regex = r#"^the pump finds the row of the pot "(\w+)" and cannot send it$"#)]
async fn cannot_send(w: &mut Tea, pot: String) {
    let service = w.service().await;
    eventually(PATIENCE, "a cycle finds it", async || {
        service.pass().await.unwrap().unsent == 1
    })
    .await;
    w.pot = pot;
}
