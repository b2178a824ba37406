//! Every query on the outbox collection. Only this file and its parts know how a row is spelled.

mod codec;
pub(crate) mod cursors;
pub(crate) mod deliveries;
#[cfg(feature = "sidecar")]
mod discover;
mod ensure;
pub(crate) mod feed;
mod held;
#[cfg(feature = "sidecar")]
pub(crate) mod inspect;
pub(crate) mod marking;
pub(crate) mod origin;
mod owed;
pub(crate) mod registry;
pub(crate) mod rights;
pub(crate) mod server;
#[cfg(feature = "sidecar")]
pub(crate) mod survey;
mod waiting;

use std::{future::IntoFuture, time::Duration};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use mongodb::{
    ClientSession, Collection, Cursor, Database,
    options::{
        CollectionOptions, FindOptions, Hint, ReadConcern, ReadPreference, SelectionCriteria,
        WriteConcern,
    },
};

use crate::{
    error::{Error, Result, code},
    lane::LANES,
    row::{Row, RowId},
};

pub(crate) use codec::{Malformed, decode, encode, row_id_in as row_id, seal};
#[cfg(feature = "sidecar")]
pub(crate) use discover::{Found, components, found};
pub use ensure::init;
#[cfg(feature = "sidecar")]
pub(crate) use owed::Debt;
pub(crate) use waiting::Waiting;

/// How long one request may take before it counts as failed. Not a `maxTimeMS`, which adds up over the
/// life of a cursor: a long drain is no fault.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server's code for a hint at an index that is not there, `BadValue`.
const BAD_HINT: i32 = 2;

/// What the name of an outbox collection is like, as a regular expression.
const OUTBOXES: &str = "._outbox$";

/// Which of the rows that are due.
pub(crate) enum Which<'a> {
    /// All of them, whatever they owe.
    All,
    /// Those of which nothing is done.
    Whole,
    /// Those of which something is done, and one of these routes is not.
    Owing(&'a [&'a str]),
}

/// What is known of some rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marking<'a> {
    /// Routes that are owed no more.
    pub(crate) done: &'a [&'a str],
    /// Routes that are tried again at times of their own.
    pub(crate) later: &'a [&'a str],
    /// What a row owes that does not say.
    pub(crate) all: &'a [&'a str],
}

impl Marking<'_> {
    /// What is still owed.
    fn rest(&self) -> Document {
        let owed = doc! { "$ifNull": ["$outstanding", self.all] };
        let gone = [self.done, self.later].concat();
        let rest = doc! { "$setDifference": [owed.clone(), gone] };
        if self.later.is_empty() {
            return rest;
        }
        let later = doc! { "$setIntersection": [owed, self.later] };
        let spelled = doc! { "$concat": [deliveries::RETRYING, "$$this"] };
        let later = doc! { "$map": { "input": later, "in": spelled } };
        doc! { "$setUnion": [rest, later] }
    }
}

/// The outbox collection of one component.
#[derive(Clone)]
pub(crate) struct Store {
    database: Database,
    rows: Collection<Document>,
    /// The same, through connections that may be held for long.
    followed: Collection<Document>,
    /// Whether a row without a digest is as bad as one with a wrong one.
    wants_digest: bool,
}

impl Store {
    pub(crate) fn new(database: &Database, collection: &str) -> Self {
        Self {
            database: database.clone(),
            rows: database.collection(collection),
            followed: database.collection(collection),
            wants_digest: false,
        }
    }

    /// The same, whose change stream holds other connections to the database while it waits.
    #[cfg(feature = "sidecar")]
    pub(crate) fn followed_by(self, database: &Database) -> Self {
        Self {
            followed: database.collection(self.collection()),
            ..self
        }
    }

    /// The same, with or without rows that have no digest.
    pub(crate) fn wanting_digest(self, wants_digest: bool) -> Self {
        Self {
            wants_digest,
            ..self
        }
    }

    /// A row of this collection that may be published.
    pub(crate) fn decode(&self, raw: &RawDocument) -> Result<Row, Malformed> {
        let row = decode(raw)?;
        match self.wants_digest && codec::is_bare(raw) {
            true => Err(Malformed::bare(&row.id)),
            false => Ok(row),
        }
    }

