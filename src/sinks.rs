//! What a sink is: a named destination that takes messages and answers for each of them.
//!
//! Sinks know messages, never MongoDB. Each has its own name, and everything that is remembered of what a row owes goes
//! by it: under another name it is another sink. None waits for another: what is in flight, what is remembered and when
//! it is tried again is kept for each by itself.
//!
//! AMQP ([`amqp`]) is asked for one message at a time and for many at once. A sink of the application's own ([`Sink`]) is
//! given batches, one after the other; [`batched`] makes the one of the other. [`Outlet`] is either. One to which the order of
//! the commits is kept ([`mode`]) is given its batches past the queue, by who keeps that order.

pub(crate) mod amqp;
mod attempt;
mod batched;
mod cap;
mod consumer;
pub(crate) mod file;
mod halt;
#[cfg(feature = "http")]
pub(crate) mod http;
mod lines;
mod mode;
mod outlet;
mod policy;
pub(crate) mod safety;
#[cfg(test)]
mod samples;
pub(crate) mod stdout;
mod tls;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bson::Bson;

use crate::{clock::Term, label::BoxError};

pub(crate) use {
    attempt::Fault,
    batched::{Batched, Erased, LEAST_REST, LONGEST_REST},
    cap::Cap,
    consumer::{Consumer, Handler},
    halt::Circuit,
    mode::{Mode, Order},
    outlet::Outlet,
    policy::Next,
};

#[cfg(feature = "sidecar")]
pub(crate) use halt::made_up;
pub use policy::{Policy, SinkOptions};

use safety::Safety;

/// The name of the broker among the sinks.
pub(crate) const AMQP: &str = "amqp";

/// How a sink of the application's own is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It stays owed until it is removed.
    #[default]
    Sink,
    /// A handler in the service: what it is owed is abandoned when nobody has had it for the grace.
    Consumer,
}

/// What a sink of the application's own is given, and what becomes of what it does not take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) policy: Policy,
    pub(crate) mode: Mode,
    pub(crate) kind: Kind,
    /// How much it is given at a time of what is not new.
    pub(crate) safety: Option<Safety>,
    /// How long it may take for a batch, where that is not the same for all.
    pub(crate) timeout: Option<Duration>,
}

/// A destination of the application's own.
///
/// It is given messages in batches, one batch at a time, and answers for each of them, in their order. A row may come
/// again: a process may die between a delivery and its mark. So whoever must not do a thing twice remembers what it
/// has done, by [`row`](Message::row) and [`label`](Message::label) together.
///
/// What becomes of an answer:
///
/// | answer | |
/// | --- | --- |
/// | [`Accepted`](Verdict::Accepted), [`Duplicate`](Verdict::Duplicate) | the message is done |
/// | [`Rejected`](Verdict::Rejected) | it is given up at once; those behind it go on |
/// | [`Retry`](Verdict::Retry) | an attempt is counted, it is tried again at a time of its own, and the sink rests; of all of a batch, or with a time: it is said of the destination, and none is counted |
/// | [`Paused`](Verdict::Paused) | no replica gives it anything more, until it is resumed |
/// | an error, a panic, no answer in [time](crate::Settings::sink_timeout) | the batch is halved until what fails is alone, and that is as [`Retry`](Verdict::Retry) |
/// | an error that is [`Unreachable`] | nothing is counted, and the sink rests |
/// | a batch all of which is rejected | is halved too: perhaps it was for the company |
///
/// A sink rests for as long as it asked for, else a tenth of a second at first, doubling with each failure until it accepts
/// something, and at most one [interval](crate::Settings::interval). What is tried again when, and what is given up, is its
/// [`Policy`].
///
/// Where the order of the commits is kept, nothing goes on past what is not taken, and [`SinkOptions::ordered`] says what becomes of it.
///
/// A delivery that is dropped before it has answered counts as not delivered: after the time-out, when lanes are
/// handed to another replica, and when the outbox shuts down. It must not block its thread.
///
/// ```
/// use toa_outbox::{BoxError, Message, Sink, Verdict};
///
/// struct Printer;
///
/// impl Sink for Printer {
///     async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
///         batch.iter().for_each(|message| println!("{} {}", message.label(), message.row()));
///         Ok(vec![Verdict::Accepted; batch.len()])
///     }
/// }
/// ```
pub trait Sink: Send + Sync + 'static {
    /// Takes these messages, at least one, and answers for each, in the same order: at most 100, or those of as many
    /// rows as [`SinkOptions::ordered`] and [`SinkOptions::audit`] say.
    ///
    /// # Errors
    ///
    /// What keeps all of them from being delivered. Its text is logged.
    fn deliver(
        &self,
        batch: &[Message],
    ) -> impl Future<Output = Result<Vec<Verdict>, BoxError>> + Send;

    /// How many of these messages, from the first on, go into one delivery; the rest go into others, in their order. At least one
    /// does, whatever it says. Asked right before, and for fewer again where a delivery failed, so it is to be quick. All of them, unless it is said here.
    fn at_once(&self, batch: &[Message]) -> usize {
        batch.len()
    }

    /// How much it is given at a time of what is not [new](Message::is_live), where its [options](SinkOptions::safety) do not say so. There is
    /// no limit, unless it is said here.
    fn safety(&self) -> Option<Safety> {
        None
    }
}

