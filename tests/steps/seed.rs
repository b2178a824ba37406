//! Rows as a writer that died left them.

use bson::{Bson, Document, doc};
use cucumber::{given, when};

use super::{change::now, json, world::Tea};

/// A row that has been due for a second.
fn row(pot: &str) -> Document {
    doc! {
        "_id": bson::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes()),
        "lane": rand::random_range(0..128),
        "published": false,
        "pending": now() - 1000,
        "event": { "origin": null, "state": { "_id": pot }, "trailers": null, "input": null },
    }
}

/// Sets a field, by a dotted path.
fn set(row: &mut Document, path: &str, value: Bson) {
    match path.split_once('.') {
        Some((field, rest)) => set(row.get_document_mut(field).unwrap(), rest, value),
        None => {
            row.insert(path, value);
        }
    }
}

async fn leave(w: &mut Tea, pot: String, row: Document) {
    w.rows().insert_one(&row).await.unwrap();
    w.seeds.insert(pot.clone(), row);
    w.pot = pot;
}

#[given(regex = r#"^a dead writer's row of the pot "(\w+)"$"#)]
async fn left(w: &mut Tea, pot: String) {
    leave(w, pot.clone(), row(&pot)).await;
}

#[given(regex = r#"^a dead writer's row of the pot "(\w+)", due (in|for) (\d+) ms$"#)]
async fn left_due(w: &mut Tea, pot: String, direction: String, ms: i64) {
    let mut row = row(&pot);
    row.insert(
        "pending",
        if direction == "in" {
            now() + ms
        } else {
            now() - ms
        },
    );
    leave(w, pot, row).await;
}

#[given(
    regex = r#"^a dead writer's row of the pot "(\w+)", with "(\S+)" as (.+?)(?:, due since second (\d+))?$"#
)]
async fn left_with(w: &mut Tea, pot: String, field: String, value: String, since: String) {
    let mut row = row(&pot);
    set(&mut row, &field, json::bson(&value));
    if let Ok(second) = since.parse::<i64>() {
        row.insert("pending", second * 1000);
    }
    leave(w, pot, row).await;
}

#[given(regex = r#"^a dead writer's row of the pot "(\w+)", with an id of (\d+) letters$"#)]
async fn left_long(w: &mut Tea, pot: String, letters: usize) {
    let mut row = row(&pot);
    row.insert("_id", "x".repeat(letters));
    leave(w, pot, row).await;
}

#[given(regex = r#"^(\d+) rows of a dead writer(?:, with "(\S+)" as (.+))?$"#)]
async fn many(w: &mut Tea, count: usize, field: String, value: String) {
    let pots: Vec<String> = (0..count).map(|number| format!("pot-{number}")).collect();
    let mut rows: Vec<Document> = pots.iter().map(|pot| row(pot)).collect();
    if !field.is_empty() {
        rows.iter_mut()
            .for_each(|row| set(row, &field, json::bson(&value)));
    }
    w.rows().insert_many(rows).await.unwrap();
    w.pots = pots;
}

#[when(regex = r"^a dead writer leaves (\d+) rows?$")]
async fn leaves(w: &mut Tea, count: usize) {
    many(w, count, String::new(), String::new()).await;
}

#[when(regex = r#"^an archive is restored with the published pot "(\w+)"$"#)]
async fn restored(w: &mut Tea, pot: String) {
    let mut row = row(&pot);
    row.extend(doc! { "published": true, "publishedAt": bson::DateTime::now() });
    leave(w, pot, row).await;
}

#[when(regex = r#"^a row comes of the pot "(\w+)", which owes "(\S+)" alone$"#)]
async fn owing(w: &mut Tea, pot: String, route: String) {
    let mut row = row(&pot);
    row.insert("outstanding", [route]);
    leave(w, pot, row).await;
}

/// Whoever owns them: a row in each has been published and marked.
#[when("every lane is pumped")]
async fn pumped(w: &mut Tea) {
    let rows: Vec<Document> = (0..128)
        .map(|lane| {
            let mut row = row("probe");
            row.insert("lane", lane);
            // None of these pots is counted.
            row.insert("outstanding", bson::Bson::Array(vec![]));
            row
        })
        .collect();
    w.rows().insert_many(rows).await.unwrap();
    w.settled().await;
}
