//! What an operator asks of a collection that is large, and is answered by an index.

use bson::{Document, doc};
use futures::TryStreamExt;

use crate::stage::{Stage, published, row};

#[tokio::test]
async fn no_command_reads_all_that_is_published() {
    let stage = Stage::new().await;
    stage.run(&["init", &stage.outbox()]).await.ends_with(0);
    stage
        .insert((0..500).map(|n| published(row(format!("done-{n}"), 9))))
        .await;
    stage
        .insert((0..3).map(|n| row(format!("waits-{n}"), 9)))
        .await;
    let profile = doc! { "profile": 2 };
    stage.database.run_command(profile).await.unwrap();
    for args in [
        &["check"][..],
        &["status"],
        &["list"],
        &["list", "--where", r#"{"event.state.material": "clay"}"#],
        &["publish", "--where", r#"{"published": false}"#, "--dry-run"],
    ] {
        stage.run(args).await;
    }
    let asked =
        doc! { "ns": stage.rows().namespace().to_string(), "planSummary": { "$exists": true } };
    let profile = stage.database.collection::<Document>("system.profile");
    let asked: Vec<Document> = profile
        .find(asked)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert!(asked.len() > 4, "{asked:?}");
    for question in asked {
        let examined = question
            .get("docsExamined")
            .and_then(bson::Bson::as_i32)
            .unwrap_or(0);
        assert!(examined < 50, "{question}");
    }
}
