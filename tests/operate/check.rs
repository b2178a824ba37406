//! `check`: each thing that can be wrong is found, named and given a remedy.

use std::{io::Write, time::Duration};

use bson::doc;
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use mongodb::Client;
use tempfile::NamedTempFile;
use toa_outbox::{Component, Label, Outbox, Settings};

use crate::{
    stage::{Ran, Stage, altered, row, run, with},
    support::{Mongo, eventually, unique},
};

const PATIENCE: Duration = Duration::from_secs(30);

pub async fn declare_topic(uri: &str, name: &str) {
    let connection = Connection::connect(uri, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let (options, arguments) = (Default::default(), Default::default());
    let declared = channel.exchange_declare(name.into(), ExchangeKind::Topic, options, arguments);
    declared.await.unwrap();
    connection.close(200, "bye".into()).await.unwrap();
}

/// A prepared collection with one row.
async fn prepared() -> Stage {
    let stage = Stage::new().await;
    stage.run(&["init", &stage.outbox()]).await.ends_with(0);
    stage.insert([row("x", 1)]).await;
    stage
}

#[track_caller]
fn finds(ran: &Ran, level: &str, text: &str, remedy: &str) {
    let line = ran.line(text);
    assert!(line.starts_with(&format!("{level}: ")), "{line}");
    assert!(line.contains(remedy), "{line}");
    assert!(!ran.out.contains("hunter2"), "{ran:?}");
}

#[tokio::test]
async fn what_is_as_it_should_be_is_no_failure() {
    let stage = prepared().await;
    let ran = stage.run(&["check"]).await.ends_with(0);
    assert!(!ran.out.contains("wrong:"), "{ran:?}");
    finds(&ran, "ok", "a replica set", "");
    finds(
        &ran,
        "ok",
        "indexes, validator and rows are as they should be",
        "",
    );
    finds(
        &ran,
        "ok",
        "0 stand as they should, 3 are made with their first message",
        "",
    );
    finds(&ran, "warning", "no replica runs", "toa-outbox run");
    let levels = stage.run(&["check", "--json"]).await.ends_with(0).json();
    assert!(
        levels.iter().all(|finding| finding["level"] != "wrong"),
        "{levels:?}"
    );
    // It made no exchange in looking.
    let again = stage.run(&["check"]).await.ends_with(0);
    finds(&again, "ok", "0 stand as they should", "");
}

#[tokio::test]
async fn missing_and_different_indexes() {
    let stage = Stage::new().await;
    stage.insert([row("x", 1)]).await;
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "index { lane: 1, partial: 1, pending: 1 } on published: false is missing",
        "toa-outbox init",
    );
    finds(
        &ran,
        "warning",
        "TTL index { publishedAt: 1 } is missing",
        "toa-outbox init",
    );
    finds(&ran, "warning", "no validator", "toa-outbox init");
    let index = mongodb::IndexModel::builder()
        .keys(doc! { "lane": 1, "partial": 1, "pending": 1 })
        .build();
    stage.rows().create_index(index).await.unwrap();
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "is not the one on published: false alone",
        "dropIndex",
    );
}

#[tokio::test]
async fn rows_no_pump_can_read_and_routes_nobody_knows() {
    let stage = Stage::new().await;
    stage
        .insert([
            row("fine", 1),
            with(row("stray", 1), "lane", 128),
            with(row("late", 1), "pending", "now"),
            with(
                row("owing", 1),
                "outstanding",
                vec!["amqp/created", "amqp/boiled"],
            ),
        ])
        .await;
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "2 rows that no pump can read",
        "list --unreadable",
    );
    assert!(
        ran.line("no pump can read").contains("row stray: lane"),
        "{ran:?}"
    );
    finds(&ran, "wrong", "1 rows owe amqp/boiled", "declare its label");
}

#[tokio::test]
async fn rows_that_were_changed_after_they_were_written() {
    let stage = Stage::new().await;
    stage.insert([row("fine", 1), altered()]).await;
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "1 rows that were changed after they were written",
        "list --unreadable",
    );
    assert!(
        ran.line("were changed").contains("row altered: "),
        "{ran:?}"
    );
}

