//! `init --dry-run`: what would be done, and nothing of it is.

use bson::doc;

use crate::stage::{Stage, row};

#[tokio::test]
async fn a_dry_run_says_what_it_would_do_and_does_nothing() {
    let stage = Stage::new().await;
    let dry = async |args: &[&str]| stage.run(&[&["init", "--dry-run"], args].concat()).await;
    let outbox = stage.outbox();

    let would = dry(&[&outbox]).await.ends_with(0);
    assert!(would.line(&outbox).contains("would create the collection"));
    assert!(
        stage
            .database
            .list_collection_names()
            .await
            .unwrap()
            .is_empty()
    );

    stage.insert([row("x", 0)]).await;
    let would = dry(&[]).await.ends_with(0);
    would.line("would create the index { lane: 1, partial: 1, pending: 1 }");
    would.line("would create the TTL index { publishedAt: 1 } of 86400 s");
    would.line("would install the validator");
    let would = dry(&["--json"]).await.ends_with(0).json();
    assert_eq!(would[0]["work"].as_array().unwrap().len(), 3);
    assert_eq!(would[0]["done"], false);

    stage.run(&["init"]).await.ends_with(0).line("ready");
    assert!(
        dry(&[])
            .await
            .ends_with(0)
            .line(&outbox)
            .ends_with("nothing to do")
    );
    let mut hour = stage.command(&["init", "--dry-run"]);
    hour.env("TOA_OUTBOX_RETENTION", "3600");
    crate::stage::run(hour)
        .await
        .ends_with(0)
        .line("would set the expiry of { publishedAt: 1 } to 3600 s");
    assert_eq!(stage.rows().list_index_names().await.unwrap().len(), 3);
}

#[tokio::test]
async fn without_anything_to_prepare_it_says_what_to_name() {
    let stage = Stage::new().await;
    let ran = stage.run(&["init"]).await.ends_with(1);
    assert!(
        ran.err.contains("name one, such as tea_pots_outbox"),
        "{ran:?}"
    );
    stage.insert([row("x", 0)]).await;
    let ran = stage
        .run(&["init", "--component", "tea.cups"])
        .await
        .ends_with(2);
    assert!(ran.err.contains(&stage.component()), "{ran:?}");
    stage
        .database
        .run_command(doc! { "dropDatabase": 1 })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_collection_that_is_no_outbox_is_left_alone() {
    let stage = Stage::new().await;
    let entities = format!("{}_pots", stage.namespace);
    let pots = stage.database.collection(&entities);
    pots.insert_one(doc! { "_id": 1 }).await.unwrap();
    let ran = stage
        .run(&["init", &stage.outbox(), &entities])
        .await
        .ends_with(2);
    let suggested = format!("did you mean {}?", stage.outbox());
    assert!(ran.err.contains(&suggested), "{ran:?}");
    let there = stage.database.list_collection_names().await.unwrap();
    assert_eq!(there, std::slice::from_ref(&entities));
    pots.insert_one(doc! { "_id": 2 }).await.unwrap();

    let ran = stage
        .run(&["init", "mongodb://me:hunter2@db/tea"])
        .await
        .ends_with(2);
    assert!(
        ran.err.contains("COLLECTION") && !ran.err.contains("hunter2"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn a_declared_outbox_may_have_any_name() {
    let stage = Stage::new().await;
    let file = crate::beside::boiling(&stage);
    let text = std::fs::read_to_string(file.path()).unwrap();
    let text = text.replace("name = \"pots\"", "name = \"pots\"\noutbox = \"letters\"");
    std::fs::write(file.path(), text).unwrap();
    let config = ["--config", file.path().to_str().unwrap()];
    let init = async |name: &str| stage.run(&[&["init", name][..], &config].concat()).await;
    init("letters").await.ends_with(0).line("letters: ready");
    let ran = init(&stage.component()).await.ends_with(2);
    assert!(ran.err.contains("did you mean letters?"), "{ran:?}");
}
