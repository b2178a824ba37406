//! `publish`: again, and all of it.

use std::{process::Stdio, time::Duration};

use bson::{Document, doc};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    beside::boiling,
    stage::{Stage, published, row, run, with},
    support::{Checker, Rabbit, ReplicaSet, eventually, servers},
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

    let ran = stage
        .run(&["publish", "waits", "done", "--mark"])
        .await
        .ends_with(0);
    assert_eq!(ran.out, "sent 2 rows as 2 messages, 0 failed, 1 marked\n");
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
            .ends_with("would send 2 rows as 2 messages, 0 failed, 0 marked\n")
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
        .run(&[
            "publish", "--where", "{}", "--yes", "--limit", "100", "--mark",
        ])
        .await
        .ends_with(0);
    ran.line("sent 100 rows as 100 messages, 0 failed, 100 marked");
    let ran = stage
        .run(&["publish", "--where", r#"{"published": false}"#, "--mark"])
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
        .run(&["publish", "x", "--label", "updated", "--mark"])
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

#[tokio::test]
async fn what_else_is_owed_must_be_known_before_a_row_is_marked() {
    let stage = Stage::new().await;
    let created = Checker::bind(&stage.amqp, &stage.exchange("created")).await;
    stage.insert([row("x", 1), row("y", 1)]).await;
    let ran = stage.run(&["publish", "x"]).await.ends_with(0);
    ran.line("sent 1 rows as 1 messages, 0 failed, 0 marked");
    assert!(ran.line("1 of them").contains("--mark"), "{ran:?}");
    created.wait_for(1, PATIENCE).await;
    let x = stored(&stage, "x").await;
    assert!(
        !x.get_bool("published").unwrap() && !x.contains_key("outstanding"),
        "{x}"
    );

    let file = boiling(&stage);
    let config = file.path().to_str().unwrap();
    let ran = stage
        .run(&["publish", "x", "--config", config])
        .await
        .ends_with(0);
    ran.line("sent 1 rows as 2 messages, 0 failed, 1 marked");
    assert!(stored(&stage, "x").await.get_bool("published").unwrap());
    stage
        .run(&["publish", "y", "--mark"])
        .await
        .ends_with(0)
        .line("1 marked");
    assert!(stored(&stage, "y").await.get_bool("published").unwrap());
}

#[tokio::test]
async fn what_has_left_is_marked_when_it_is_interrupted() {
    let stage = Stage::new().await;
    let created = Checker::bind(&stage.amqp, &stage.exchange("created")).await;
    for start in [0, 10_000, 20_000] {
        let rows = (start..start + 10_000).map(|number| row(format!("row-{number}"), 1));
        stage.insert(rows).await;
    }
    let mut publish = stage.command(&["publish", "--where", "{}", "--yes", "--mark"]);
    publish.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = publish.spawn().unwrap();
    created.wait_for(500, PATIENCE).await;
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = child.wait_with_output().await.unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&ended.stderr).contains("interrupted"),
        "{ended:?}"
    );
    let rows = stage.rows();
    let marked = rows.count_documents(doc! { "published": true });
    let marked = usize::try_from(marked.await.unwrap()).unwrap();
    assert!((500..30_000).contains(&marked), "{marked}");
    eventually(PATIENCE, "each that was marked arrives", async || {
        created.distinct() >= marked
    })
    .await;
    assert_eq!(
        created.distinct(),
        marked,
        "nothing has left that is not marked"
    );
}

#[tokio::test]
async fn a_row_that_cannot_be_marked_keeps_no_other_from_it() {
    let stage = Stage::new().await;
    stage
        .insert((0..50).map(|number| row(format!("row-{number}"), 1)))
        .await;
    stage.insert([with(row("bad", 1), "color", "red")]).await;
    stage.run(&["init"]).await.ends_with(0);
    // A rule of the service's own, later than the row.
    let validator = doc! { "color": { "$exists": false } };
    let rule = doc! { "collMod": stage.outbox(), "validator": validator };
    stage.database.run_command(rule).await.unwrap();
    let ran = stage
        .run(&["publish", "--where", "{}", "--yes", "--mark"])
        .await
        .ends_with(1);
    ran.line("sent 50 rows as 51 messages, 1 failed, 50 marked");
    assert!(ran.line("row bad").contains("cannot be marked"), "{ran:?}");
}

#[tokio::test]
async fn a_marking_that_fails_for_a_while_is_repeated() {
    let set = ReplicaSet::start(1).await;
    let stage = Stage::on(&set.uri(), &servers().await.rabbit.uri()).await;
    stage.insert([row("x", 1)]).await;
    // Twice: the driver repeats it once by itself.
    let failing = doc! { "failCommands": ["update"], "errorCode": 91 };
    set.fail_command(doc! { "mode": { "times": 4 }, "data": failing })
        .await;
    let ran = stage.run(&["publish", "x", "--mark"]).await.ends_with(0);
    ran.line("sent 1 rows as 1 messages, 0 failed, 1 marked");
}

#[tokio::test]
async fn labels_that_share_an_exchange_are_counted_apart() {
    let stage = Stage::new().await;
    stage.insert([row("x", 1)]).await;
    let file = boiling(&stage);
    let text = std::fs::read_to_string(file.path()).unwrap();
    let broken = text
        .replace(
            "name = \"pots\"",
            "name = \"pots\"\nexchange = \"{namespace}.all\"",
        )
        .replace("\"boiled\"", "\"boiled\"\npayload = \"state.nowhere\"");
    std::fs::write(file.path(), broken).unwrap();
    let config = file.path().to_str().unwrap();
    let ran = stage
        .run(&["publish", "x", "--config", config])
        .await
        .ends_with(1);
    assert!(ran.line("not sent").contains("boiled"), "{ran:?}");
    ran.line("sent 0 rows as 1 messages, 1 failed, 1 marked");
}

#[tokio::test]
async fn a_broker_that_takes_nothing_is_told_of() {
    let rabbit = Rabbit::start().await;
    let stage = Stage::on(&servers().await.mongo.uri(), &rabbit.uri()).await;
    stage.insert([row("x", 1)]).await;
    rabbit.block().await;
    let mut publish = stage.command(&["publish", "x", "--mark"]);
    publish.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = publish.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, said.next_line()).await;
    let line = line.unwrap().unwrap().expect("a line");
    assert!(line.contains("the broker blocks publications"), "{line}");
    rabbit.unblock().await;
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn no_argument_is_shown_with_a_password() {
    let stage = Stage::new().await;
    stage.insert([row("x", 1)]).await;
    let uri = "mongodb://me:hunter2@db/tea";
    for (args, code) in [
        (&["show", uri][..], 1),
        (&["publish", uri], 1),
        (&["publish", uri, "--json"], 1),
        (&["publish", "x", "--label", uri], 2),
        (&["list", "--component", uri], 2),
    ] {
        let ran = run(stage.command(args)).await.ends_with(code);
        let said = format!("{}{}", ran.out, ran.err);
        assert!(
            said.contains("db/tea") && !said.contains("hunter2"),
            "{ran:?}"
        );
    }
}
