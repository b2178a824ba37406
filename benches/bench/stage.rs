//! Where it is measured: servers of its own, a fresh database and fresh exchanges for each run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use futures::StreamExt;
use lapin::{Channel, options::*, types::FieldTable};
use mongodb::{Collection, Database, options::CollectionOptions, options::WriteConcern};
use tokio::task::AbortHandle;
use uuid::Uuid;

use crate::support::{Rabbit, ReplicaSet, eventually, unique};

/// Long enough for anything that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(1800);

/// A MongoDB, a RabbitMQ, and a channel to the latter that confirms.
pub struct Stage {
    pub mongo: ReplicaSet,
    pub rabbit: Rabbit,
    pub channel: Channel,
    _connection: lapin::Connection,
}

impl Stage {
    pub async fn new() -> Self {
        let mongo = ReplicaSet::start_with(1, &["--wiredTigerCacheSizeGB", "4"]);
        let (mongo, rabbit) = tokio::join!(mongo, Rabbit::start());
        let (connection, channel) = connect(&rabbit.uri()).await;
        Self {
            mongo,
            rabbit,
            channel,
            _connection: connection,
        }
    }

    /// A channel of its own, as after a restart of the broker.
    pub async fn reconnect(&mut self) {
        (self._connection, self.channel) = connect(&self.rabbit.uri()).await;
    }

    /// A database with one component that has rows to come, and a queue for its messages.
    pub async fn town(&self) -> Town {
        // A namespace ends at the first `_`.
        let name = unique("bench").replace('_', "");
        let town = Town {
            database: self.mongo.client().await.database(&name),
            uri: self.mongo.uri().replace("/?", &format!("/{name}?")),
            exchange: format!("{name}.pots.created"),
            namespace: name,
        };
        town.prepare("pots").await;
        self.queue(&town.exchange).await;
        town
    }

    /// A durable queue on a durable fanout.
    pub async fn queue(&self, exchange: &str) {
        let (durable, none) = (true, FieldTable::default);
        let options = ExchangeDeclareOptions {
            durable,
            ..Default::default()
        };
        let fanout = lapin::ExchangeKind::Fanout;
        let channel = &self.channel;
        channel
            .exchange_declare(exchange.into(), fanout, options, none())
            .await
            .unwrap();
        let options = QueueDeclareOptions {
            durable,
            ..Default::default()
        };
        channel
            .queue_declare(exchange.into(), options, none())
            .await
            .unwrap();
        let options = QueueBindOptions::default();
        channel
            .queue_bind(exchange.into(), exchange.into(), "".into(), options, none())
            .await
            .unwrap();
    }

    /// Reads the queue of an exchange from now on.
    pub async fn consumer(&self, exchange: &str) -> Reader {
        let (connection, channel) = connect(&self.rabbit.uri()).await;
        channel.basic_qos(200, Default::default()).await.unwrap();
        let consumed = channel.basic_consume(
            exchange.into(),
            "".into(),
            Default::default(),
            FieldTable::default(),
        );
        let mut consumer = consumed.await.unwrap();
        let read = Arc::new(AtomicUsize::new(0));
        let counted = read.clone();
        let task = tokio::spawn(async move {
            let _connection = connection;
            while let Some(Ok(delivery)) = consumer.next().await {
                delivery.ack(Default::default()).await.unwrap();
                counted.fetch_add(1, Relaxed);
            }
        });
        Reader {
            read,
            task: task.abort_handle(),
        }
    }

    /// Forgets a queue and its exchange.
    pub async fn delete(&self, exchange: &str) {
        let queue = QueueDeleteOptions::default();
        self.channel
            .queue_delete(exchange.into(), queue)
            .await
            .unwrap();
        let options = ExchangeDeleteOptions::default();
        self.channel
            .exchange_delete(exchange.into(), options)
            .await
            .unwrap();
    }

    /// The processor time of MongoDB and of the broker so far.
    pub fn spent(&self) -> [Duration; 2] {
        [self.mongo.processor_time(), self.rabbit.processor_time()]
    }
}

/// A channel that confirms, and what it lives by.
pub async fn connect(uri: &str) -> (lapin::Connection, Channel) {
    let connection = lapin::Connection::connect(uri, Default::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(Default::default()).await.unwrap();
    (connection, channel)
}

/// Reads messages until it is dropped.
pub struct Reader {
    read: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Reader {
    pub fn count(&self) -> usize {
        self.read.load(Relaxed)
    }

    pub async fn has(&self, count: usize) {
        eventually(PATIENCE, "all messages are read", async || {
            self.count() >= count
        })
        .await;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A database of one run.
#[derive(Clone)]
pub struct Town {
    pub database: Database,
    /// Of the server, with this database.
    pub uri: String,
    pub namespace: String,
    /// Where the rows of `pots` go.
    pub exchange: String,
}

impl Town {
    /// The outbox of an entity, with its indexes.
    pub async fn prepare(&self, entity: &str) {
        let name = format!("{}_{entity}_outbox", self.namespace);
        let day = Duration::from_secs(86_400);
        toa_outbox::init(&self.database, &name, day).await.unwrap();
    }

    pub fn rows(&self) -> Collection<Document> {
        self.rows_of("pots")
    }

    pub fn rows_of(&self, entity: &str) -> Collection<Document> {
        let majority = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .build();
        let name = format!("{}_{entity}_outbox", self.namespace);
        self.database.collection_with_options(&name, majority)
    }

    /// Inserts so many rows that are due.
    pub async fn seed(&self, count: usize) {
        self.seed_as(count, |row| row).await;
    }

    pub async fn seed_as(&self, count: usize, change: impl Fn(Document) -> Document) {
        let rows = self.rows();
        for first in (0..count).step_by(5000) {
            let chunk = (first..count.min(first + 5000)).map(|_| change(row()));
            rows.insert_many(chunk).await.unwrap();
        }
    }

    pub async fn drop(self) {
        self.database.drop().await.unwrap();
    }
}

/// A body of 1 KB.
pub fn state() -> Document {
    doc! { "text": "x".repeat(1000) }
}

/// A row that is due, with a state of 1 KB.
pub fn row() -> Document {
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: Uuid::now_v7().as_bytes().to_vec(),
    };
    let event = doc! { "origin": null, "state": state(), "trailers": null, "input": null };
    doc! {
        "_id": id, "lane": rand::random_range(0..128), "published": false,
        "pending": bson::DateTime::now().timestamp_millis(), "event": event,
    }
}

/// What this process has used of the processors.
pub fn own_time() -> Duration {
    crate::support::processor_time(std::process::id())
}
