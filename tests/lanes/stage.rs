//! The servers, the component and the settings of one test.

use std::{collections::HashSet, time::Duration};

use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::{Client, Collection, Database};

use crate::{
    crew::{Casting, Replica},
    replica::{NAMESPACE, SEATS},
    support::{Checker, Delivery, ReplicaSet, eventually, servers, unique},
    timeline::{self, Span},
};

/// Long enough for anything that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const CREATED: &str = "amqp/created";

pub struct Stage {
    pub namespace: String,
    pub beat: Duration,
    pub interval: Duration,
    mongo: String,
    rabbit: String,
    database: Database,
}

impl Stage {
    /// On the servers all tests share: a beat of 400 ms, an interval of 200 ms.
    pub async fn shared() -> Self {
        let servers = servers().await;
        Self::on(&servers.mongo.uri()).await
    }

    /// On a replica set of the test's own.
    pub async fn of(set: &ReplicaSet) -> Self {
        Self::on(&set.uri()).await
    }

    async fn on(mongo: &str) -> Self {
        let namespace = unique("tea");
        let client = Client::with_uri_str(mongo).await.unwrap();
        Self {
            database: client.database(&namespace),
            namespace,
            beat: Duration::from_millis(400),
            interval: Duration::from_millis(200),
            mongo: mongo.to_owned(),
            rabbit: servers().await.rabbit.uri(),
        }
    }

    /// A replica that is like all others.
    pub fn casting(&self) -> Casting {
        let casting = Casting {
            variables: Vec::new(),
            labels: "created".into(),
            beat: self.beat,
        };
        // A change stream keeps a connection, and a test may have many replicas in one process.
        let mongo = format!("{}&maxPoolSize=200", self.mongo);
        casting
            .with(NAMESPACE, &self.namespace)
            .with(SEATS, 1)
            .with("TOA_OUTBOX_MONGODB", mongo)
            .with("TOA_OUTBOX_DATABASE", self.database.name())
            .with("TOA_OUTBOX_AMQP", &self.rabbit)
            .with("TOA_OUTBOX_INTERVAL", self.interval.as_millis())
            .with("TOA_ATOMICITY_INTERVAL", self.beat.as_millis())
    }

    /// The connection string with something else in the place of the server's address.
    pub fn mongo_by(&self, port: u16) -> String {
        format!("mongodb://127.0.0.1:{port}/?directConnection=true")
    }

    pub fn start(&self, count: usize) -> Vec<Replica> {
        (0..count).map(|_| self.casting().start()).collect()
    }

    pub fn rows(&self) -> Collection<Document> {
        self.database
            .collection(&format!("{}_pots_outbox", self.namespace))
    }

    pub fn slots(&self) -> Collection<Document> {
        self.database.collection("outbox_slots")
    }

    /// The `_id` of the group's document.
    pub fn group(&self) -> String {
        self.rows().namespace().to_string()
    }

    pub async fn document(&self) -> Option<Document> {
        self.slots()
            .find_one(doc! { "_id": self.group() })
            .await
            .unwrap()
    }

    /// How many members the group has.
    pub async fn members(&self) -> usize {
        let document = self.document().await;
        document.map_or(0, |group| group.get_array("members").unwrap().len())
    }

    pub async fn consume(&self) -> Checker {
        Checker::bind(&self.rabbit, &format!("{}.pots.created", self.namespace)).await
    }

    /// Inserts rows as writers of any language do, due at once, in all lanes.
    pub async fn seed(&self, count: i32) {
        let now = bson::DateTime::now().timestamp_millis();
        let row = |index: i32| {
            doc! {
                "_id": bson::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes()),
                "lane": index % 128,
                "published": false,
                "pending": now,
                "event": { "origin": null, "state": { "material": "clay" }, "trailers": null, "input": null },
            }
        };
        let rows: Vec<Document> = (0..count).map(row).collect();
        self.rows().insert_many(rows).await.unwrap();
    }

    /// Waits until every row is marked.
    pub async fn settled(&self) {
        eventually(PATIENCE, "every row is published", async || {
            let unpublished = doc! { "published": false };
            self.rows()
                .count_documents(unpublished)
                .await
                .is_ok_and(|count| count == 0)
        })
        .await;
    }

    /// The ids of all rows, as messages carry them.
    pub async fn ids(&self) -> HashSet<String> {
        let rows: Vec<Document> = self
            .rows()
            .find(doc! {})
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        let id = |row: &Document| match row.get("_id") {
            Some(bson::Bson::Binary(binary)) => binary.to_uuid().unwrap().to_string(),
            other => panic!("{other:?}"),
        };
        rows.iter().map(id).collect()
    }

    /// Waits until all rows there are have arrived, and returns what came more than once.
    pub async fn all_arrive(&self, checker: &Checker) -> Vec<Delivery> {
        self.settled().await;
        let ids = self.ids().await;
        checker.wait_for(ids.len(), PATIENCE).await;
        let arrived: HashSet<String> = checker
            .received()
            .into_iter()
            .map(|delivery| delivery.message_id)
            .collect();
        assert_eq!(arrived, ids, "neither lost nor made up");
        checker.duplicates()
    }

    /// Waits until every lane has an owner and all of them share alike; says how long that took.
    pub async fn whole(&self, crew: &[Replica]) -> Duration {
        self.whole_of(crew, crew.len()).await
    }

    /// Waits until every lane has one of so many owners in the crew.
    pub async fn whole_of(&self, crew: &[Replica], owners: usize) -> Duration {
        let begun = tokio::time::Instant::now();
        eventually(PATIENCE, "every lane has an owner", async || {
            let now = timeline::now();
            let shares: Vec<usize> = crew
                .iter()
                .map(|replica| replica.share(now))
                .filter(|&share| share > 0)
                .collect();
            let (least, most) = (shares.iter().min(), shares.iter().max());
            let alike = least
                .zip(most)
                .is_some_and(|(least, most)| most - least <= 1);
            shares.len() == owners && alike && timeline::is_whole(&spans(crew), CREATED, now)
        })
        .await;
        begun.elapsed()
    }
}

/// What all of them owned.
pub fn spans(crew: &[Replica]) -> Vec<Span> {
    crew.iter().flat_map(Replica::spans).collect()
}

/// Panics where a lane had two owners at one time.
pub fn assert_one_owner(crew: &[Replica]) {
    timeline::assert_one_owner(&spans(crew));
}
