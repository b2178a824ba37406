//! A component of a test's own on the servers it names, and what one looks at in it.

use std::{collections::HashSet, time::Duration};

use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::{Client, Collection, Database};
use toa_outbox::{Amqp, Builder, Component, Label, Outbox, Settings, Slot};

use crate::support::{Checker, eventually, unique};

/// Long enough for anything that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A component, its database, and the settings the suite runs with.
pub struct Rig {
    pub database: Database,
    pub component: Component,
    pub settings: Settings,
    namespace: String,
}

impl Rig {
    /// A component `<unique>.pots` with the system labels and an interval of 100 ms.
    pub async fn new(mongodb: &str, amqp: &str) -> Self {
        let client = Client::with_uri_str(mongodb).await.unwrap();
        let namespace = unique("tea");
        Self {
            database: client.database(&namespace),
            component: Component::new(&namespace, "pots").labels(Label::system()),
            settings: Settings {
                amqp: vec![amqp.to_owned()],
                interval: Duration::from_millis(100),
                slot: Some(Slot::WHOLE),
                ..Settings::default()
            },
            namespace,
        }
    }

    /// Its component without labels.
    pub fn bare(&self) -> Component {
        Component::new(&self.namespace, "pots")
    }

    /// On the servers all tests share.
    pub async fn shared() -> Self {
        let servers = crate::support::servers().await;
        Self::new(&servers.mongo.uri(), &servers.rabbit.uri()).await
    }

    pub async fn open(&self) -> Outbox {
        Outbox::open(
            &self.database,
            self.component.clone(),
            self.settings.clone(),
        )
        .await
        .unwrap()
    }

    pub fn exchange(&self, label: &str) -> String {
        format!("{}.pots.{label}", self.namespace)
    }

    /// A consumer of one label.
    pub async fn consume(&self, label: &str) -> Checker {
        Checker::bind(&self.settings.amqp[0], &self.exchange(label)).await
    }

    pub fn rows(&self) -> Collection<Document> {
        self.database
            .collection(&format!("{}_pots_outbox", self.namespace))
    }

    pub async fn count(&self, filter: Document) -> u64 {
        self.rows().count_documents(filter).await.unwrap()
    }

    /// The ids of the rows that fit, as text.
    pub async fn ids(&self, filter: Document) -> HashSet<String> {
        let rows: Vec<Document> = self
            .rows()
            .find(filter)
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        rows.iter().map(id).collect()
    }

    /// Waits until no row is unpublished.
    pub async fn settled(&self) {
        self.settled_but(0).await;
    }

    /// Waits until just so many rows are unpublished.
    pub async fn settled_but(&self, unpublished: u64) {
        eventually(PATIENCE, "every row is marked that can be", || async {
            self.count(doc! { "published": false }).await == unpublished
        })
        .await;
    }

    /// The expiry of the TTL index, if there is one.
    pub async fn expiry(&self) -> Option<Duration> {
        let indexes: Vec<mongodb::IndexModel> = self
            .rows()
            .list_indexes()
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        let ttl = indexes
            .into_iter()
            .find(|index| index.keys.contains_key("publishedAt"))?;
        ttl.options?.expire_after
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Inserts rows as a writer that died left them, due now unless `shape` says otherwise.
    pub async fn seed(&self, count: i64, shape: impl Fn(&mut Document, i64)) {
        let now = bson::DateTime::now().timestamp_millis();
        let rows: Vec<Document> = (0..count).map(|index| {
            let mut row = doc! {
                "_id": bson::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes()),
                "lane": (index % 128) as i32,
                "published": false,
                "pending": now,
                "event": { "origin": null, "state": { "material": "clay" }, "trailers": null, "input": null },
            };
            shape(&mut row, index);
            row
        }).collect();
        for chunk in rows.chunks(20_000) {
            self.rows().insert_many(chunk).await.unwrap();
        }
    }

    /// Declares an exchange of another type than ours.
    pub async fn declare_topic(&self, name: &str) {
        let properties = lapin::ConnectionProperties::default();
        let connection = lapin::Connection::connect(&self.settings.amqp[0], properties)
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        let (options, arguments) = (Default::default(), Default::default());
        let declared =
            channel.exchange_declare(name.into(), lapin::ExchangeKind::Topic, options, arguments);
        declared.await.unwrap();
        connection.close(200, "bye".into()).await.unwrap();
    }

    /// Runs passes under the server's profiler and returns the queries they made.
    pub async fn profile(&self, passes: usize) -> Vec<Document> {
        let pots = self.quiet(|builder| builder).await;
        let queries = self.profiled(&pots, passes).await;
        pots.shutdown().await;
        queries
    }

    /// An outbox whose pump runs when it is told, with more than the broker if `more` says so.
    pub async fn quiet(&self, more: impl FnOnce(Builder) -> Builder) -> Outbox {
        let quiet = Settings {
            interval: Duration::from_secs(3600),
            ..self.settings.clone()
        };
        let amqp = Amqp::start(&quiet).unwrap();
        amqp.up().await;
        let builder = Outbox::builder(&self.database, self.component.clone(), quiet);
        more(builder.amqp(&amqp)).open().await.unwrap()
    }

    /// The queries that so many passes make, by the server's profiler. Those of gauges are none of theirs: they ask for a
    /// part of a row only.
    pub async fn profiled(&self, pots: &Outbox, passes: usize) -> Vec<Document> {
        let profile = async |level| {
            let command = doc! { "profile": level };
            self.database.run_command(command).await.unwrap();
        };
        profile(2).await;
        for _ in 0..passes {
            pots.pass().await.unwrap();
        }
        profile(0).await;
        let profile: Collection<Document> = self.database.collection("system.profile");
        let found = profile.find(doc! {
            "ns": self.rows().namespace().to_string(),
            "op": "query",
            "command.projection": { "$exists": false },
        });
        found.await.unwrap().try_collect().await.unwrap()
    }

    /// How the server runs the query of a cycle over all lanes: the query itself, taken from its profile.
    pub async fn explain(&self) -> Document {
        let query = self.profiled_filter().await;
        let command = doc! {
            "explain": { "find": self.rows().name(), "filter": query },
            "verbosity": "executionStats",
        };
        self.database.run_command(command).await.unwrap()
    }

    async fn profiled_filter(&self) -> Document {
        let profile: Collection<Document> = self.database.collection("system.profile");
        let rows = self.rows().namespace().to_string();
        let query = profile
            .find_one(doc! { "ns": rows, "op": "query" })
            .await
            .unwrap()
            .unwrap();
        query
            .get_document("command")
            .unwrap()
            .get_document("filter")
            .unwrap()
            .clone()
    }
}

/// Whether the long forms of the tests were asked for.
pub fn soak() -> bool {
    std::env::var_os("SOAK").is_some()
}

/// The id of a row as its messages carry it.
pub fn id(row: &Document) -> String {
    match row.get("_id") {
        Some(bson::Bson::Binary(binary)) => binary.to_uuid().unwrap().to_string(),
        Some(other) => other
            .as_str()
            .map_or_else(|| other.to_string(), str::to_owned),
        None => panic!("a row without _id: {row}"),
    }
}

/// The resident memory of this process, in KiB.
pub fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
