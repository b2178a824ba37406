//! What is stored, field by field. How it is spelled in the collection is the store's business.

use std::{fmt, time::SystemTime};

use bson::{Bson, Document, oid::ObjectId};
use uuid::Uuid;

/// A state change: everything a label may look at.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The record before the change; none when the entity did not exist. Not a diff.
    pub origin: Option<Document>,
    /// The record after the change, `_version` included.
    pub state: Document,
    /// What the operation attached for its events; never stored in the entity.
    pub trailers: Bson,
    /// The operation's input, as it came.
    pub input: Bson,
}

impl Event {
    /// An entity that did not exist before.
    pub fn created(state: Document) -> Self {
        Self {
            origin: None,
            state,
            trailers: Bson::Null,
            input: Bson::Null,
        }
    }

    /// A change of an entity from `origin` to `state`.
    pub fn changed(origin: Document, state: Document) -> Self {
        Self {
            origin: Some(origin),
            ..Self::created(state)
        }
    }

    /// With the operation's input.
    pub fn input(self, input: impl Into<Bson>) -> Self {
        Self {
            input: input.into(),
            ..self
        }
    }

    /// With what the operation attached.
    pub fn trailers(self, trailers: impl Into<Bson>) -> Self {
        Self {
            trailers: trailers.into(),
            ..self
        }
    }
}

/// One state change as it stands in the outbox collection. It holds the event, not the messages the
/// event renders to.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its identity, and with the label the identity of every message it renders to.
    pub id: RowId,
    /// Which replica pumps it, below [`LANES`](crate::LANES); not an ordering.
    pub lane: u8,
    /// Milliseconds since the epoch: nobody but its writer publishes it before. Not when it was
    /// written.
    pub pending: i64,
    /// What happened.
    pub event: Event,
    /// The routes that are still owed, where some are done and some are not; none: all of them.
    pub outstanding: Option<Vec<String>>,
}

/// The `_id` of a row. Ours are v7 UUIDs; rows of other writers are taken as they come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RowId {
    /// A UUID, BSON binary subtype 4.
    Uuid(Uuid),
    /// An ObjectId.
    ObjectId(ObjectId),
    /// A string of any content, 32 hexadecimal digits included.
    Text(String),
}

impl RowId {
    /// A new one, later than every one this process made before.
    pub fn new() -> Self {
        Self::Uuid(Uuid::now_v7())
    }

    /// When the row was made according to its id, in milliseconds since the epoch; none if the id
    /// does not tell.
    pub fn time(&self) -> Option<i64> {
        match self {
            Self::Uuid(id) => uuid_time(id),
            Self::ObjectId(id) => Some(id.timestamp().timestamp_millis()),
            Self::Text(text) => Uuid::try_parse(text).ok().as_ref().and_then(uuid_time),
        }
    }
}

fn uuid_time(id: &Uuid) -> Option<i64> {
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    i64::try_from(seconds * 1000 + u64::from(nanos / 1_000_000)).ok()
}

impl Default for RowId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(id) => id.fmt(f),
            Self::ObjectId(id) => id.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Milliseconds since the epoch by this machine's clock.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}