    /// `<database>.<collection>`, as errors and logs name it.
    pub(crate) fn name(&self) -> String {
        self.rows.namespace().to_string()
    }

    /// The collection's name in its database.
    pub(crate) fn collection(&self) -> &str {
        self.rows.name()
    }

    /// Inserts an encoded row in the caller's transaction.
    pub(crate) async fn insert(
        &self,
        session: &mut ClientSession,
        row: &RawDocumentBuf,
    ) -> Result<()> {
        let rows = self.rows.clone_with_type::<RawDocumentBuf>();
        let inserted = rows.insert_one(row).session(session).await;
        inserted
            .map(|_| ())
            .map_err(|error| self.failed("inserting a row", error))
    }

    /// The row of this id, as the caller's transaction sees it.
    pub(crate) async fn stored(
        &self,
        session: &mut ClientSession,
        id: &RowId,
    ) -> Result<Option<RawDocumentBuf>> {
        let rows = self.rows.clone_with_type::<RawDocumentBuf>();
        let found = rows
            .find_one(doc! { "_id": codec::id(id) })
            .session(session);
        found
            .await
            .map_err(|error| self.failed("looking for a row", error))
    }

    /// What is due by the server's clock in `lanes`, in no particular order, as one streaming cursor.
    ///
    /// One scan of the index on lane and pending, no sort. The bound is taken once: `$$NOW` does not
    /// move while the cursor is read, so rows that become due meanwhile are left to the next cycle.
    ///
    /// All lanes are asked for as a range. Marked rows leave keys in the index for as long as a snapshot may need them (five
    /// minutes by default), and each lane that is asked for by itself makes the server pass over them anew: after a million
    /// rows that made an empty cycle take 130 ms instead of 85.
    pub(crate) async fn due(
        &self,
        lanes: &[u8],
        which: &Which<'_>,
        batch: u32,
    ) -> Result<Cursor<Document>> {
        let lanes = match lanes.len() == usize::from(LANES) {
            true => doc! { "$gte": 0, "$lt": i32::from(LANES) },
            false => doc! { "$in": lanes.iter().map(|&lane| i32::from(lane)).collect::<Vec<_>>() },
        };
        let mut filter = doc! {
            "published": false,
            "lane": lanes,
            "$expr": { "$lte": ["$pending", { "$toLong": "$$NOW" }] },
        };
        match which {
            Which::All => {}
            Which::Whole => drop(filter.insert("partial", doc! { "$exists": false })),
            Which::Owing(routes) => {
                filter.insert("partial", true);
                filter.insert("outstanding", doc! { "$in": routes.to_vec() });
                return self.owing(filter, batch).await;
            }
        }
        self.find(filter, None, batch).await
    }

    /// By the index on what is owed: the other one may bring rows without end that owe it to others. Where an older
    /// version made the indexes, or none, as the server sees fit.
    async fn owing(&self, filter: Document, batch: u32) -> Result<Cursor<Document>> {
        let hint = Some(Hint::Keys(ensure::owed_keys()));
        match self.find(filter.clone(), hint, batch).await {
            Err(Error::Store { source, .. }) if code(&source) == Some(BAD_HINT) => {
                self.find(filter, None, batch).await
            }
            found => found,
        }
    }

    /// The rows of `ids` that are still unpublished, due or not.
    pub(crate) async fn unpublished(&self, ids: &[RowId], batch: u32) -> Result<Cursor<Document>> {
        let ids: Vec<Bson> = ids.iter().map(codec::id).collect();
        self.find(
            doc! { "_id": { "$in": ids }, "published": false },
            None,
            batch,
        )
        .await
    }

    /// The next document of a cursor of ours; whether there is one.
    pub(crate) async fn advance(&self, cursor: &mut Cursor<Document>) -> Result<bool> {
        self.within("reading on what is due", cursor.advance())
            .await
    }