#[tokio::test]
async fn exchanges_of_another_type() {
    let stage = prepared().await;
    declare_topic(&stage.amqp, &stage.exchange("created")).await;
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(&ran, "wrong", &stage.exchange("created"), "durable fanout");
    finds(&ran, "ok", "0 stand as they should, 2 are made", "");
}

#[tokio::test]
async fn a_broker_that_does_not_take_us() {
    let mut stage = prepared().await;
    let host = stage
        .amqp
        .split_once('@')
        .unwrap()
        .1
        .split_once('/')
        .unwrap()
        .0
        .to_owned();
    for (uri, remedy) in [
        (
            "amqp://me:hunter2@127.0.0.1:1".to_owned(),
            "check that the broker runs",
        ),
        (
            format!("amqp://me:hunter2@{host}"),
            "check user and password",
        ),
        (
            format!("amqp://guest:guest@{host}/nowhere"),
            "check the virtual host",
        ),
    ] {
        stage.amqp = uri;
        let ran = stage.run(&["check"]).await.ends_with(1);
        finds(&ran, "wrong", "amqp://127.0.0.1", remedy);
    }
    stage.amqp = String::new();
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "nothing says where messages go",
        "TOA_OUTBOX_AMQP",
    );
}

/// Neither by whoever has the file, before and while it runs, nor by an operator who has none.
#[tokio::test]
async fn no_broker_is_missed_where_sinks_take_its_place() {
    let mut stage = prepared().await;
    stage.amqp = String::new();
    let mut file = NamedTempFile::new().unwrap();
    let text = "[[sink]]\nname = \"out\"\nkind = \"stdout\"\nlabels = [\"*\", \"cup.*\"]\n";
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let path = path.as_str();

    let before = stage.run(&["check", "--config", path]).await.ends_with(0);
    finds(&before, "ok", "none is configured", "");
    finds(&before, "warning", "fits no label", "correct it");

    let _replica = stage.replica(&["--config", path]);
    let served = async || {
        let ran = stage.run(&["check"]).await;
        ran.out.contains("1 of 1 members are alive").then_some(ran)
    };
    let ran = eventually(PATIENCE, "a replica that runs", served).await;
    finds(&ran.ends_with(0), "ok", "none is configured", "");
    let ran = stage.run(&["check", "--config", path]).await.ends_with(0);
    assert!(!ran.out.contains("no member serves"), "{ran:?}");

    // One that the replica was not given.
    let more = text.replace("\"out\"", "\"more\"");
    file.write_all(more.as_bytes()).unwrap();
    let ran = stage.run(&["check", "--config", path]).await.ends_with(0);
    finds(
        &ran,
        "warning",
        "no member serves more/created, more/updated, more/deleted;",
        "start",
    );
}

#[tokio::test]
async fn a_server_that_does_not_answer() {
    let mut stage = Stage::new().await;
    stage.mongodb = "mongodb://me:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=500".into();
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "asking what kind of server",
        "check the connection string",
    );
}

#[tokio::test]
async fn a_standalone_server() {
    let mongo = Mongo::standalone().await;
    let stage = Stage::on(&mongo.uri(), "").await;
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(&ran, "wrong", "standalone", "--replSet");
}

