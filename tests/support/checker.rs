//! A consumer that writes down what really arrives.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt;
use lapin::options::{
    BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::unique;

/// One message as it arrived.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its place among all deliveries of its checker, from 0.
    pub order: usize,
    /// When it arrived.
    pub at: Instant,
    /// The exchange it came through.
    pub exchange: String,
    /// The property; empty where there is none.
    pub message_id: String,
    /// The property `type`; empty where there is none.
    pub kind: String,
    /// All properties.
    pub properties: BasicProperties,
    /// The body.
    pub body: Vec<u8>,
}

impl Delivery {
    /// What makes two deliveries the same message.
    pub fn identity(&self) -> (String, String, String) {
        (
            self.exchange.clone(),
            self.message_id.clone(),
            self.kind.clone(),
        )
    }
}

/// A queue on fanout exchanges, and everything that came through it.
pub struct Checker {
    queue: String,
    log: watch::Sender<Log>,
    /// Open while it consumes.
    connection: Option<Connection>,
}

#[derive(Default)]
struct Log {
    deliveries: Vec<Delivery>,
    identities: HashSet<(String, String, String)>,
    /// Why nothing comes any more.
    lost: Option<String>,
}

impl Log {
    fn write(&mut self, delivery: lapin::message::Delivery) {
        let text = |value: &Option<ShortString>| {
            value.as_ref().map(ToString::to_string).unwrap_or_default()
        };
        let delivery = Delivery {
            order: self.deliveries.len(),
            at: Instant::now(),
            exchange: delivery.exchange.to_string(),
            message_id: text(delivery.properties.message_id()),
            kind: text(delivery.properties.kind()),
            properties: delivery.properties,
            body: delivery.data,
        };
        self.identities.insert(delivery.identity());
        self.deliveries.push(delivery);
    }
}

impl Checker {
    /// Declares the exchange as durable fanout, binds a queue of its own and consumes from now on.
    pub async fn bind(uri: &str, exchange: &str) -> Self {
        Self::bind_all(uri, &[exchange]).await
    }

    /// The same for several exchanges, through one queue.
    pub async fn bind_all(uri: &str, exchanges: &[&str]) -> Self {
        // Durable, so that a confirm means as much as with a real consumer; exclusive, so that the
        // queue goes with us.
        let options = QueueDeclareOptions {
            durable: true,
            exclusive: true,
            ..Default::default()
        };
        let (mut checker, connection) = Self::declare(uri, exchanges, options).await;

        let channel = connection.create_channel().await.expect("a channel");
        let consumer = consume(&channel, &checker.queue).await;
        let log = checker.log.clone();
        tokio::spawn(async move { record(consumer, log).await });
        checker.connection = Some(connection);
        checker
    }

    /// Only lets a durable queue collect what comes, which survives the broker's restart;
    /// [`drain`](Self::drain) reads it.
    pub async fn queue(uri: &str, exchange: &str) -> Self {
        let (checker, connection) =
            Self::declare(uri, &[exchange], QueueDeclareOptions::durable()).await;
        connection.close(200, "bound".into()).await.expect("closed");
        checker
    }

    /// Takes everything out of the queue of [`Checker::queue`]; the next call takes what has come
    /// since.
    pub async fn drain(&self, uri: &str) {
        let connection = connect(uri).await;
        let channel = connection.create_channel().await.expect("a channel");
        let passive = QueueDeclareOptions::durable().passive();
        let queue =
            channel.queue_declare(self.queue.as_str().into(), passive, FieldTable::default());
        let count = queue.await.expect("the queue").message_count() as usize;

        let mut messages = consume(&channel, &self.queue).await.take(count);
        while let Some(message) = timeout(DRAIN, messages.next())
            .await
            .expect("the queue gives what it has")
        {
            let message = message.expect("a message");
            self.log.send_modify(|log| log.write(message));
        }
        connection
            .close(200, "drained".into())
            .await
            .expect("closed");
    }

    /// Every delivery so far, in order.
    pub fn received(&self) -> Vec<Delivery> {
        self.log.borrow().deliveries.clone()
    }

    /// How many deliveries there were.
    pub fn count(&self) -> usize {
        self.log.borrow().deliveries.len()
    }

    /// How many different messages there were.
    pub fn distinct(&self) -> usize {
        self.log.borrow().identities.len()
    }

    /// The deliveries of messages that had been delivered before.
    pub fn duplicates(&self) -> Vec<Delivery> {
        let mut seen = HashSet::new();
        let mut deliveries = self.received();
        deliveries.retain(|delivery| !seen.insert(delivery.identity()));
        deliveries
    }

    /// Waits for so many different messages; panics, saying what did come, when they do not within
    /// `deadline`.
    pub async fn wait_for(&self, distinct: usize, deadline: Duration) {
        let mut log = self.log.subscribe();
        let enough = log.wait_for(|log| log.identities.len() >= distinct);
        if timeout(deadline, enough).await.is_err() {
            let log = self.log.borrow();
            panic!(
                "not within {deadline:?}: {distinct} messages; there are {}, in {} deliveries{}",
                log.identities.len(),
                log.deliveries.len(),
                log.lost
                    .as_ref()
                    .map(|why| format!(", then the consumer ended: {why}"))
                    .unwrap_or_default(),
            );
        }
    }

    async fn declare(
        uri: &str,
        exchanges: &[&str],
        options: QueueDeclareOptions,
    ) -> (Self, Connection) {
        let connection = connect(uri).await;
        let channel = connection.create_channel().await.expect("a channel");
        let queue = unique("checker");

        let none = FieldTable::default;
        channel
            .queue_declare(queue.as_str().into(), options, none())
            .await
            .expect("a queue");
        for &exchange in exchanges {
            let durable = ExchangeDeclareOptions {
                durable: true,
                ..Default::default()
            };
            let declared =
                channel.exchange_declare(exchange.into(), ExchangeKind::Fanout, durable, none());
            declared.await.expect("a durable fanout exchange");

            let key = ShortString::default();
            let bound = channel.queue_bind(
                queue.as_str().into(),
                exchange.into(),
                key,
                QueueBindOptions::default(),
                none(),
            );
            bound.await.expect("a binding");
        }
        channel.close(200, "declared".into()).await.expect("closed");

        (
            Self {
                queue,
                log: watch::Sender::default(),
                connection: None,
            },
            connection,
        )
    }
}

/// How long a queue may take to give one message it has.
const DRAIN: Duration = Duration::from_secs(10);

async fn connect(uri: &str) -> Connection {
    Connection::connect(uri, ConnectionProperties::default())
        .await
        .expect("RabbitMQ")
}

async fn consume(channel: &Channel, queue: &str) -> Consumer {
    let options = BasicConsumeOptions {
        no_ack: true,
        ..Default::default()
    };
    let consumer = channel.basic_consume(
        queue.into(),
        ShortString::default(),
        options,
        FieldTable::default(),
    );
    consumer.await.expect("a consumer")
}

async fn record(mut consumer: Consumer, log: watch::Sender<Log>) {
    let mut why = "cancelled".to_owned();
    while let Some(message) = consumer.next().await {
        match message {
            Ok(message) => log.send_modify(|log| log.write(message)),
            Err(error) => why = error.to_string(),
        }
    }
    log.send_modify(|log| log.lost = Some(why));
}
