//! What failed on its way to a sink: one document for each row and route of which a delivery failed, and none for the rest.
//!
//! ```text
//!   failed ──► retrying ──► (taken) ──► gone
//!                │   ▲
//!                ▼   │ replayed
//!               dead, abandoned ──► (discarded) ──► gone
//! ```
//!
//! **Nothing is between two states.** A row owes a route under its name until the failure is written here; then it owes it
//! under another name ([`retrying`]), which no cycle reads, until it was taken, or is dead and its copy is here. Whatever a
//! crash leaves half done is found by `next`, which stays for as long as there is something to do.
//!
//! **Claims.** Whoever tries again sets `next` to the end of its lease, and its name: a worker that dies has its claim lapse, and
//! one that comes too late can still say that the message was taken, and no longer that it failed.

mod count;
#[cfg(feature = "sidecar")]
pub(crate) mod inspect;
mod orphans;
mod ready;
mod release;
#[cfg(feature = "sidecar")]
mod replay;

use std::{future::IntoFuture, time::Duration};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use futures::{TryStreamExt, future::try_join_all};
use mongodb::{
    Collection, IndexModel,
    options::{Hint, IndexOptions, WriteConcern},
};

use super::{Store, codec};
use crate::{error::Result, row::RowId, sinks::Next};

#[cfg(feature = "sidecar")]
pub(crate) use count::Count;
#[cfg(feature = "sidecar")]
pub(crate) use ready::Missing;

/// What a service with sinks does there, in the words of MongoDB's privileges.
pub(crate) const ACTIONS: &[&str] = &["find", "insert", "update", "remove"];

/// The most of our own text that is kept of a failure, in characters.
const LONGEST_ERROR: usize = 256;

/// How many of them are written at once: what fails by the thousand must not take all connections from what does not.
const AT_ONCE: usize = 4;

/// The failed deliveries of one outbox collection.
#[derive(Clone)]
pub(crate) struct Deliveries {
    rows: Store,
    all: Collection<Document>,
}

/// A delivery that failed, of one row by one route.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    row: RowId,
    /// `<sink>/<label>`.
    route: String,
    sink: String,
    error: String,
    next: Next,
    /// How many attempts that was.
    attempts: u32,
}

impl Failure {
    pub(crate) fn new(row: &RowId, route: &str, sink: &str, error: String, next: Next) -> Self {
        Self {
            row: row.clone(),
            route: route.to_owned(),
            sink: sink.to_owned(),
            error,
            next,
            attempts: 1,
        }
    }

    /// It has failed so many times since it was written down last.
    pub(crate) fn after(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Which row, by which route.
    pub(crate) fn key(&self) -> (RowId, String) {
        (self.row.clone(), self.route.clone())
    }

    /// Whether it is given up.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.next, Next::Dead(_))
    }

    /// Tells of one that is given up.
    pub(crate) fn say(&self, attempts: u32) {
        tracing::error!(
            row = %self.row,
            route = self.route,
            attempts,
            reason = self.error,
            "given up and kept as a dead delivery; mend its cause, then: toa-outbox dead replay {}",
            self.row
        );
    }
}

/// One that this process tries again, or has to finish.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) row: RowId,
    pub(crate) route: String,
    /// How often it has failed.
    pub(crate) attempts: u32,
    pub(crate) is_replay: bool,
    /// Whether it is dead, and only its row does not know.
    pub(crate) is_dead: bool,
    /// The row as it was when it was given up; where it still is in the outbox, none.
    pub(crate) copy: Option<RawDocumentBuf>,
    token: Bson,
}

/// What stands before a route, in a row that owes it at a time of its own. No name of a sink has a space.
pub(super) const RETRYING: &str = "retrying ";

/// How a row spells a route that is tried again at a time of its own.
pub(crate) fn retrying(route: &str) -> String {
    format!("{RETRYING}{route}")
}

impl Deliveries {
    pub(crate) fn new(rows: &Store) -> Self {
        Self {
            all: super::read_from_primary(&rows.database, &rows.deliveries()),
            rows: rows.clone(),
        }
    }

