//! A database of a test's own, and the program run on it.

use std::process::Stdio;

use bson::{Bson, Document, doc};
use mongodb::{Client, Collection, Database};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::support::{servers, unique};

pub struct Stage {
    pub database: Database,
    pub namespace: String,
    pub mongodb: String,
    pub amqp: String,
}

/// What the program said and ended with.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// The documents it printed.
    pub fn json(&self) -> Vec<Value> {
        let document = |line: &str| serde_json::from_str(line).expect(line);
        self.out.lines().map(document).collect()
    }

    /// The only line of its output that contains a text.
    pub fn line(&self, text: &str) -> &str {
        let mut lines = self.out.lines().filter(|line| line.contains(text));
        match (lines.next(), lines.next()) {
            (Some(line), None) => line,
            _ => panic!("not one line with {text:?}: {self:#?}"),
        }
    }

    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(
            !self.err.contains("panicked") && !self.err.contains("guest"),
            "{self:#?}"
        );
        self
    }
}

impl Stage {
    pub async fn new() -> Self {
        let servers = servers().await;
        Self::on(&servers.mongo.uri(), &servers.rabbit.uri()).await
    }

    pub async fn on(mongodb: &str, amqp: &str) -> Self {
        let client = Client::with_uri_str(mongodb).await.unwrap();
        // Without the underscore that would end a namespace.
        let namespace = unique("tea").replace('_', "");
        Self {
            database: client.database(&namespace),
            namespace,
            mongodb: mongodb.to_owned(),
            amqp: amqp.to_owned(),
        }
    }

    pub fn component(&self) -> String {
        format!("{}.pots", self.namespace)
    }

    pub fn exchange(&self, label: &str) -> String {
        format!("{}.pots.{label}", self.namespace)
    }

    pub fn outbox(&self) -> String {
        format!("{}_pots_outbox", self.namespace)
    }

    pub fn rows(&self) -> Collection<Document> {
        self.database.collection(&self.outbox())
    }

    pub fn slots(&self) -> Collection<Document> {
        self.database.collection("outbox_slots")
    }

    pub async fn insert(&self, rows: impl IntoIterator<Item = Document>) {
        self.rows().insert_many(rows).await.unwrap();
    }

    /// Says that a group of the database's name pumps the rows, with members that do not beat.
    pub async fn group(&self, members: &[(&str, &[&str])]) {
        let bound = doc! { "_id": { "collection": self.outbox() }, "pumpedBy": format!("group {}", self.namespace) };
        let epoch = doc! { "number": 1_i64, "nonce": "x" };
        let outbox = self.outbox();
        let member = |(id, routes): &(&str, &[&str])| {
            let routes = routes.iter().map(|route| format!("{outbox}/{route}"));
            let routes: Vec<String> = routes.collect();
            doc! { "id": *id, "beat": 7_i64, "seen": epoch.clone(), "routes": routes }
        };
        let members: Vec<Document> = members.iter().map(member).collect();
        let group = doc! { "_id": &self.namespace, "protocol": 1, "epoch": epoch.clone(), "members": members };
        self.slots().insert_many([bound, group]).await.unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toa-outbox"));
        command
            .args(args)
            .env("TOA_OUTBOX_MONGODB", &self.mongodb)
            .env("TOA_OUTBOX_DATABASE", &self.namespace)
            // So that replicas need not be watched for long.
            .env("TOA_ATOMICITY_INTERVAL", "300")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if !self.amqp.is_empty() {
            command.env("TOA_OUTBOX_AMQP", &self.amqp);
        }
        command
    }

    pub async fn run(&self, args: &[&str]) -> Ran {
        run(self.command(args)).await
    }

    /// A replica: `toa-outbox run`, until it is dropped.
    pub fn replica(&self, args: &[&str]) -> Child {
        let mut command = self.command(&[&["run"], args].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }
}

/// Runs it with an output that nobody reads.
pub async fn unread(mut command: Command) -> Ran {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().await.unwrap();
    Ran {
        code: output.status.code(),
        out: String::new(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

pub async fn run(mut command: Command) -> Ran {
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        code: output.status.code(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

/// A row that has been due for `seconds`.
pub fn row(id: impl Into<Bson>, seconds: i64) -> Document {
    let pending = bson::DateTime::now().timestamp_millis() - seconds * 1000;
    doc! {
        "_id": id.into(), "lane": 3, "published": false, "pending": pending,
        "event": { "origin": null, "state": { "material": "clay" }, "trailers": null, "input": null },
    }
}

/// The same with a field of another value.
pub fn with(mut row: Document, field: &str, value: impl Into<Bson>) -> Document {
    row.insert(field, value);
    row
}

pub fn published(row: Document) -> Document {
    with(
        with(row, "published", true),
        "publishedAt",
        bson::DateTime::now(),
    )
}

/// A row whose event is not the one that its digest is of.
pub fn altered() -> Document {
    let digest = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: vec![7; 32],
    };
    with(row("altered", 1), "digest", digest)
}
