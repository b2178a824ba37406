//! The collection and its indexes, before the first transaction and never inside one.

use std::time::Duration;

use bson::{Document, doc};
use mongodb::{Database, IndexModel, error::Error as DriverError, options::IndexOptions};

use super::{Store, deliveries::Deliveries};
use crate::{
    error::{NAMESPACE_NOT_FOUND, Result, UNAUTHORIZED, code},
    lane::LANES,
};

/// Server codes that mean there is no index to drop, or that it stands with another expiry.
const INDEX_NOT_FOUND: i32 = 27;
const INDEX_OPTIONS_CONFLICT: i32 = 85;

/// The names of the indexes, the server's defaults.
const DUE: &str = "lane_1_partial_1_pending_1";
const OWED: &str = "outstanding_1_lane_1_pending_1";
const RETENTION: &str = "publishedAt_1";

/// Prepares an outbox collection for good: creates it and its indexes, applies the retention, and installs
/// a validator that refuses rows no pump could ever read. For an administrator; repeating it changes
/// nothing.
///
/// # Errors
///
/// [`Error::Store`](crate::Error::Store) if MongoDB refuses, missing rights included.
pub async fn init(database: &Database, collection: &str, retention: Duration) -> Result<()> {
    let store = Store::new(database, collection);
    let done = async {
        store.create(retention, &[due_index()]).await?;
        store.validate().await
    };
    done.await
        .map_err(|error| store.failed("preparing the outbox collection", error))
}

impl Store {
    /// Makes what sinks of a service's own need besides; for an administrator.
    pub(crate) async fn init_for_sinks(&self) -> Result<()> {
        let made = self.rows.create_indexes([owed_index()]).await;
        made.map_err(|error| self.failed("creating the index of several sinks", error))?;
        Deliveries::new(self).ensure().await
    }

    /// Creates the collection and its indexes where they are missing and applies a changed retention.
    /// Losing a race to another process is no error; not being allowed to is reported, with what an
    /// administrator has to run, and is no error either.
    ///
    /// `retention` zero: no TTL index at all, since the server reads zero as "at once". Where several sinks share the rows, an
    /// index more, which costs each mark a little.
    pub(crate) async fn ensure(&self, retention: Duration, is_shared: bool) -> Result<()> {
        let indexes = match is_shared {
            true => vec![due_index(), owed_index()],
            false => vec![due_index()],
        };
        match self.create(retention, &indexes).await {
            Ok(()) => Ok(()),
            Err(error) if code(&error) == Some(UNAUTHORIZED) => {
                tracing::warn!(
                    collection = self.name(),
                    %error,
                    "not allowed to create the outbox collection, its indexes or a changed retention; \
                     have an administrator run: TOA_OUTBOX_RETENTION={} toa-outbox init --database {} {}; \
                     TOA_OUTBOX_ENSURE=0 silences this",
                    retention.as_secs(),
                    self.database.name(),
                    self.rows.name(),
                );
                Ok(())
            }
            Err(error) => Err(self.failed("creating the outbox collection and its indexes", error)),
        }
    }

    /// Creating an index creates its collection; where all is there, one request finds that out.
    async fn create(&self, retention: Duration, read_by: &[IndexModel]) -> Result<(), DriverError> {
        let read_by = read_by.iter().cloned();
        if retention.is_zero() {
            self.rows.create_indexes(read_by).await?;
            // By its keys, whatever name it was given.
            let command = doc! { "dropIndexes": self.rows.name(), "index": { "publishedAt": 1 } };
            let dropped = self.database.run_command(command).await;
            return tolerate(dropped, &[INDEX_NOT_FOUND, NAMESPACE_NOT_FOUND]);
        }
        let all = read_by.clone().chain([retention_index(retention)]);
        match self.rows.create_indexes(all).await {
            Err(error) if code(&error) == Some(INDEX_OPTIONS_CONFLICT) => {
                self.rows.create_indexes(read_by).await?;
                self.retain(retention).await
            }
            created => created.map(|_| ()),
        }
    }

