//! A component of a test's own on the servers it names, and what one looks at in it.

use std::{collections::HashSet, time::Duration};

use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::{Client, Collection, Database};
use toa_outbox::{Component, Label, Outbox, Settings};

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
                ..Settings::default()
            },
            namespace,
        }
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
        eventually(PATIENCE, "every row is marked", || async {
            self.count(doc! { "published": false }).await == 0
        })
        .await;
    }

    /// A row as a writer that died left it: due since `age`.
    pub fn row(&self, age: Duration) -> Document {
        let due = bson::DateTime::now().timestamp_millis() - age.as_millis() as i64;
        doc! {
            "_id": bson::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes()),
            "lane": rand::random_range(0..128),
            "published": false,
            "pending": due,
            "event": { "origin": null, "state": { "material": "clay" }, "trailers": null, "input": null },
        }
    }
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
