//! Looks at a broker once, and changes nothing on it.

use std::time::Duration;

use lapin::{
    Channel, ErrorKind, ExchangeKind,
    options::ExchangeDeclareOptions,
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{FieldTable, ShortString},
};

use super::{Node, link::Link, tls::Certificates};
use crate::{config::Settings, error::Result};

/// How long a connection that is being closed in good order may take to say so.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long the broker may take over a question.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection on which nothing is published.
pub(crate) struct Survey {
    link: Link,
    channel: Option<Channel>,
}

/// What stands under the name of an exchange.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// As it is declared before use.
    Fits,
    /// Nothing; it is made with the first message.
    Missing,
    /// One of another type or with other properties, or one that this user has no right to.
    Refused(String),
}

impl Survey {
    /// Tries each node of the settings once: its address, and the connection or why there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`](crate::Error::Setting) if there is no URI or one of them is none.
    pub(crate) async fn each(settings: &Settings) -> Result<Vec<(String, Result<Self, String>)>> {
        let nodes = Node::list(&settings.amqp)?;
        let certificates = Certificates::of(settings, &nodes)?;
        let attempts = nodes.iter().map(async |node| {
            let link = Link::open(node, &certificates)
                .await
                .map_err(|error| error.to_string());
            let survey = link.map(|link| Self {
                link,
                channel: None,
            });
            (node.address().to_owned(), survey)
        });
        Ok(futures::future::join_all(attempts).await)
    }

    /// Whether the broker takes no publications at the moment.
    pub(crate) fn is_blocked(&self) -> bool {
        self.link.connection().status().blocked()
    }

    /// Looks at one exchange. Fails where the connection does.
    pub(crate) async fn exchange(&mut self, name: &str) -> Result<Exchange, String> {
        let Ok(name) = ShortString::try_new(name) else {
            return Ok(Exchange::Refused(
                "AMQP carries names of at most 255 bytes".into(),
            ));
        };
        // One that is there already is not made by declaring it, only compared.
        let found = self.declare(&name, true).await?;
        match found {
            Exchange::Fits => self.declare(&name, false).await,
            found => Ok(found),
        }
    }

    async fn declare(&mut self, name: &ShortString, passive: bool) -> Result<Exchange, String> {
        let attempt = tokio::time::timeout(PATIENCE, self.attempt(name, passive)).await;
        let attempt = attempt.map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?;
        match attempt {
            Ok(()) => Ok(Exchange::Fits),
            Err(error) => refused(&error).ok_or_else(|| error.to_string()),
        }
    }

    /// A refusal closes the channel, so the next question has a new one.
    async fn attempt(&mut self, name: &ShortString, passive: bool) -> Result<(), lapin::Error> {
        let channel = match self.channel.take() {
            Some(channel) => channel,
            None => self.link.connection().create_channel().await?,
        };
        let options = ExchangeDeclareOptions {
            durable: true,
            passive,
            ..ExchangeDeclareOptions::default()
        };
        let (kind, arguments) = (ExchangeKind::Fanout, FieldTable::default());
        channel
            .exchange_declare(name.clone(), kind, options, arguments)
            .await?;
        self.channel = Some(channel);
        Ok(())
    }

    /// Ends the connection in good order.
    pub(crate) async fn close(self) {
        let closed = self.link.connection().close(200, "bye".into());
        // Past the time, or with an error, it is cut all the same.
        let _ = tokio::time::timeout(FAREWELL, closed).await;
    }
}

/// What a closed channel means; none: it is the connection that failed.
fn refused(error: &lapin::Error) -> Option<Exchange> {
    let ErrorKind::ProtocolError(error) = error.kind() else {
        return None;
    };
    match error.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Some(Exchange::Missing),
        AMQPErrorKind::Soft(_) => Some(Exchange::Refused(error.get_message().to_string())),
        AMQPErrorKind::Hard(_) => None,
    }
}