    async fn validate(&self) -> Result<(), DriverError> {
        let command = doc! {
            "collMod": self.rows.name(),
            "validator": validator(),
            "validationLevel": "strict",
            "validationAction": "error",
        };
        self.database.run_command(command).await.map(|_| ())
    }

    /// Changes the expiry of the index that stands, without dropping it.
    async fn retain(&self, retention: Duration) -> Result<(), DriverError> {
        let seconds = i64::try_from(retention.as_secs()).unwrap_or(i64::MAX);
        let index = doc! { "keyPattern": { "publishedAt": 1 }, "expireAfterSeconds": seconds };
        let command = doc! { "collMod": self.rows.name(), "index": index };
        self.database.run_command(command).await.map(|_| ())
    }
}

/// What the pump reads by: lanes are few, so a scan a lane, and within a lane by when a row is due. Rows of which some
/// sink has its routes lie apart, so that any number of them costs nothing to those who have theirs.
/// Partial: a published row costs it nothing, and a healthy system has hardly any other.
pub(super) fn due_index() -> IndexModel {
    let options = IndexOptions::builder()
        .name(DUE.to_owned())
        .partial_filter_expression(doc! { "published": false })
        .build();
    index(due_keys(), options)
}

pub(super) fn due_keys() -> Document {
    doc! { "lane": 1, "partial": 1, "pending": 1 }
}

/// What is read by of the rows of which some routes are done: those that owe a certain one, and no others. A key for each
/// route that is owed; none for a row of which nothing is done, as nearly all are. Made only where several sinks share the
/// rows: to look whether a row belongs into it costs each mark a few microseconds.
fn owed_index() -> IndexModel {
    let options = IndexOptions::builder()
        .name(OWED.to_owned())
        .partial_filter_expression(doc! { "published": false, "partial": true })
        .build();
    index(owed_keys(), options)
}

pub(super) fn owed_keys() -> Document {
    doc! { "outstanding": 1, "lane": 1, "pending": 1 }
}

/// What the server's TTL monitor reaps by. An unpublished row has no `publishedAt`, and the monitor
/// skips documents without the field, so a row that never left is never reaped.
pub(super) fn retention_index(retention: Duration) -> IndexModel {
    let options = IndexOptions::builder()
        .name(RETENTION.to_owned())
        .expire_after(retention)
        .build();
    index(doc! { "publishedAt": 1 }, options)
}

/// What every row must be for a pump to read it. A row that is published when it is written would never
/// be, so `published` needs the date that only a mark gives it.
pub(super) fn validator() -> Document {
    let number = doc! { "bsonType": ["int", "long", "double", "decimal"] };
    let mut lane = number.clone();
    lane.extend(doc! { "minimum": 0, "maximum": i32::from(LANES) - 1, "multipleOf": 1 });
    let schema = doc! {
        "bsonType": "object",
        "required": ["lane", "published", "pending", "event"],
        "properties": {
            "_id": { "bsonType": ["binData", "objectId", "string"] },
            "lane": lane,
            "published": { "bsonType": "bool" },
            "pending": number,
            "event": {
                "bsonType": "object",
                "required": ["state"],
                "properties": {
                    "state": { "bsonType": "object" },
                    "origin": { "bsonType": ["object", "null"] },
                },
            },
        },
    };
    let marked = doc! { "published": true, "publishedAt": { "$type": "date" } };
    doc! { "$jsonSchema": schema, "$or": [{ "published": false }, marked] }
}

fn index(keys: Document, options: IndexOptions) -> IndexModel {
    IndexModel::builder().keys(keys).options(options).build()
}

fn tolerate<T>(result: Result<T, DriverError>, codes: &[i32]) -> Result<(), DriverError> {
    match result {
        Err(error) if code(&error).is_some_and(|code| codes.contains(&code)) => Ok(()),
        other => other.map(|_| ()),
    }
}