    /// `<database>.<collection>`, as errors and logs name it.
    pub(crate) fn name(&self) -> String {
        self.all.namespace().to_string()
    }

    /// The collection's name in its database.
    pub(crate) fn collection(&self) -> &str {
        self.all.name()
    }

    /// Creates the collection with its indexes where they are missing.
    pub(crate) async fn ensure(&self) -> Result<()> {
        let made = self.all.create_indexes(indexes()).into_future();
        self.within("creating the collection of failed deliveries", made)
            .await
            .map(drop)
    }

    /// Writes that these failed, once more or for the first time, before their rows say so. Majority; safe to repeat, but for the
    /// count of attempts.
    pub(crate) async fn failed(&self, failures: &[Failure]) -> Result<()> {
        for some in failures.chunks(AT_ONCE) {
            try_join_all(some.iter().map(|failure| self.note(failure))).await?;
        }
        Ok(())
    }

    async fn note(&self, failure: &Failure) -> Result<()> {
        let id = id(&failure.row, &failure.route);
        let mut set = doc! {
            "sink": &failure.sink,
            "first": { "$ifNull": ["$first", "$$NOW"] },
            "attempts": { "$add": [{ "$ifNull": ["$attempts", 0] }, failure.attempts] },
        };
        set.extend(self.fate(failure).await?);
        let update = vec![doc! { "$set": set }];
        let updated = self.all.update_one(id, update).upsert(true);
        let updated = updated.write_concern(WriteConcern::majority());
        self.within("noting a failed delivery", updated.into_future())
            .await
            .map(drop)
    }

    /// The same of one that was claimed; nothing where the claim has lapsed and another has it.
    pub(crate) async fn failed_again(&self, claimed: &Claimed, failure: &Failure) -> Result<bool> {
        let mut set = doc! { "attempts": { "$add": ["$attempts", 1] }, "claim": "$$REMOVE" };
        set.extend(self.fate(failure).await?);
        self.change(claimed, set).await
    }

    /// Leaves one that was claimed to whoever looks next: it was not tried.
    pub(crate) async fn unclaim(&self, claimed: &Claimed, after: Duration) -> Result<bool> {
        let set = doc! { "claim": "$$REMOVE", "next": later(after) };
        self.change(claimed, set).await
    }

    async fn change(&self, claimed: &Claimed, set: Document) -> Result<bool> {
        let mut mine = id(&claimed.row, &claimed.route);
        mine.insert("claim", &claimed.token);
        let updated = self.all.update_one(mine, vec![doc! { "$set": set }]);
        let updated = updated.write_concern(WriteConcern::majority());
        let updated = self
            .within("noting a failed delivery", updated.into_future())
            .await?;
        Ok(updated.matched_count > 0)
    }

    async fn fate(&self, failure: &Failure) -> Result<Document> {
        let error: String = failure
            .error
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(LONGEST_ERROR)
            .collect();
        let error = doc! { "$literal": error };
        Ok(match failure.next {
            Next::Again(after) => doc! {
                "state": "retrying",
                "error": error,
                "next": later(after),
            },
            Next::Dead(kept) => {
                let mut set = doc! {
                    "state": "dead",
                    "error": error,
                    "deadAt": "$$NOW",
                    // Until its row knows.
                    "next": later(Duration::ZERO),
                    "expires": kept.map_or("$$REMOVE".into(), |kept| Bson::from(later(kept))),
                };
                if let Some(copy) = self.rows.copy(&failure.row).await? {
                    // One that was kept already is of the time when it was owed.
                    set.insert("row", doc! { "$ifNull": ["$row", { "$literal": copy }] });
                }
                set
            }
        })
    }

