//! A consumer, and which of its messages a scenario has spoken of.

use std::{collections::HashSet, time::Duration};

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, options::BasicPublishOptions,
};
use tokio::time::timeout;

use super::json;
use crate::support::{Checker, Delivery, eventually, servers, unique};

/// The `type` of a message that only says: whatever the broker had before is here.
const MARKER: &str = "marker";

pub struct Consumer {
    checker: Checker,
    exchange: String,
    /// By order of arrival.
    spoken_of: HashSet<usize>,
}

impl Consumer {
    pub async fn bind(exchanges: &[String]) -> Self {
        let names: Vec<&str> = exchanges.iter().map(String::as_str).collect();
        Self {
            checker: Checker::bind_all(&servers().await.rabbit.uri(), &names).await,
            exchange: exchanges[0].clone(),
            spoken_of: HashSet::new(),
        }
    }

    /// What has arrived and was not spoken of.
    pub fn news(&self) -> Vec<Delivery> {
        let mut deliveries = self.checker.received();
        deliveries.retain(|delivery| {
            delivery.kind != MARKER && !self.spoken_of.contains(&delivery.order)
        });
        deliveries
    }

    pub fn speak_of(&mut self, deliveries: &[Delivery]) {
        self.spoken_of
            .extend(deliveries.iter().map(|delivery| delivery.order));
    }

    /// Waits for one message that fits.
    pub async fn arrival(
        &mut self,
        within: Duration,
        fits: impl Fn(&Delivery) -> bool,
    ) -> Delivery {
        let first = eventually(within * 2, "a message", async || {
            self.news().into_iter().find(&fits)
        });
        let found = timeout(within, first).await;
        let delivery =
            found.unwrap_or_else(|_| panic!("not within {within:?}; there are {:#?}", self.list()));
        self.speak_of(std::slice::from_ref(&delivery));
        delivery
    }

    /// Waits until everything that the broker has accepted by now is here: a queue keeps its order.
    pub async fn flush(&self) {
        let id = unique(MARKER);
        let channel = channel().await;
        let properties = BasicProperties::default()
            .with_type(MARKER.into())
            .with_message_id(id.as_str().into());
        let options = BasicPublishOptions::default();
        let sent = channel.basic_publish(
            self.exchange.as_str().into(),
            "".into(),
            options,
            b"",
            properties,
        );
        sent.await.expect("a marker");
        eventually(Duration::from_secs(10), "the marker", async || {
            self.checker
                .received()
                .iter()
                .any(|delivery| delivery.message_id == id)
        })
        .await;
    }

    /// What arrived, for people.
    pub fn list(&self) -> Vec<String> {
        let show = |delivery: Delivery| {
            format!(
                "{} {}",
                delivery.kind,
                String::from_utf8_lossy(&delivery.body)
            )
        };
        let spoken_of = |order| {
            if self.spoken_of.contains(&order) {
                ""
            } else {
                "news: "
            }
        };
        let deliveries = self.checker.received().into_iter();
        deliveries
            .filter(|delivery| delivery.kind != MARKER)
            .map(|delivery| spoken_of(delivery.order).to_owned() + &show(delivery))
            .collect()
    }
}

/// The pot a message is of, where its body says.
pub fn pot(delivery: &Delivery) -> Option<String> {
    let body = json::body(delivery).ok()?;
    Some(body.get("_id")?.as_str()?.to_owned())
}

/// A channel to the broker that nothing stands between; its connection ends with it.
pub async fn channel() -> Channel {
    let uri = servers().await.rabbit.uri();
    let connection = Connection::connect(&uri, ConnectionProperties::default()).await;
    connection
        .expect("RabbitMQ")
        .create_channel()
        .await
        .expect("a channel")
}
