//! A database of a test's own with a service that writes its rows by itself, and a consumer.

use std::time::Duration;

use bson::{Binary, Document, doc, spec::BinarySubtype};
use mongodb::{Client, Collection, Database, options::WriteConcern};
use uuid::Uuid;

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Checker, ReplicaSet, eventually, servers, unique},
};

pub struct Town {
    pub database: Database,
    pub mongodb: String,
    pub amqp: String,
    /// The collection of the entities.
    pub pots: String,
    pub interval: Duration,
    pub beat: Duration,
}

impl Town {
    /// On the servers all tests share.
    pub async fn shared() -> Self {
        let servers = servers().await;
        Self::on(&servers.mongo, &servers.rabbit.uri()).await
    }

    pub async fn on(mongo: &ReplicaSet, amqp: &str) -> Self {
        let name = unique("town");
        let uri = mongo.uri();
        let (hosts, options) = uri.split_once("/?").unwrap();
        let mongodb = format!("{hosts}/{name}?{options}");
        Self {
            database: Client::with_uri_str(&mongodb)
                .await
                .unwrap()
                .database(&name),
            mongodb,
            amqp: amqp.to_owned(),
            pots: unique("tea"),
            interval: Duration::from_millis(500),
            beat: Duration::from_millis(300),
        }
    }

    /// With beats that a busy machine keeps, for claims that nothing is repeated.
    pub fn unhurried(mut self) -> Self {
        self.beat = Duration::from_secs(2);
        self.interval = Duration::from_secs(2);
        self
    }

    /// What a sidecar is told.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("MONGODB", self.mongodb.clone()),
            ("AMQP", self.amqp.clone()),
            ("INTERVAL", self.interval.as_millis().to_string()),
            ("BEAT", self.beat.as_millis().to_string()),
        ]
    }

    pub fn sidecar(&self) -> Sidecar {
        Sidecar::start(&self.settings())
    }

    pub fn exchange(&self, label: &str) -> String {
        let (namespace, name) = self.pots.split_once('_').unwrap();
        format!("{namespace}.{name}.{label}")
    }

    pub async fn consumer(&self) -> Checker {
        self.consumer_of(&self.amqp).await
    }

    /// By another way to the broker.
    pub async fn consumer_of(&self, amqp: &str) -> Checker {
        Checker::bind(amqp, &self.exchange("created")).await
    }

    pub fn rows(&self) -> Collection<Document> {
        let majority = mongodb::options::CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .build();
        let name = format!("{}_outbox", self.pots);
        self.database.collection_with_options(&name, majority)
    }

    /// Inserts so many rows in one command, as a service in another language would; their ids.
    pub async fn write(&self, count: usize) -> Vec<String> {
        let rows: Vec<(String, Document)> = (0..count)
            .map(|_| row(doc! { "material": "glass" }))
            .collect();
        let documents = rows.iter().map(|(_, row)| row);
        self.rows().insert_many(documents).await.unwrap();
        rows.into_iter().map(|(id, _)| id).collect()
    }

    /// The same while the servers are in trouble: tried again until it is done, each time with other rows.
    pub async fn write_surely(&self, count: usize) {
        eventually(PATIENCE, "the rows are written", async || {
            let rows = (0..count).map(|_| row(doc! {}).1);
            self.rows().insert_many(rows).await.is_ok()
        })
        .await;
    }

    /// Entity and row in one transaction; the row's id.
    pub async fn change(&self) -> String {
        let (id, row) = row(doc! { "material": "clay" });
        let entities: Collection<Document> = self.database.collection(&self.pots);
        let mut session = self.database.client().start_session().await.unwrap();
        session
            .start_transaction()
            .write_concern(WriteConcern::majority())
            .await
            .unwrap();
        entities
            .insert_one(doc! { "material": "clay" })
            .session(&mut session)
            .await
            .unwrap();
        let rows: Collection<Document> = self.database.collection(self.rows().name());
        rows.insert_one(row).session(&mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
        id
    }

    pub async fn unpublished(&self) -> u64 {
        self.rows()
            .count_documents(doc! { "published": false })
            .await
            .unwrap()
    }

    /// Waits until every row is marked.
    pub async fn settled(&self) {
        eventually(PATIENCE, "every row is marked", async || {
            self.unpublished().await == 0
        })
        .await;
    }

    /// Waits until a sidecar owns lanes.
    pub async fn owned(&self, sidecar: &Sidecar) {
        sidecar.says("owns lanes").await;
    }
}

/// A row that is due now, in any lane, and its id.
pub fn row(state: Document) -> (String, Document) {
    let id = Uuid::now_v7();
    let binary = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: id.as_bytes().to_vec(),
    };
    let row = doc! {
        "_id": binary,
        "lane": rand::random_range(0..128),
        "published": false,
        "pending": bson::DateTime::now().timestamp_millis(),
        "event": { "origin": null, "state": state, "trailers": null, "input": null },
    };
    (id.to_string(), row)
}
