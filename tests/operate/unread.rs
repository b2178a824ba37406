//! An output that nobody reads: what works goes on, what judges keeps its verdict.

use bson::doc;

use crate::stage::{Stage, row, unread, with};

#[tokio::test]
async fn collections_are_prepared_all_the_same() {
    let stage = Stage::new().await;
    let cups = format!("{}_cups_outbox", stage.namespace);
    let init = stage.command(&["init", &stage.outbox(), &cups]);
    let ran = unread(init).await.ends_with(0);
    assert!(ran.err.is_empty(), "{ran:?}");
    let made = stage.database.list_collection_names().await.unwrap();
    assert_eq!(made.len(), 2, "{made:?}");
}

#[tokio::test]
async fn rows_are_sent_and_marked_all_the_same() {
    let stage = Stage::new().await;
    let rows = (0..20).map(|number| row(format!("row-{number}"), 1));
    stage.insert(rows).await;
    stage.insert([with(row("bad", 1), "lane", 128)]).await;
    let publish = stage.command(&["publish", "--where", "{}", "--yes", "--mark"]);
    unread(publish).await.ends_with(1);
    let rows = stage.rows();
    let marked = rows.count_documents(doc! { "published": true });
    assert_eq!(marked.await.unwrap(), 20);
}

#[tokio::test]
async fn a_verdict_stays() {
    let stage = Stage::new().await;
    stage.insert([row("x", 1)]).await;
    unread(stage.command(&["check"])).await.ends_with(1);
    stage.run(&["init"]).await.ends_with(0);
    unread(stage.command(&["check"])).await.ends_with(0);
}