#[tokio::test]
async fn missing_privileges_by_name() {
    let mongo = Mongo::standalone_with(&["--auth"]).await;
    let (user, password) = ("root", "hunter2");
    let root = doc! { "createUser": user, "pwd": password, "roles": ["root"] };
    mongo.admin(root).await.unwrap();
    let uri = |user: &str| {
        let uri = mongo
            .uri()
            .replace("mongodb://", &format!("mongodb://{user}:{password}@"));
        format!("{uri}&authSource=admin")
    };
    let stage = Stage::on(&uri(user), "").await;
    stage.run(&["init", &stage.outbox()]).await.ends_with(0);
    let ran = stage.run(&["check"]).await;
    finds(&ran, "ok", "all that is needed", "");

    let admin = Client::with_uri_str(uri(user))
        .await
        .unwrap()
        .database("admin");
    let on = |collection: &str, actions: &[&str]| {
        let resource = doc! { "db": &stage.namespace, "collection": collection };
        doc! { "resource": resource, "actions": actions.to_vec() }
    };
    let privileges = vec![
        on("", &["find", "listCollections"]),
        on(&stage.outbox(), &["find"]),
        on("outbox_slots", &["find", "update"]),
    ];
    let role = doc! { "createRole": "few", "privileges": privileges, "roles": [] };
    admin.run_command(role).await.unwrap();
    let few = doc! { "createUser": "few", "pwd": password, "roles": ["few"] };
    admin.run_command(few).await.unwrap();
    let stage = Stage {
        mongodb: uri("few"),
        ..stage
    };
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        &format!("lacks changeStream on the database {}", stage.namespace),
        "grantPrivilegesToRole",
    );
    finds(
        &ran,
        "wrong",
        &format!("lacks update on {}.{}", stage.namespace, stage.outbox()),
        "actions: [\"update\"]",
    );
    finds(&ran, "wrong", "lacks insert on", "outbox_slots");
    finds(
        &ran,
        "warning",
        "lacks collMod, createCollection, createIndex",
        "toa-outbox init",
    );

    let mut deferred = stage.command(&["check"]);
    deferred
        .env("TOA_OUTBOX_DEFER", "1")
        .env("TOA_OUTBOX_RETENTION", "0");
    let ran = run(deferred).await.ends_with(1);
    assert!(!ran.out.contains("changeStream on the database"), "{ran:?}");
    finds(
        &ran,
        "warning",
        "lacks collMod, createCollection, createIndex, dropIndex",
        "toa-outbox init",
    );
    let library = format!("group {}.{}", stage.namespace, stage.outbox());
    let bound = doc! { "_id": { "collection": stage.outbox() }, "pumpedBy": library };
    let slots = admin
        .client()
        .database(&stage.namespace)
        .collection("outbox_slots");
    slots.insert_one(bound).await.unwrap();
    let ran = stage.run(&["check"]).await.ends_with(1);
    assert!(!ran.out.contains("changeStream on the database"), "{ran:?}");

    let stage = Stage {
        mongodb: mongo.uri(),
        ..stage
    };
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "the connection string names nobody",
        "add user and password",
    );
    assert!(!ran.out.contains("nobody is asked"), "{ran:?}");

    let stage = Stage {
        mongodb: uri("nobody"),
        ..stage
    };
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(&ran, "wrong", "mongodb:", "user and password");
}

#[tokio::test]
async fn replicas_that_are_gone_and_settings_that_contradict_them() {
    let stage = prepared().await;
    stage.group(&[("gone", &["amqp/created"])]).await;
    let ran = stage.run(&["check"]).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "none of its 1 members is alive",
        "start a replica",
    );

    let mut fixed = stage.command(&["check"]);
    fixed.env("TOA_OUTBOX_SLOT", "0/2");
    let ran = run(fixed).await.ends_with(1);
    finds(
        &ran,
        "wrong",
        "(static slots of 2) would stand by",
        "deleteOne",
    );
}

#[tokio::test]
async fn a_replica_that_lives() {
    let stage = Stage::new().await;
    let settings = Settings {
        amqp: vec![stage.amqp.clone()],
        beat: Duration::from_millis(300),
        ..Settings::default()
    };
    let pots = Component::new(&stage.namespace, "pots").labels(Label::system());
    let pots = Outbox::open(&stage.database, pots, settings).await.unwrap();
    eventually(PATIENCE, "it is a member", async || {
        let ran = stage.run(&["check"]).await;
        ran.out.contains("ok: group") && ran.out.contains("1 of 1 members are alive")
    })
    .await;
    pots.shutdown().await;
}

