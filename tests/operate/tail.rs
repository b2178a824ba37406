//! `tail`: rows as they come, and a quiet end.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout},
    time::timeout,
};

use crate::{
    stage::{Stage, row},
    support::Mongo,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// The program, once it follows, and what it prints.
async fn follow(stage: &Stage, args: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = stage.command(&[&["tail"], args].concat());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = timeout(PATIENCE, says.next_line()).await.unwrap().unwrap();
    assert!(
        first
            .as_ref()
            .is_some_and(|line| line.contains("following")),
        "{first:?}"
    );
    let rows = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, rows)
}

async fn next(rows: &mut Lines<BufReader<ChildStdout>>) -> String {
    timeout(PATIENCE, rows.next_line())
        .await
        .unwrap()
        .unwrap()
        .expect("a row")
}

async fn ended(mut child: Child) -> Option<i32> {
    timeout(PATIENCE, child.wait())
        .await
        .unwrap()
        .unwrap()
        .code()
}

#[tokio::test]
async fn rows_are_followed_until_it_is_interrupted() {
    let stage = Stage::new().await;
    let (child, mut rows) = follow(&stage, &["--state", "--json"]).await;
    // The collection is a new one.
    stage.insert([row("first", 0)]).await;
    let first: serde_json::Value = serde_json::from_str(&next(&mut rows).await).unwrap();
    assert_eq!((&first["id"], &first["lane"]), (&"first".into(), &3.into()));
    assert_eq!(first["component"], stage.component());
    assert_eq!(first["state"]["material"], "clay");
    let pid = Pid::from_raw(child.id().unwrap() as i32).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(ended(child).await, Some(0));
}

#[tokio::test]
async fn one_component_is_followed_and_nobody_reading_on_is_no_error() {
    let stage = Stage::new().await;
    stage.insert([row("before", 0)]).await;
    let cups = stage
        .database
        .collection(&format!("{}_cups_outbox", stage.namespace));
    let (child, mut rows) = follow(&stage, &["--component", &stage.component()]).await;
    cups.insert_one(row("cup", 0)).await.unwrap();
    stage.insert([row("pot", 0)]).await;
    assert!(
        next(&mut rows)
            .await
            .starts_with(&format!("pot\t{}\t3\t", stage.component()))
    );
    drop(rows);
    stage.insert([row("unread", 0)]).await;
    assert_eq!(ended(child).await, Some(0));
}

#[tokio::test]
async fn a_standalone_server_cannot_be_followed() {
    let mongo = Mongo::standalone().await;
    let stage = Stage::on(&mongo.uri(), "").await;
    let ran = stage.run(&["tail"]).await.ends_with(1);
    assert!(
        ran.err.contains("standalone") && ran.err.contains("replica set"),
        "{ran:?}"
    );
}