/// A sink's answer for one message; see [`Sink`] for what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The destination has it, and has taken responsibility for it.
    Accepted,
    /// The destination had it already.
    Duplicate,
    /// The destination will never take it, for this reason.
    Rejected(String),
    /// Not now.
    Retry {
        /// Why, in one line.
        reason: String,
        /// When the destination wants to be asked again, at the earliest. That it does is no message's fault, so no attempt is
        /// counted. Zero: it does, and does not say when. None: this message failed.
        after: Option<Duration>,
    },
    /// The destination asks for nothing more, until an operator resumes the sink.
    Paused {
        /// Why, in one line.
        reason: String,
        /// By which it is resumed, 1 to 128 letters, digits or `_ -`; none, or another: one is made up.
        circuit: Option<String>,
        /// When the destination thinks that it may be resumed; for the operator, nothing waits for it.
        after: Option<Duration>,
    },
}

/// The error of a [delivery](Sink::deliver) that nobody received: the destination was not there. No message is to blame, so
/// none is tried alone, and no attempt is counted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreachable(String);

impl Unreachable {
    /// Why, in one line.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// What a label makes of an event for one sink. Its identity is [`row`](Self::row) and [`label`](Self::label) together.
#[derive(Clone, Debug)]
pub struct Message {
    pub(crate) row: String,
    pub(crate) entity: Bson,
    pub(crate) time: Option<u64>,
    pub(crate) body: Vec<u8>,
    pub(crate) route: Arc<Route>,
    /// Which attempt this is, the first is 1.
    pub(crate) attempt: u32,
    /// Whether someone asked for it to be sent again.
    pub(crate) is_replay: bool,
    /// Whether it is on its way for the first time, as its row was written.
    pub(crate) is_live: bool,
    /// Where it is in the order of all commits; none where no order is kept.
    pub(crate) position: Option<Arc<str>>,
    /// Within which it may be handed over. To be asked right before, whatever was waited for until then.
    pub(crate) term: Term,
}

impl Message {
    /// The id of the row, as text.
    pub fn row(&self) -> &str {
        &self.row
    }

    /// The name of the label.
    pub fn label(&self) -> &str {
        &self.route.label
    }

    /// The component, `<namespace>.<name>`.
    pub fn component(&self) -> &str {
        &self.route.component
    }

    /// The `_id` of the entity, null where its state has none.
    pub fn entity(&self) -> &Bson {
        &self.entity
    }

    /// When the row was made, in seconds since the epoch by its writer's clock; none if nobody knows.
    pub fn time(&self) -> Option<u64> {
        self.time
    }

    /// The payload, encoded.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Which attempt to deliver it this is, as far as this is remembered: the first is 1. Counted are those that failed for the message
    /// alone.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether an operator asked for it to be sent again after it was given up.
    pub fn is_replay(&self) -> bool {
        self.is_replay
    }

    /// Whether it is new: sent as its row was written, or as the change stream told of it, where order is kept within a minute of the commit.
    /// Not if it comes from a backlog, or is tried again, or was asked for again.
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// Where its row is in the order of all commits, as text without a meaning of its own, for sinks to which
    /// [order](SinkOptions::ordered) is kept; what was committed before their beginning, and what is replayed, has none.
    pub fn position(&self) -> Option<&str> {
        self.position.as_deref()
    }

    /// How it is encoded, exactly: `application/json`, `application/msgpack` or `application/bson`.
    pub fn content_type(&self) -> &'static str {
        self.route.content_type
    }
}

/// Where the messages of one label go, the same for all of them.
#[derive(Debug)]
pub(crate) struct Route {
    /// `<namespace>.<name>`.
    pub(crate) component: String,
    /// The label.
    pub(crate) label: String,
    /// The name of the exchange; of no meaning to other sinks, as the two below.
    pub(crate) exchange: String,
    /// The content type, exactly.
    pub(crate) content_type: &'static str,
    /// Whether a message no queue takes counts as not sent.
    pub(crate) mandatory: bool,
    /// Headers of the user's own.
    pub(crate) headers: BTreeMap<String, String>,
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The destination has it.
    Taken,
    /// Not now; nothing says that the destination has it, and it may all the same.
    Owed {
        /// Why, in one line.
        reason: String,
        /// When to try again.
        pace: Pace,
    },
    /// The message failed alone, for itself.
    Failed {
        /// Why, in one line.
        reason: String,
    },
    /// The destination will never take it.
    Rejected {
        /// Why, in one line.
        reason: String,
    },
}

/// When a message that was not taken is tried again, the most hurried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pace {
    /// As soon as the sink takes messages: the fault was not the message's.
    AtOnce,
    /// With the next cycle.
    NextCycle,
    /// After a cycle, then two, four and so on, up to five minutes.
    Growing,
}

impl Answer {
    /// Why it is still owed and when it is tried again by who counts nothing; none if it is not.
    pub(crate) fn into_owed(self) -> Option<(String, Pace)> {
        match self {
            Self::Taken => None,
            Self::Owed { reason, pace } => Some((reason, pace)),
            Self::Failed { reason } => Some((reason, Pace::NextCycle)),
            Self::Rejected { reason } => Some((reason, Pace::Growing)),
        }
    }

    pub(crate) fn owed(pace: Pace, reason: impl Into<String>) -> Self {
        Self::Owed {
            reason: reason.into(),
            pace,
        }
    }
}

/// Why this cannot be the name of a sink. Names are kept in rows, in routes and on command lines.
pub(crate) fn unusable_name(name: &str) -> Option<&'static str> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    match name {
        AMQP => Some("that is the broker's"),
        name if (1..=100).contains(&name.len()) && name.chars().all(is_known) => None,
        _ => Some("expected 1 to 100 letters, digits or . _ - @"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_word() {
        let long = "x".repeat(100);
        for name in ["billing", "a", "A.b_c-d@1", &long] {
            assert_eq!(unusable_name(name), None, "{name}");
        }
        let longer = "x".repeat(101);
        for name in ["", "amqp", "a b", "a/b", "ü", "a$", &longer] {
            assert!(unusable_name(name).is_some(), "{name}");
        }
    }
}
