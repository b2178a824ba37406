//! Rows as they are committed: a change stream on the outbox collections of a database.

use std::{future::IntoFuture, time::Duration};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp, doc};
use mongodb::{
    Database,
    action::Watch,
    change_stream::{ChangeStream, event::ResumeToken},
    error::Error as DriverError,
    options::{ReadPreference, SelectionCriteria},
};

use super::{
    OUTBOXES, Store,
    server::{Hello, Time},
};
use crate::error::{Error, Result};

/// How long the server keeps an idle request open: how soon one knows that there is nothing new.
const LONGEST_AWAIT: Duration = Duration::from_millis(250);

/// Rows the server sends at once: without a limit it fills 16 MB.
const BATCH: u32 = 1000;

/// How long without a word of the server, after which the stream counts as dead.
const SILENCE: Duration = Duration::from_secs(10);

/// What is to be followed.
pub(crate) struct Scope {
    pub(crate) lanes: Vec<u8>,
    pub(crate) collections: Collections,
}

/// Of which collections.
pub(crate) enum Collections {
    These(Vec<String>),
    /// Every outbox collection, those too that are still to be created.
    All,
}

/// An open stream.
pub(crate) struct Feed {
    stream: ChangeStream<RawDocumentBuf>,
    database: String,
}

/// A row that was committed, as its change event has it.
pub(crate) struct Inserted(RawDocumentBuf);

impl Inserted {
    /// The collection it is in.
    pub(crate) fn collection(&self) -> Option<&str> {
        let of = self.0.get_document("ns").ok()?;
        of.get_str("coll").ok()
    }

    pub(crate) fn row(&self) -> Option<&RawDocument> {
        self.0.get_document("fullDocument").ok()
    }

    /// Where the stream goes on after it.
    pub(crate) fn token(&self) -> Option<Bson> {
        let token = self.0.get_document("_id").ok()?;
        Document::try_from(token).ok().map(Bson::from)
    }

    /// When it was committed, by the order of all commits.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        self.0.get_timestamp("clusterTime").ok()
    }
}

impl Feed {
    /// Opens a stream that brings what is committed from here on.
    ///
    /// Always from the primary, which knows first, whatever the connection string prefers.
    pub(crate) async fn open(database: &Database, scope: &Scope) -> Result<Self> {
        Self::with(database, vec![doc! { "$match": filter(scope) }]).await
    }

    /// The same of every row that is inserted, readable or not; without its event unless it is to be `whole`.
    #[cfg(feature = "sidecar")]
    pub(crate) async fn of_all(
        database: &Database,
        collections: &Collections,
        whole: bool,
    ) -> Result<Self> {
        let mut pipeline = vec![doc! { "$match": inserts(collections) }];
        if !whole {
            pipeline.push(doc! { "$unset": "fullDocument.event" });
        }
        Self::with(database, pipeline).await
    }

    /// The rows that are inserted into one collection and are owed to somebody. It ends when the collection is dropped.
    pub(crate) async fn of_one(database: &Database, collection: &str) -> Result<Self> {
        let unpublished = doc! { "operationType": "insert", "fullDocument.published": false };
        let rows = database.collection::<Document>(collection);
        Self::open_by(database, rows.watch(), vec![doc! { "$match": unpublished }]).await
    }

    /// Every row that is inserted into one collection, from a place on, or from the time when the stream began.
    pub(crate) async fn of_one_from(
        rows: &Store,
        start: Timestamp,
        after: Option<ResumeToken>,
    ) -> Result<Self> {
        let inserted = vec![doc! { "$match": { "operationType": "insert" } }];
        let stream = match after {
            Some(token) => rows.followed.watch().resume_after(token),
            None => rows.followed.watch().start_at_operation_time(start),
        };
        Self::open_by(&rows.database, stream, inserted).await
    }

    async fn with(database: &Database, pipeline: Vec<Document>) -> Result<Self> {
        Self::open_by(database, database.watch(), pipeline).await
    }

