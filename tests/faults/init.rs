//! `toa-outbox init`, the real program against a real server.

use std::{process::Output, time::Duration};

use bson::{Bson, Document, doc};
use tokio::process::Command;

use crate::{
    rig::{PATIENCE, Rig},
    support::servers,
};

async fn init(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toa-outbox"));
    command
        .arg("init")
        .args(args)
        .env_remove("TOA_OUTBOX_MONGODB");
    command.output().await.unwrap()
}

#[tokio::test]
async fn a_prepared_collection_refuses_rows_no_pump_could_read_and_takes_ours() {
    let uri = servers().await.mongo.uri();
    let rig = Rig::shared().await;
    let args = [
        "--mongodb",
        &uri,
        "--database",
        rig.namespace(),
        rig.rows().name(),
    ]
    .map(str::to_owned);
    for _ in 0..2 {
        let output = init(&args.each_ref().map(String::as_str)).await;
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(rig.expiry().await, Some(Duration::from_secs(86_400)));

    let row = |field: &str, value: Option<Bson>| {
        let event = doc! { "origin": null, "state": {}, "trailers": null, "input": null };
        let mut row = doc! { "lane": 1, "published": false, "pending": 1_i64, "event": event };
        match value {
            Some(value) => row.insert(field, value),
            None => row.remove(field),
        };
        row
    };
    let refused: Vec<Document> = vec![
        row("lane", None),
        row("lane", Some(128.into())),
        row("lane", Some((-1).into())),
        row("lane", Some(1.5.into())),
        row("lane", Some("1".into())),
        row("published", None),
        row("published", Some(true.into())),
        row("pending", None),
        row("pending", Some("now".into())),
        row("event", None),
        row("event", Some(doc! {}.into())),
        row("_id", Some(7.into())),
    ];
    for row in refused {
        let inserted = rig.rows().insert_one(&row).await;
        assert!(inserted.is_err(), "{row} was taken");
    }

    // What we write, mark partially and mark wholly passes.
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    pots.create(doc! {}, doc! {}).await.unwrap();
    rig.seed(1, |row, _| {
        row.insert("outstanding", vec!["amqp/created", "elsewhere/created"]);
    })
    .await;
    created.wait_for(2, PATIENCE).await;
    crate::support::eventually(PATIENCE, "both are marked", async || {
        rig.count(doc! { "published": true }).await == 1
            && rig
                .count(doc! { "outstanding": ["elsewhere/created"] })
                .await
                == 1
    })
    .await;
    pots.shutdown().await;
}

#[tokio::test]
async fn what_is_wrong_is_named_and_passwords_are_not() {
    let wrong: [&[&str]; 4] = [
        &["--database", "x", "rows"],
        &[
            "--mongodb",
            "mongodb://me:secret@/",
            "--database",
            "x",
            "rows",
        ],
        &[
            "--mongodb",
            "http://me:secret@host",
            "--database",
            "x",
            "rows",
        ],
        &["--mongodb", "mongodb://me:secret@localhost"],
    ];
    for args in wrong {
        let output = init(args).await;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(
            !text.contains("secret") && !text.contains("panicked"),
            "{text}"
        );
    }
}
