//! A message as the protocol carries it.

use lapin::{
    BasicProperties,
    options::BasicPublishOptions,
    types::{AMQPValue, FieldTable, ShortString},
};

use super::quarantine::Suspect;
use crate::{clock::Term, sinks::Message};

/// What is given to a channel for one message.
pub(super) struct Envelope {
    pub(super) exchange: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) options: BasicPublishOptions,
    pub(super) body: Vec<u8>,
    /// Within which it may be given to a channel.
    pub(super) term: Term,
    /// Who is to blame if the broker cannot take it.
    pub(super) suspects: [Suspect; 2],
}

/// What is left of a frame for everything but a message's headers: four short strings and a few numbers.
const REST_OF_FRAME: usize = 2048;

impl Envelope {
    /// Fails where a name is longer than the protocol's short strings, or the headers do not fit the one
    /// frame they have to, of at most `frame` bytes: that is the row's problem. The broker would answer
    /// the latter by closing the connection.
    pub(super) fn new(message: Message, frame: usize) -> Result<Self, String> {
        let route = &message.route;
        // A type and a length for each.
        let size = |(name, value): (&String, &String)| name.len() + value.len() + 6;
        let size: usize = route.headers.iter().map(size).sum();
        let most = frame - REST_OF_FRAME;
        if size > most {
            return Err(format!(
                "its headers have {size} bytes, this broker takes at most {most}"
            ));
        }
        let short = |what: &str, text: &str| {
            ShortString::try_new(text).map_err(|_| {
                format!(
                    "{what} is {} bytes long, AMQP carries at most 255; shorten it, or delete the row",
                    text.len()
                )
            })
        };
        let mut headers = FieldTable::default();
        for (name, value) in &route.headers {
            let value = AMQPValue::LongString(value.as_str().into());
            headers.insert(short("a header's name", name)?, value);
        }
        let mut properties = BasicProperties::default()
            .with_message_id(short("the row's id", &message.row)?)
            .with_type(short("the label", &route.label)?)
            .with_app_id(short("the component", &route.component)?)
            .with_content_type(route.content_type.into())
            .with_delivery_mode(2)
            .with_headers(headers);
        if let Some(time) = message.time {
            properties = properties.with_timestamp(time);
        }
        Ok(Self {
            exchange: short("the exchange", &route.exchange)?,
            properties,
            options: BasicPublishOptions {
                mandatory: route.mandatory,
                immediate: false,
            },
            suspects: [
                Suspect::Exchange(route.exchange.clone()),
                Suspect::Message(message.row, route.label.clone()),
            ],
            body: message.body,
            term: message.term,
        })
    }

    /// What a return of this message carries.
    pub(super) fn identity(&self) -> (&str, &str) {
        let id = self.properties.message_id().as_ref();
        (id.map_or("", |id| id.as_str()), self.exchange.as_str())
    }
}
