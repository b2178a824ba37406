//! `list`, `show` and `status`: nothing is changed, everything is told.

use std::process::Stdio;

use bson::{Bson, doc, oid::ObjectId};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use crate::stage::{Stage, altered, published, row, run, with};

#[tokio::test]
async fn rows_are_listed_oldest_first_over_all_components() {
    let stage = Stage::new().await;
    stage
        .insert([
            row("b", 20),
            row("d", 5),
            row("soon", -60),
            published(row("done", 90)),
        ])
        .await;
    let cups = stage
        .database
        .collection(&format!("{}_cups_outbox", stage.namespace));
    cups.insert_many([row("a", 30), with(row("c", 10), "lane", 100)])
        .await
        .unwrap();

    let ids = async |args: &[&str]| {
        let args = [&["list", "--json"], args].concat();
        let rows = stage.run(&args).await.ends_with(0).json();
        let id = |row: &serde_json::Value| row["id"].as_str().unwrap().to_owned();
        rows.iter().map(id).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ids(&[]).await, "a b c d soon");
    assert_eq!(ids(&["--limit", "2"]).await, "a b");
    assert_eq!(ids(&["--older-than", "7s"]).await, "a b c");
    assert_eq!(ids(&["--lane", "100"]).await, "c");
    assert_eq!(ids(&["--component", &stage.component()]).await, "b d soon");
    assert_eq!(ids(&["--published"]).await, "done");
    assert_eq!(ids(&["--all", "--limit", "0"]).await, "a b c d soon done");
    assert_eq!(
        ids(&["--where", r#"{"_id": {"$gt": "b"}}"#]).await,
        "c d soon"
    );
    assert_eq!(
        ids(&["--where", r#"{"event.state.material": "glass"}"#]).await,
        ""
    );

    let plain = stage.run(&["list", "--limit", "1"]).await.ends_with(0);
    let columns: Vec<&str> = plain.line("a").split('\t').collect();
    assert_eq!(
        columns[..3],
        ["a", &format!("{}.cups", stage.namespace), "3"]
    );
    assert!(
        columns[3].starts_with("due for 3") && columns[4] == "all",
        "{columns:?}"
    );
}

#[tokio::test]
async fn a_label_picks_the_rows_that_owe_it() {
    let stage = Stage::new().await;
    stage
        .insert([
            row("all", 3),
            with(row("created", 2), "outstanding", vec!["amqp/created"]),
            with(row("deleted", 1), "outstanding", vec!["amqp/deleted"]),
        ])
        .await;
    let listed = stage
        .run(&["list", "--label", "created"])
        .await
        .ends_with(0);
    assert_eq!(listed.out.lines().count(), 2, "{listed:?}");
    assert!(listed.line("created").ends_with("amqp/created"));
}

#[tokio::test]
async fn rows_that_no_pump_can_read_are_listed_with_the_reason() {
    let stage = Stage::new().await;
    let unreadable = [
        with(row("lane", 1), "lane", 128),
        with(row("fraction", 1), "lane", 1.5),
        with(row("pending", 1), "pending", "now"),
        with(row("nan", 1), "pending", f64::NAN),
        with(row("missing", 1), "published", Bson::Null),
        with(row("born", 1), "published", true),
        with(row("event", 1), "event", 1),
        with(row("owes", 1), "outstanding", vec![1]),
        with(row("owes-what", 1), "outstanding", "amqp/created"),
        row(7, 1),
        row(
            bson::Binary {
                subtype: bson::spec::BinarySubtype::Generic,
                bytes: vec![1; 16],
            },
            1,
        ),
    ];
    let count = unreadable.len();
    stage.insert(unreadable).await;
    stage
        .insert([
            row("fine", 1),
            row(bson::Uuid::new(), 1),
            row(ObjectId::new(), 1),
            published(row("done", 1)),
        ])
        .await;
    let listed = stage
        .run(&["list", "--unreadable", "--json"])
        .await
        .ends_with(0)
        .json();
    assert_eq!(listed.len(), count, "{listed:#?}");
    for row in listed {
        assert!(row["problem"].is_string(), "{row}");
    }
}

#[tokio::test]
async fn rows_that_were_changed_after_they_were_written_are_listed_and_shown_and_not_sent() {
    let stage = Stage::new().await;
    stage
        .insert([row("fine", 1), altered(), with(altered(), "_id", "stray")])
        .await;
    let strayed = doc! { "$set": { "lane": 128 } };
    stage
        .rows()
        .update_one(doc! { "_id": "stray" }, strayed)
        .await
        .unwrap();
    for limit in ["0", "2"] {
        let listed = stage
            .run(&["list", "--unreadable", "--json", "--limit", limit])
            .await;
        let listed = listed.ends_with(0).json();
        let mut ids: Vec<_> = listed
            .iter()
            .map(|row| row["id"].as_str().unwrap())
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, ["altered", "stray"], "each once");
    }
    let shown = stage.run(&["show", "altered"]).await.ends_with(0);
    assert!(
        shown.line("no pump can read it").contains("digest"),
        "{shown:?}"
    );
    assert!(!shown.out.contains("amqp/created"), "{shown:?}");
    let sent = stage
        .run(&["publish", "altered", "--yes"])
        .await
        .ends_with(1);
    assert!(format!("{sent:?}").contains("digest"), "{sent:?}");
}

#[tokio::test]
async fn where_integrity_is_asked_for_a_row_without_a_digest_is_told_as_well() {
    let stage = Stage::new().await;
    stage.insert([row("bare", 1)]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "[[component]]\nnamespace = {:?}\nname = \"pots\"\nintegrity = true\n",
        stage.namespace
    );
    std::fs::write(file.path(), text).unwrap();
    let config = file.path().to_str().unwrap();
    let listed = stage
        .run(&["list", "--unreadable", "--json", "--config", config])
        .await;
    let listed = listed.ends_with(0).json();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(
        listed[0]["problem"]
            .as_str()
            .unwrap()
            .contains("integrity = true"),
        "{listed:?}"
    );
    let checked = stage.run(&["check", "--config", config]).await.ends_with(1);
    assert!(
        checked.line("no pump can read").contains("row bare: "),
        "{checked:?}"
    );
    let without = stage
        .run(&["list", "--unreadable", "--json"])
        .await
        .ends_with(0);
    assert!(without.json().is_empty());
}

#[tokio::test]
async fn nobody_reading_on_is_no_error() {
    let stage = Stage::new().await;
    stage
        .insert((0..5000).map(|number| row(format!("row-{number}"), 1)))
        .await;
    let mut command = stage.command(&["list", "--limit", "0"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next_line().await.unwrap().expect("a row");
    drop(lines);
    let status = child.wait().await.unwrap();
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .await
        .unwrap();
    assert!(status.success() && err.is_empty(), "{status}: {err}");
}

#[tokio::test]
async fn a_row_is_shown_with_its_messages_by_any_form_of_its_id() {
    let stage = Stage::new().await;
    let (uuid, object) = (bson::Uuid::new(), ObjectId::new());
    let simple = uuid.to_string().replace('-', "");
    stage
        .insert([row(uuid, 1), row(object, 1), row("any thing", 1), row(7, 1)])
        .await;
    for id in [&uuid.to_string(), &simple, &object.to_hex(), "any thing"] {
        let shown = &stage.run(&["show", id, "--json"]).await.ends_with(0).json()[0];
        let message = &shown["messages"][0];
        assert_eq!(message["exchange"], stage.exchange("created"), "{shown}");
        assert_eq!(message["body"], serde_json::json!({ "material": "clay" }));
        assert_eq!(message["properties"]["delivery_mode"], 2);
        assert_eq!(message["properties"]["app_id"], stage.component());
        assert!(shown["messages"][1]["skipped"].is_string(), "{shown}");
    }
    let shown = stage.run(&["show", &simple]).await.ends_with(0);
    shown.line(&format!("\"message_id\": \"{uuid}\""));
    let malformed = stage.run(&["show", "7"]).await.ends_with(0);
    malformed.line("no pump can read it: row 7: _id is neither");
    let missing = stage.run(&["show", "8"]).await.ends_with(1);
    assert!(missing.err.contains("no row 8"), "{missing:?}");
}

#[tokio::test]
async fn a_status_counts_what_waits_and_says_who_sees_to_it() {
    let stage = Stage::new().await;
    stage.run(&["init", &stage.outbox()]).await.ends_with(0);
    stage
        .insert([
            row("a", 100),
            with(row("b", 1), "lane", 64),
            row("soon", -3600),
            published(row("done", 1)),
        ])
        .await;
    stage
        .group(&[("one", &["amqp/created"]), ("two", &["amqp/created"])])
        .await;
    let ran = stage.run(&["status", "--json"]).await.ends_with(0).json();
    let pots = &ran[0];
    assert_eq!(pots["component"], stage.component());
    assert_eq!(
        (&pots["unpublished"], &pots["due"], &pots["published"]),
        (&3.into(), &2.into(), &1.into())
    );
    assert!(
        (100..130).contains(&pots["oldestSeconds"].as_i64().unwrap()),
        "{pots}"
    );
    assert_eq!(pots["pumpedBy"], format!("group {}", stage.namespace));
    let owners = pots["owners"].as_array().unwrap();
    assert_eq!(
        owners[0],
        serde_json::json!({ "replica": "one", "alive": false, "lanes": 64, "unpublished": 1 })
    );
    assert_eq!(owners[1]["unpublished"], 2);
    assert_eq!(ran[1]["state"], "up");

    let table = stage.run(&["status"]).await.ends_with(0);
    table.line("0 of 2 alive");
    assert!(table.line("broker amqp://127.0.0.1").ends_with("up"));
    assert!(
        table.out.is_ascii(),
        "no lines are drawn where nobody looks: {table:?}"
    );
}

#[tokio::test]
async fn a_status_needs_no_broker_and_no_index() {
    let mut stage = Stage::new().await;
    stage.insert([row("a", 100)]).await;
    let mut command = stage.command(&["status"]);
    command.env_remove("TOA_OUTBOX_AMQP");
    run(command).await.ends_with(0).line("not asked");
    stage.amqp = "amqp://me:hunter2@127.0.0.1:1".into();
    let ran = stage.run(&["status"]).await.ends_with(0);
    assert!(ran.line("broker amqp://127.0.0.1:1").contains("away") && !ran.out.contains("hunter2"));
    let pots = &stage.run(&["status", "--json"]).await.ends_with(0).json()[0];
    assert_eq!(pots["unpublished"], 1);
    stage.database.drop().await.unwrap();
    let nothing = stage
        .database
        .collection::<bson::Document>("x")
        .count_documents(doc! {})
        .await;
    assert_eq!(nothing.unwrap(), 0);
}

#[tokio::test]
async fn a_published_row_owes_nothing() {
    let stage = Stage::new().await;
    stage.insert([published(row("done", 1))]).await;
    let shown = &stage
        .run(&["show", "done", "--json"])
        .await
        .ends_with(0)
        .json()[0];
    assert_eq!(shown["messages"][0]["owed"], false, "{shown}");
    assert_eq!(shown["collection"], stage.outbox());
    stage
        .run(&["show", "done"])
        .await
        .ends_with(0)
        .line("amqp/created (done)");
}

#[tokio::test]
async fn numbers_are_read_as_a_pump_reads_them() {
    let stage = Stage::new().await;
    let decimal = |number: &str| number.parse::<bson::Decimal128>().unwrap();
    let due = bson::DateTime::now().timestamp_millis() - 60_000;
    let seen = with(row("x", 0), "pending", decimal(&due.to_string()));
    stage.insert([with(seen, "lane", decimal("3"))]).await;
    let listed = &stage.run(&["list", "--json"]).await.ends_with(0).json()[0];
    assert_eq!(listed["lane"], 3, "{listed}");
    assert!(listed["pending"].is_string(), "{listed}");
    let status = &stage.run(&["status", "--json"]).await.ends_with(0).json()[0];
    assert!(
        status["oldestSeconds"]
            .as_i64()
            .is_some_and(|age| age >= 60),
        "{status}"
    );
}

#[tokio::test]
async fn rows_are_read_from_the_primary_whatever_is_preferred() {
    let mut stage = Stage::new().await;
    stage.insert([row("x", 1)]).await;
    stage.mongodb = format!(
        "{}&readPreference=secondary&serverSelectionTimeoutMS=1000",
        stage.mongodb
    );
    stage.run(&["show", "x"]).await.ends_with(0);
    stage
        .run(&["publish", "x", "--mark"])
        .await
        .ends_with(0)
        .line("1 marked");
}