    async fn find(
        &self,
        filter: Document,
        hint: Option<Hint>,
        batch: u32,
    ) -> Result<Cursor<Document>> {
        let options = FindOptions::builder().hint(hint).build();
        let found = self
            .rows
            .find(filter)
            .with_options(options)
            .batch_size(batch)
            .read_concern(ReadConcern::majority())
            .selection_criteria(primary())
            .into_future();
        self.within("reading what is due", found).await
    }

    /// Takes what is `marking.done` off what the rows of `ids` still owe, of `marking.all` where a row does not say, and publishes the
    /// rows of which nothing is left. Majority; safe to repeat. How many rows it changed.
    ///
    /// One pipeline, so that two markers that finish different routes of one row cannot undo each
    /// other; a row that is published already is left as it is.
    pub(crate) async fn mark(&self, ids: &[RowId], marking: &Marking<'_>) -> Result<u64> {
        let ids: Vec<Bson> = ids.iter().map(codec::id).collect();
        let nothing_left = doc! { "$eq": ["$outstanding", []] };
        let marked = self
            .rows
            .update_many(
                doc! { "_id": { "$in": ids }, "published": false },
                vec![
                    doc! { "$set": { "outstanding": marking.rest() } },
                    doc! { "$set": {
                        "published": nothing_left.clone(),
                        "publishedAt": { "$cond": [nothing_left.clone(), "$$NOW", "$$REMOVE"] },
                        "outstanding": { "$cond": [nothing_left.clone(), "$$REMOVE", "$outstanding"] },
                        "partial": { "$cond": [nothing_left, "$$REMOVE", true] },
                    } },
                ],
            )
            .hint(Hint::Keys(doc! { "_id": 1 }))
            .write_concern(WriteConcern::majority())
            .into_future();
        let marked = self.within("marking rows published", marked).await?;
        Ok(marked.modified_count)
    }

    /// The row of this id as it stands.
    async fn copy(&self, id: &RowId) -> Result<Option<Document>> {
        let found = self
            .rows
            .find_one(doc! { "_id": codec::id(id) })
            .selection_criteria(primary());
        self.within("copying a row", found.into_future()).await
    }

    /// Makes unpublished rows of `ids` due at once, for whoever pumps their lanes now. Majority.
    pub(crate) async fn release(&self, ids: &[RowId]) -> Result<()> {
        let ids: Vec<Bson> = ids.iter().map(codec::id).collect();
        let released = self
            .rows
            .update_many(
                doc! { "_id": { "$in": ids }, "published": false },
                // One that is due keeps the moment since when it has been.
                vec![
                    doc! { "$set": { "pending": { "$min": ["$pending", { "$toLong": "$$NOW" }] } } },
                ],
            )
            .hint(Hint::Keys(doc! { "_id": 1 }))
            .write_concern(WriteConcern::majority())
            .into_future();
        self.within("making rows due", released).await?;
        Ok(())
    }

    /// Waits for one request, and no longer than [`PATIENCE`].
    async fn within<T>(
        &self,
        attempted: &'static str,
        request: impl Future<Output = Result<T, mongodb::error::Error>>,
    ) -> Result<T> {
        within(&self.name(), attempted, request).await
    }

    fn failed(&self, attempted: &'static str, error: mongodb::error::Error) -> Error {
        Error::store(attempted, self.name(), error)
    }
}

/// Where what was just written is read, whatever the connection string prefers.
fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// A collection all of which is read there.
fn read_from_primary(database: &Database, name: &str) -> Collection<Document> {
    let options = CollectionOptions::builder().selection_criteria(primary());
    database.collection_with_options(name, options.build())
}

/// Waits for one request on a collection, and no longer than [`PATIENCE`].
async fn within<T>(
    collection: &str,
    attempted: &'static str,
    request: impl Future<Output = Result<T, mongodb::error::Error>>,
) -> Result<T> {
    let answer = tokio::time::timeout(PATIENCE, request).await;
    answer
        .unwrap_or_else(|_| Err(mongodb::error::Error::custom("no answer within 30 s")))
        .map_err(|error| Error::store(attempted, collection, error))
}
