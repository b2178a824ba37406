//! What one scenario has to itself.

use std::{collections::HashMap, fmt, time::Duration};

use bson::{Document, doc};
use cucumber::World;
use mongodb::{Client, Collection, Database};
use serde_json::Value;
use toa_outbox::{Amqp, Left, Outbox, Pass, Result, Settings, Slot, Subscription};
use tokio::task::JoinHandle;

use super::{consumer::Consumer, declare::Declared, sinks::Destination};
use crate::support::{Cable, Delivery, eventually, servers, unique};

/// Long enough for anything that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A component `tea.pots`, the services that write it, and what was seen of it.
///
/// In the servers `tea` is a name no other scenario has; features call it `tea`. The first step that needs
/// a running service starts one, with what was declared by then.
#[derive(World)]
#[world(init = Self::new)]
pub struct Tea {
    pub namespace: String,
    /// Where the services find MongoDB.
    pub mongodb: String,
    /// A look at the same database that needs no service.
    pub database: Database,
    /// What is between the services and the broker; consumers are not behind it.
    pub cable: Cable,
    pub broker: Broker,

    pub declared: Declared,
    pub settings: Settings,
    /// The pump is idle from its first cycle on, until a step makes it run.
    pub told: bool,

    pub services: Vec<Outbox>,
    /// The labels a consumer is to be there for once a service starts.
    pub audience: Audience,
    pub consumer: Option<Consumer>,

    /// The pot that was spoken of last.
    pub pot: String,
    /// The fields a message is to have.
    pub fields: Vec<(String, Value)>,
    /// The pots that were created in numbers.
    pub pots: Vec<String>,
    /// The rows of dead writers by pot, as they were left.
    pub seeds: HashMap<String, Document>,
    /// Milliseconds since the epoch, before and after the last change.
    pub written: (i64, i64),
    pub running: Option<JoinHandle<()>>,

    /// How the last thing done in vain failed.
    pub refusal: Option<String>,
    /// The message that was spoken of last.
    pub delivery: Option<Delivery>,
    pub pass: Option<Pass>,
    pub left: Option<Left>,
    pub subscriptions: Vec<Subscription>,
    /// The sinks of the services' own.
    pub sinks: Vec<Destination>,
    /// The delivery that was spoken of last.
    pub failed: Option<Document>,
    /// Sinks that the next version does without.
    pub gone: Vec<Destination>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Broker {
    There,
    Away,
    /// None is configured.
    None,
}

pub enum Audience {
    Nobody,
    Everybody,
    Some(Vec<String>),
}

impl Tea {
    async fn new() -> Self {
        let servers = servers().await;
        let namespace = unique("tea");
        let mongodb = servers.mongo.uri();
        let cable = Cable::to(servers.rabbit.port()).await;
        Self {
            database: database(&mongodb, &namespace).await,
            mongodb,
            settings: Settings {
                amqp: vec![format!("amqp://guest:guest@127.0.0.1:{}/%2f", cable.port())],
                interval: Duration::from_millis(100),
                slot: Some(Slot::WHOLE),
                ..Settings::default()
            },
            namespace,
            cable,
            broker: Broker::There,
            declared: Declared::default(),
            told: false,
            services: Vec::new(),
            audience: Audience::Nobody,
            consumer: None,
            pot: String::new(),
            fields: Vec::new(),
            pots: Vec::new(),
            seeds: HashMap::new(),
            written: (0, 0),
            running: None,
            refusal: None,
            delivery: None,
            pass: None,
            left: None,
            subscriptions: Vec::new(),
            sinks: Vec::new(),
            failed: None,
            gone: Vec::new(),
        }
    }

    /// Moves the scenario to another MongoDB.
    pub async fn move_to(&mut self, mongodb: String) {
        self.database = database(&mongodb, &self.namespace).await;
        self.mongodb = mongodb;
    }

    pub fn entities(&self) -> Collection<Document> {
        self.database
            .collection(&format!("{}_pots", self.namespace))
    }

    pub fn rows(&self) -> Collection<Document> {
        self.database
            .collection(&format!("{}_pots_outbox", self.namespace))
    }