    async fn open_by(
        database: &Database,
        stream: Watch<'_>,
        pipeline: Vec<Document>,
    ) -> Result<Self> {
        let name = database.name().to_owned();
        let opened = stream
            .pipeline(pipeline)
            .max_await_time(LONGEST_AWAIT)
            .batch_size(BATCH)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .into_future();
        let opened = tokio::time::timeout(SILENCE, opened).await;
        let stream = opened
            .unwrap_or_else(|_| Err(silent()))
            .map_err(|error| Error::store("opening the change stream", &name, error))?;
        Ok(Self {
            stream: stream.with_type(),
            database: name,
        })
    }

    /// The next row; none if there was none when the server was asked, which was after this was called. After an error,
    /// or dropped on the way, the stream is of no more use.
    pub(crate) async fn next(&mut self) -> Result<Option<Inserted>> {
        let next = tokio::time::timeout(SILENCE, self.stream.next_if_any()).await;
        match next.unwrap_or_else(|_| Err(silent())) {
            Ok(None) if !self.stream.is_alive() => Err(self.failed(DriverError::custom(
                "the server ended the stream; the database or the collection may have been dropped",
            ))),
            Ok(event) => Ok(event.map(Inserted)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Where it goes on after what it has brought, and after what it left out since.
    pub(crate) fn token(&self) -> Option<Bson> {
        bson::serialize_to_bson(&self.stream.resume_token()?).ok()
    }

    /// Whether the server has ended it: the collection was dropped or renamed.
    pub(crate) fn is_over(&self) -> bool {
        !self.stream.is_alive()
    }

    fn failed(&self, error: DriverError) -> Error {
        Error::store("following the change stream", &self.database, error)
    }
}

/// A point in the order of all commits that comes after everything a majority has by now.
pub(crate) async fn fence(database: &Database) -> Result<Timestamp> {
    let hello = hello(database).await?;
    hello.at().ok_or_else(|| untold(database, "operationTime"))
}

/// What time it is where the rows of one collection are committed.
pub(crate) async fn time_of(rows: &Store) -> Result<Time> {
    let hello = hello(&rows.database).await?;
    Time::of(&hello).ok_or_else(|| untold(&rows.database, "localTime"))
}

async fn hello(database: &Database) -> Result<Hello> {
    let failed = |error| Error::store("asking for the time", database.name(), error);
    let asked = tokio::time::timeout(SILENCE, Hello::ask(database)).await;
    asked.map_err(|_| failed(silent()))?
}

fn untold(database: &Database, field: &str) -> Error {
    let error = DriverError::custom(format!("the reply holds no {field}"));
    Error::store("asking for the time", database.name(), error)
}

/// A place in a stream as it was saved; why it is none.
pub(crate) fn place(token: &Bson) -> Result<ResumeToken, String> {
    bson::deserialize_from_bson(token.clone()).map_err(|error| error.to_string())
}

/// The same, for who has the rows of one collection.
pub(crate) async fn fence_of(rows: &Store) -> Result<Timestamp> {
    fence(&rows.database).await
}

fn silent() -> DriverError {
    DriverError::custom(format!("no answer within {} s", SILENCE.as_secs()))
}

/// Judged by the server, so that what is another replica's is not sent to us.
fn filter(scope: &Scope) -> Document {
    let lanes: Vec<i32> = scope.lanes.iter().map(|&lane| lane.into()).collect();
    let mut filter = inserts(&scope.collections);
    filter.extend(doc! {
        "fullDocument.published": false,
        "fullDocument.lane": { "$in": lanes },
    });
    filter
}

fn inserts(collections: &Collections) -> Document {
    let collections = match collections {
        Collections::These(names) => doc! { "$in": names },
        Collections::All => doc! { "$regex": OUTBOXES },
    };
    doc! { "operationType": "insert", "ns.coll": collections }
}