#[tokio::test]
async fn a_replica_that_is_silent_beside_one_that_lives() {
    let stage = prepared().await;
    let routes: &[&str] = &["amqp/created"];
    stage.group(&[("lives", routes), ("gone", routes)]).await;
    let beating = async {
        loop {
            let group = doc! { "_id": &stage.namespace };
            let beat = doc! { "$inc": { "members.0.beat": 1 } };
            stage.slots().update_one(group, beat).await.unwrap();
        }
    };
    let ran = tokio::select! {
        ran = stage.run(&["check"]) => ran.ends_with(0),
        () = beating => unreachable!("it beats for ever"),
    };
    finds(
        &ran,
        "warning",
        "gone is silent, and nobody reads its lanes",
        "within three beats",
    );
    finds(&ran, "ok", "1 of 2 members are alive", "");
}

#[tokio::test]
async fn clocks_that_differ() {
    let stage = prepared().await;
    let mut command = stage.command(&["check"]);
    command
        .env(
            "LD_PRELOAD",
            "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
        )
        .env("FAKETIME", "+60s")
        .env("DONT_FAKE_MONOTONIC", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let ran = run(command).await.ends_with(0);
    finds(&ran, "warning", "s behind this machine's", "NTP");
}

#[tokio::test]
async fn an_empty_database() {
    let stage = Stage::new().await;
    let ran = stage.run(&["check"]).await.ends_with(0);
    finds(
        &ran,
        "warning",
        "there is no outbox collection",
        "toa-outbox init",
    );
    let ran = stage
        .run(&["check", "--component", &unique("x")])
        .await
        .ends_with(2);
    assert!(ran.err.contains("--component"), "{ran:?}");
}

#[tokio::test]
async fn lists_of_labels_that_belong_to_nobody() {
    let stage = prepared().await;
    let mut command = stage.command(&["check"]);
    command.env("TOA_EVENTS_TEA_POTZ", "created");
    let ran = run(command).await.ends_with(0);
    finds(&ran, "warning", "TOA_EVENTS_TEA_POTZ", "correct the name");
}

#[tokio::test]
async fn static_slots_are_no_fault_to_one_who_has_none() {
    let stage = prepared().await;
    let bound = doc! { "_id": { "collection": stage.outbox() }, "pumpedBy": "static slots of 2" };
    stage.slots().insert_one(bound).await.unwrap();
    let ran = stage.run(&["check"]).await.ends_with(0);
    finds(&ran, "ok", "static slots of 2", "");
    let mut other = stage.command(&["check"]);
    other.env("TOA_OUTBOX_SLOT", "0/3");
    finds(
        &run(other).await.ends_with(1),
        "wrong",
        "would stand by",
        "deleteOne",
    );
}

/// Of each component, and each route of it.
#[tokio::test]
async fn a_route_that_nobody_serves() {
    let stage = prepared().await;
    let cups = format!("{}_cups_outbox", stage.namespace);
    stage.run(&["init", &cups]).await.ends_with(0);
    stage
        .group(&[("lives", &["amqp/created", "amqp/updated"])])
        .await;
    let bound =
        doc! { "_id": { "collection": &cups }, "pumpedBy": format!("group {}", stage.namespace) };
    stage.slots().insert_one(bound).await.unwrap();
    let beating = async {
        loop {
            let beat = doc! { "$inc": { "members.0.beat": 1 } };
            let group = doc! { "_id": &stage.namespace };
            stage.slots().update_one(group, beat).await.unwrap();
        }
    };
    let ran = tokio::select! {
        ran = stage.run(&["check"]) => ran.ends_with(0),
        () = beating => unreachable!("it beats for ever"),
    };
    finds(
        &ran,
        "warning",
        &format!("{}: no member serves amqp/deleted;", stage.outbox()),
        "start a replica",
    );
    finds(
        &ran,
        "warning",
        &format!("{cups}: no member serves amqp/created, amqp/updated, amqp/deleted;"),
        "start a replica",
    );
}
