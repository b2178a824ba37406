//! What an administrator, or another program, does to exchanges and queues.

use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{
        ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};

use super::unique;

pub struct Admin {
    _connection: Connection,
    channel: Channel,
}

impl Admin {
    pub async fn of(uri: &str) -> Self {
        let connection = Connection::connect(uri, ConnectionProperties::default());
        let connection = connection.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        Self {
            _connection: connection,
            channel,
        }
    }

    pub async fn delete(&self, exchange: &str) {
        let options = ExchangeDeleteOptions::default();
        self.channel
            .exchange_delete(exchange.into(), options)
            .await
            .unwrap();
    }

    /// A durable fanout, as the sink declares it.
    pub async fn declare(&self, exchange: &str) {
        self.declare_as(exchange, ExchangeKind::Fanout).await;
    }

    /// A durable one of another type.
    pub async fn declare_as(&self, exchange: &str, kind: ExchangeKind) {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let none = FieldTable::default();
        self.channel
            .exchange_declare(exchange.into(), kind, options, none)
            .await
            .unwrap();
    }

    /// A queue on the exchange that takes `most` messages and refuses more; its name.
    pub async fn full_queue(&self, exchange: &str, most: i32) -> String {
        self.declare(exchange).await;
        let queue = unique("full");
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(most));
        arguments.insert(
            "x-overflow".into(),
            AMQPValue::LongString("reject-publish".into()),
        );
        let durable = QueueDeclareOptions::durable();
        self.channel
            .queue_declare(queue.as_str().into(), durable, arguments)
            .await
            .unwrap();
        let none = FieldTable::default();
        let bound = self.channel.queue_bind(
            queue.as_str().into(),
            exchange.into(),
            "".into(),
            QueueBindOptions::default(),
            none,
        );
        bound.await.unwrap();
        queue
    }

    /// How many messages are in a queue.
    pub async fn depth(&self, queue: &str) -> u32 {
        let passive = QueueDeclareOptions::durable().passive();
        let found = self
            .channel
            .queue_declare(queue.into(), passive, FieldTable::default());
        found.await.unwrap().message_count()
    }

    pub async fn delete_queue(&self, queue: &str) {
        let options = lapin::options::QueueDeleteOptions::default();
        self.channel
            .queue_delete(queue.into(), options)
            .await
            .unwrap();
    }
}