    pub async fn count(&self, filter: Document) -> u64 {
        self.rows().count_documents(filter).await.unwrap()
    }

    /// Waits until no row is unpublished.
    pub async fn settled(&self) {
        eventually(PATIENCE, "every row is marked", async || {
            self.count(doc! { "published": { "$ne": true } }).await == 0
        })
        .await;
    }

    /// A name as it is in the servers.
    pub fn local(&self, name: &str) -> String {
        name.replace("tea", &self.namespace)
    }

    /// Opens one more outbox, as a process of its own would: with connections of its own.
    pub async fn open(&self) -> Result<Outbox> {
        let (component, settings) = (
            self.declared.component(&self.namespace),
            self.settings.clone(),
        );
        let database = database(&self.mongodb, &self.namespace).await;
        let builder = Outbox::builder(&database, component, settings.clone());
        let builder = self.sinks.iter().fold(builder, |builder, sink| {
            sink.added_to(builder, |name| self.local(name))
        });
        if self.broker != Broker::There {
            return builder.open().await;
        }
        let amqp = Amqp::start(&settings)?;
        let up = tokio::time::timeout(PATIENCE, amqp.up()).await;
        up.expect("the broker is there");
        builder.amqp(&amqp).open().await
    }

    /// Starts a service, and a consumer before it if there shall be one.
    pub async fn start(&mut self) -> Outbox {
        self.listen().await;
        let idle = self.told && self.broker == Broker::There;
        if idle {
            self.rows().insert_one(nothing_owed()).await.unwrap();
        }
        let outbox = self.open().await.unwrap();
        if idle {
            self.settled().await;
            self.rows().delete_one(nothing_owed()).await.unwrap();
        }
        self.services.push(outbox.clone());
        outbox
    }

    /// The service, running.
    pub async fn service(&mut self) -> Outbox {
        match self.services.first() {
            Some(outbox) => outbox.clone(),
            None => self.start().await,
        }
    }

    /// Binds the consumer unless it is there, or nobody is to listen.
    pub async fn listen(&mut self) {
        let labels = match &self.audience {
            Audience::Nobody => return,
            Audience::Everybody => self
                .declared
                .labels
                .iter()
                .map(|label| label.name().to_owned())
                .collect(),
            Audience::Some(labels) => labels.clone(),
        };
        if self.consumer.is_none() {
            let exchanges: Vec<String> = labels
                .iter()
                .map(|label| self.declared.exchange_of(&self.namespace, label))
                .collect();
            self.consumer = Some(Consumer::bind(&exchanges).await);
        }
    }

    pub fn consumer(&mut self) -> &mut Consumer {
        self.consumer
            .as_mut()
            .expect("a consumer, bound when the service starts")
    }

    /// One cycle of every service, to the end.
    pub async fn pump(&mut self) {
        self.service().await;
        for service in &self.services {
            self.pass = Some(service.pass().await.unwrap());
        }
    }

    /// Books what came of something done, `in vain` or not.
    pub fn done<T>(&mut self, result: Result<T>, vain: &str) -> Option<T> {
        match (result, vain.is_empty()) {
            (Ok(value), true) => Some(value),
            (Err(error), false) => {
                self.refusal = Some(error.to_string());
                None
            }
            (Err(error), true) => panic!("{error}"),
            (Ok(_), false) => panic!("it was not in vain"),
        }
    }
}

/// A row that every process marks without sending anything, as soon as its pump has begun.
fn nothing_owed() -> Document {
    doc! { "_id": "nothing owed", "lane": 0, "published": false, "pending": 0, "event": { "state": {} }, "outstanding": [] }
}

async fn database(mongodb: &str, name: &str) -> Database {
    let client = Client::with_uri_str(mongodb).await.expect("a client");
    client.database(name)
}

impl fmt::Debug for Tea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrived = self.consumer.as_ref().map(Consumer::list);
        f.debug_struct("Tea")
            .field("namespace", &self.namespace)
            .field("arrived", &arrived)
            .finish_non_exhaustive()
    }
}
