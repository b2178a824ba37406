//! The servers, the component and the settings of one test.

use std::{collections::HashSet, time::Duration};

use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::{Client, Collection, Database};
use tokio::sync::OnceCell;

use crate::{
    crew::{Casting, Replica},
    replica::{NAMESPACE, SEATS},
    support::{Checker, Delivery, Rabbit, ReplicaSet, eventually, unique},
    timeline::{self, Span},
};

/// Long enough for anything that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const CREATED: &str = "amqp/created";

/// What all tests share and none breaks.
pub struct Servers {
    /// Three members.
    pub mongo: ReplicaSet,
    pub rabbit: Rabbit,
}

pub async fn servers() -> &'static Servers {
    static SERVERS: OnceCell<Servers> = OnceCell::const_new();
    SERVERS
        .get_or_init(|| async {
            let (mongo, rabbit) = tokio::join!(ReplicaSet::start(3), Rabbit::start());
            Servers { mongo, rabbit }
        })
        .await
}

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
        Self::on(&servers().await.mongo.uri()).await
    }

    /// On a replica set of the test's own.
    pub async fn of(set: &ReplicaSet) -> Self {
        Self::on(&set.uri()).await
    }

    /// By a connection string.
    pub async fn on(mongo: &str) -> Self {
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

    /// The beat a user has, for what only holds as long as no beat fails: a machine that is busy with other tests may
    /// well keep a replica from four in a second.
    pub fn unhurried(mut self) -> Self {
        self.beat = Duration::from_secs(2);
        self
    }

    /// A replica that is like all others.
    pub fn casting(&self) -> Casting {
        let casting = Casting {
            variables: Vec::new(),
            labels: "created".into(),
            beat: self.beat,
        };
        // A test may have many replicas in one process.
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
        self.consume_label("created").await
    }

    pub async fn consume_label(&self, label: &str) -> Checker {
        Checker::bind(&self.rabbit, &format!("{}.pots.{label}", self.namespace)).await
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
        let arrived = || -> HashSet<String> {
            let deliveries = checker.received().into_iter();
            deliveries.map(|delivery| delivery.message_id).collect()
        };
        eventually(PATIENCE, "no row is lost", async || {
            ids.is_subset(&arrived())
        })
        .await;
        // Whatever came in the meantime committed before it came.
        let arrived = arrived();
        assert!(arrived.is_subset(&self.ids().await), "none is made up");
        checker.duplicates()
    }

    /// Waits until every lane has an owner and all of them share alike; says how long that took.
    pub async fn whole(&self, crew: &[Replica]) -> Duration {
        self.whole_of(crew, crew.len()).await
    }

    /// Waits until every lane has one of so many owners in the crew.
    pub async fn whole_of(&self, crew: &[Replica], owners: usize) -> Duration {
        let begun = tokio::time::Instant::now();
        while !is_whole(crew, owners) {
            // A poll with a deadline, as `eventually`, but one that tells what it saw last.
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(
                begun.elapsed() < PATIENCE,
                "not every lane has one of {owners} owners; they told last: {:#?}",
                crew.iter().map(Replica::last).collect::<Vec<_>>()
            );
        }
        begun.elapsed()
    }
}

fn is_whole(crew: &[Replica], owners: usize) -> bool {
    let now = timeline::now();
    let shares: Vec<usize> = crew.iter().map(|replica| replica.share(now)).collect();
    let shares = shares.iter().filter(|&&share| share > 0);
    let alike = shares.clone().min().zip(shares.clone().max());
    shares.count() == owners
        && alike.is_some_and(|(least, most)| most - least <= 1)
        && timeline::is_whole(&spans(crew), CREATED, now)
}

/// What all of them owned.
pub fn spans(crew: &[Replica]) -> Vec<Span> {
    crew.iter().flat_map(Replica::spans).collect()
}

/// Panics where a lane had two owners at one time, and where something broke.
pub fn assert_one_owner(crew: &[Replica]) {
    let errors: Vec<_> = crew.iter().flat_map(Replica::errors).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    timeline::assert_one_owner(&spans(crew));
}

/// Whether at some time until `late` every lane had an owner at once.
pub fn was_whole(crew: &[Replica], since: u64, late: u64) -> bool {
    let spans = spans(crew);
    let begins = spans
        .iter()
        .map(|span| span.from)
        .filter(|from| (since..=late).contains(from));
    begins
        .into_iter()
        .any(|at| timeline::is_whole(&spans, CREATED, at))
}
