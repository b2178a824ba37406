//! `publish`: again, and all of it.

use std::time::Duration;

use bson::{Document, doc};

use crate::{
    stage::{Stage, published, row, with},
    support::{Checker, eventually},
};

const PATIENCE: Duration = Duration::from_secs(30);

async fn stored(stage: &Stage, id: &str) -> Document {
    stage
        .rows()
        .find_one(doc! { "_id": id })
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn rows_are_sent_again_and_those_that_waited_are_marked() {
    let stage = Stage::new().await;
    let created = Checker::bind(&stage.amqp, &stage.exchange("created")).await;
    stage
        .insert([row("waits", 1), published(row("done", 1)), row("other", 1)])
        .await;

    let ran = stage.run(&["publish", "waits", "done"]).await.ends_with(0);
    assert_eq!(
        ran.out,
        "sent 2 rows as 2 messages, 0 failed, 1 marked published\n"
    );
    assert!(
        ran.err.is_empty(),
        "no progress where nobody looks: {ran:?}"
    );
    created.wait_for(2, PATIENCE).await;
    let marked = stored(&stage, "waits").await;
    assert!(marked.get_bool("published").unwrap() && marked.get_datetime("publishedAt").is_ok());
    assert!(!stored(&stage, "other").await.get_bool("published").unwrap());

    let ran = stage
        .run(&["publish", "done", "nowhere", "--json"])
        .await
        .ends_with(1)
        .json();
    assert_eq!(ran[0]["id"], "nowhere");
    assert_eq!(
        (&ran[1]["rows"], &ran[1]["failed"], &ran[1]["marked"]),
        (&1.into(), &1.into(), &0.into())
    );
    eventually(PATIENCE, "it arrives once more", async || {
        created.count() == 3
    })
    .await;
}

#[tokio::test]
async fn a_filter_a_limit_and_a_dry_run_say_which() {
    let stage = Stage::new().await;
    let created = Checker::bind(&stage.amqp, &stage.exchange("created")).await;
    stage
        .insert((0..2500).map(|number| row(format!("row-{number:04}"), 1)))
        .await;
    let clay = r#"{"event.state.material": "clay"}"#;

    let dry = stage
        .run(&["publish", "--where", clay, "--dry-run", "--limit", "2"])
        .await
        .ends_with(0);
    assert!(
        dry.line("row-0001")
            .ends_with(&format!("would go to {}", stage.exchange("created")))
    );
    assert!(
        dry.out
            .ends_with("would send 2 rows as 2 messages, 0 failed, 0 marked published\n")
    );
    assert_eq!(
        stage
            .rows()
            .count_documents(doc! { "published": true })
            .await
            .unwrap(),
        0
    );

    let refused = stage.run(&["publish", "--where", "{}"]).await.ends_with(2);
    assert!(refused.err.contains("--yes"), "{refused:?}");

    let ran = stage
        .run(&["publish", "--where", "{}", "--yes", "--limit", "100"])
        .await
        .ends_with(0);
    ran.line("sent 100 rows as 100 messages, 0 failed, 100 marked");
    let ran = stage
        .run(&["publish", "--where", r#"{"published": false}"#])
        .await
        .ends_with(0);
    ran.line("sent 2400 rows as 2400 messages, 0 failed, 2400 marked");
    created.wait_for(2500, PATIENCE).await;
    assert_eq!(created.count(), 2500);
    assert_eq!(
        stage
            .rows()
            .count_documents(doc! { "published": true })
            .await
            .unwrap(),
        2500
    );
}

#[tokio::test]
async fn what_is_done_is_not_repeated_and_what_others_are_owed_stays() {
    let stage = Stage::new().await;
    let created = Checker::bind(&stage.amqp, &stage.exchange("created")).await;
    stage
        .group(&[("one", &["amqp/created", "amqp/boiled"])])
        .await;
    stage
        .insert([
            row("whole", 1),
            with(row("partly", 1), "outstanding", vec!["amqp/boiled"]),
        ])
        .await;
    stage
        .run(&["publish", "whole", "partly"])
        .await
        .ends_with(0);
    created.wait_for(1, PATIENCE).await;
    assert_eq!(created.count(), 1);
    for id in ["whole", "partly"] {
        let row = stored(&stage, id).await;
        assert!(!row.get_bool("published").unwrap(), "{row}");
        assert_eq!(
            row.get_array("outstanding").unwrap(),
            &["amqp/boiled".into()],
            "{row}"
        );
    }
}

#[tokio::test]
async fn one_label_alone_can_be_sent() {
    let stage = Stage::new().await;
    stage.insert([row("x", 1)]).await;
    let ran = stage
        .run(&["publish", "x", "--label", "updated"])
        .await
        .ends_with(0);
    ran.line("sent 1 rows as 0 messages, 0 failed, 1 marked");
    let row = stored(&stage, "x").await;
    assert!(!row.get_bool("published").unwrap(), "{row}");
    let ran = stage
        .run(&["publish", "x", "--label", "boiled"])
        .await
        .ends_with(2);
    assert!(ran.err.contains("created, deleted, updated"), "{ran:?}");
}

#[tokio::test]
async fn what_cannot_be_sent_is_told_and_not_marked() {
    let mut stage = Stage::new().await;
    crate::check::declare_topic(&stage.amqp, &stage.exchange("created")).await;
    stage
        .insert([row("x", 1), with(row("bad", 1), "lane", 128)])
        .await;
    let ran = stage.run(&["publish", "x", "bad"]).await.ends_with(1);
    assert!(ran.line("x of").contains("PRECONDITION_FAILED"), "{ran:?}");
    assert!(ran.line("bad of").contains("lane"), "{ran:?}");
    ran.line("sent 0 rows as 0 messages, 2 failed");
    assert!(!stored(&stage, "x").await.get_bool("published").unwrap());

    stage.amqp = "amqp://me:hunter2@127.0.0.1:1".into();
    let ran = stage.run(&["publish", "x"]).await.ends_with(1);
    assert!(
        ran.err
            .contains("cannot connect to the broker; amqp://127.0.0.1:1"),
        "{ran:?}"
    );
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
}
