//! The exchanges of one connection, declared before use.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use lapin::{
    Channel, Connection, ErrorKind, ExchangeKind,
    options::ExchangeDeclareOptions,
    types::{FieldTable, ShortString},
};

#[derive(Default)]
pub(super) struct Exchanges {
    /// A channel of its own, which a refusal closes.
    control: tokio::sync::Mutex<Option<Channel>>,
    /// Each with a lock that is held while it is declared.
    known: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Declared>>>>,
}

#[derive(Default)]
enum Declared {
    #[default]
    No,
    Failed(Instant, String),
    Yes,
}

impl Exchanges {
    /// Declares a durable fanout unless this connection has; after a refusal, not again before `pause` has
    /// passed. Declared once, it is left alone: one that is deleted while the connection lasts would come
    /// back without its queues, and swallow what is published to it. Cancel safe.
    pub(super) async fn declare(
        &self,
        connection: &Connection,
        name: &ShortString,
        pause: Duration,
    ) -> Result<(), String> {
        let exchange = self.exchange(name);
        let mut declared = exchange.lock().await;
        match &*declared {
            Declared::Yes => return Ok(()),
            Declared::Failed(at, reason) if at.elapsed() < pause => return Err(reason.clone()),
            Declared::Failed(..) | Declared::No => {}
        }
        let attempt = self.attempt(connection, name).await;
        let attempt = attempt
            .map_err(|error| format!("declaring exchange {name}: {error}{}", remedy(&error)));
        *declared = match &attempt {
            Ok(()) => Declared::Yes,
            Err(reason) => Declared::Failed(Instant::now(), reason.clone()),
        };
        attempt
    }

    async fn attempt(
        &self,
        connection: &Connection,
        name: &ShortString,
    ) -> Result<(), lapin::Error> {
        let mut control = self.control.lock().await;
        let usable = |channel: &Channel| channel.status().connected();
        let channel = match control.take().filter(usable) {
            Some(channel) => channel,
            None => connection.create_channel().await?,
        };
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let arguments = FieldTable::default();
        channel
            .exchange_declare(name.clone(), ExchangeKind::Fanout, options, arguments)
            .await?;
        *control = Some(channel);
        Ok(())
    }

    fn exchange(&self, name: &ShortString) -> Arc<tokio::sync::Mutex<Declared>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(name.as_str()) {
            Some(exchange) => exchange.clone(),
            None => known.entry(name.to_string()).or_default().clone(),
        }
    }
}

/// What to do where the broker refuses; nothing where it is the connection that failed.
fn remedy(error: &lapin::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ProtocolError(_) => {
            "; it has to be a durable fanout without arguments, which this user may configure and write to: delete it if \
             nobody needs it as it is, or set another exchange template"
        }
        _ => "",
    }
}