    /// Takes up to `limit` of a sink's that are due, for as long as the `lease`.
    pub(crate) async fn claim(
        &self,
        sink: &str,
        limit: u32,
        lease: Duration,
    ) -> Result<Vec<Claimed>> {
        let token = Bson::from(bson::Uuid::new());
        let attempted = "claiming failed deliveries that are due";
        let is_due = doc! { "$lte": ["$next", "$$NOW"] };
        let due = self
            .all
            .find(doc! { "sink": sink, "next": { "$exists": true }, "$expr": is_due.clone() })
            .sort(doc! { "sink": 1, "next": 1 })
            .hint(Hint::Keys(doc! { "sink": 1, "next": 1 }))
            .projection(doc! { "_id": 1 })
            .limit(i64::from(limit));
        let due = async { due.await?.try_collect::<Vec<Document>>().await };
        let due = self.within(attempted, due).await?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<&Bson> = due.iter().filter_map(|due| due.get("_id")).collect();
        let ids = doc! { "$in": ids };
        let claim = vec![doc! { "$set": { "claim": &token, "next": later(lease) } }];
        let claimed = self
            .all
            .update_many(doc! { "_id": ids.clone(), "$expr": is_due }, claim)
            .write_concern(WriteConcern::majority());
        self.within(attempted, claimed.into_future()).await?;
        let all = self.all.clone_with_type::<RawDocumentBuf>();
        let mine = all.find(doc! { "_id": ids, "claim": &token });
        let mine = async { mine.await?.try_collect::<Vec<RawDocumentBuf>>().await };
        let mine = self.within(attempted, mine).await?;
        Ok(mine.iter().filter_map(|one| read(one, &token)).collect())
    }

    /// Forgets one that was taken, whoever has it claimed. Majority.
    pub(crate) async fn taken(&self, row: &RowId, route: &str) -> Result<()> {
        let deleted = self.all.delete_one(id(row, route));
        let deleted = deleted.write_concern(WriteConcern::majority());
        self.within("forgetting a failed delivery", deleted.into_future())
            .await
            .map(drop)
    }

    /// Its row knows that it is dead: there is no more to be done.
    pub(crate) async fn buried(&self, dead: &[(RowId, String)]) -> Result<()> {
        let ids: Vec<Bson> = dead.iter().map(|(row, route)| key(row, route)).collect();
        let updated = self.all.update_many(
            doc! { "_id": { "$in": ids }, "state": { "$in": ["dead", "abandoned"] } },
            doc! { "$unset": { "next": "", "claim": "" } },
        );
        let updated = updated.write_concern(WriteConcern::majority());
        self.within(
            "noting that a row owes a dead delivery no more",
            updated.into_future(),
        )
        .await
        .map(drop)
    }

    async fn within<T>(
        &self,
        attempted: &'static str,
        request: impl Future<Output = Result<T, mongodb::error::Error>>,
    ) -> Result<T> {
        super::within(&self.name(), attempted, request).await
    }
}

/// What is due is read by sink and time, and nothing else has the time. What is dead is counted and listed by its state, of
/// all sinks or of one, the oldest first. What has a retention of its own is reaped by the server.
fn indexes() -> [IndexModel; 3] {
    let due = IndexOptions::builder()
        .partial_filter_expression(doc! { "next": { "$exists": true } })
        .build();
    let reaped = IndexOptions::builder().expire_after(Duration::ZERO).build();
    let index = |keys, options| IndexModel::builder().keys(keys).options(options).build();
    [
        index(doc! { "sink": 1, "next": 1 }, due),
        index(
            doc! { "state": 1, "sink": 1, "deadAt": 1 },
            IndexOptions::default(),
        ),
        index(doc! { "expires": 1 }, reaped),
    ]
}

fn id(row: &RowId, route: &str) -> Document {
    doc! { "_id": key(row, route) }
}

fn key(row: &RowId, route: &str) -> Bson {
    doc! { "row": codec::id(row), "route": route }.into()
}

/// By the server's clock.
fn later(after: Duration) -> Document {
    let millis = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
    doc! { "$add": ["$$NOW", millis] }
}

fn read(one: &RawDocument, token: &Bson) -> Option<Claimed> {
    let id = one.get_document("_id").ok()?;
    Some(Claimed {
        row: codec::row_id(id.get("row").ok()??)?,
        route: id.get_str("route").ok()?.to_owned(),
        attempts: u32::try_from(codec::whole(one, "attempts")?).ok()?,
        is_replay: one.get_bool("replay").unwrap_or(false),
        is_dead: one.get_str("state").ok()? != "retrying",
        copy: one.get_document("row").ok().map(ToOwned::to_owned),
        token: token.clone(),
    })
}
