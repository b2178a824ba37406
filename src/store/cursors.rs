//! Where ordered sinks are: one document for each collection of rows and sink, beside the one that registers it.
//!
//! ```js
//! { _id: { cursor: { collection, sink } },
//!   epoch,     // counts owners: who takes over counts it up, and an earlier one saves nothing any more
//!   number,    // counts saves, for the same with requests that come late
//!   phase,     // 'pin' ──► 'backlog' ──► 'stream'; 'skip' instead of the first two where it begins now
//!   start,     // what was committed from here on the stream brings
//!   upper,     // the last id of the backlog
//!   row,       // the last that was delivered
//!   token,     // where the stream goes on after that; none: at the start
//!   failed,    // { row, times }: what is next has failed alone so often
//!   at }       // when it was saved last
//! ```

use std::future::IntoFuture;

use bson::{Bson, Document, Timestamp, doc};
use mongodb::{
    Collection,
    options::{ReturnDocument, WriteConcern},
};

use super::{
    Store, codec, registry,
    rights::{Right, Rights},
};
use crate::{error::Result, row::RowId};

/// The cursor of one sink over one collection.
#[derive(Clone)]
pub(crate) struct Cursors {
    pub(super) rows: Store,
    pub(super) all: Collection<Document>,
    pub(super) sink: String,
}

/// Where a sink is, as its owner knows it: nobody else changes it, and whoever does takes it from him.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    epoch: i64,
    number: i64,
    pub(crate) phase: Phase,
    pub(crate) start: Timestamp,
    /// The last id of the backlog, and the last of it that was delivered.
    pub(crate) upper: Option<Bson>,
    pub(crate) row: Option<Bson>,
    pub(crate) token: Option<Bson>,
    /// What is next, and how often it has failed alone.
    failed: Option<(Bson, u32)>,
}

impl Cursor {
    /// How often this row, which is next, has failed alone, whoever was the owner.
    pub(crate) fn failures(&self, row: &RowId) -> u32 {
        let failed = self.failed.as_ref();
        let same = failed.filter(|(failed, _)| *failed == codec::id(row));
        same.map_or(0, |(_, times)| *times)
    }
}

/// What it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing yet: what the outbox holds is being kept for it.
    Pin,
    /// What it is owed of that, by id.
    Backlog,
    /// Nothing yet: what the outbox holds is being taken off it.
    Skip,
    /// What is committed, in that order.
    Stream,
}

impl Phase {
    fn word(self) -> &'static str {
        match self {
            Self::Pin => "pin",
            Self::Backlog => "backlog",
            Self::Skip => "skip",
            Self::Stream => "stream",
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "pin" => Self::Pin,
            "skip" => Self::Skip,
            "stream" => Self::Stream,
            // Whatever it is: what is owed is delivered.
            _ => Self::Backlog,
        }
    }
}

/// Where a batch ends.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In the backlog.
    Row(RowId),
    /// In the stream, after this row; without one, after whatever the stream left out.
    Token(Option<RowId>, Bson),
}

impl Cursors {
    pub(crate) fn new(rows: &Store, sink: &str) -> Self {
        Self {
            all: rows.database.collection(registry::COLLECTION),
            rows: rows.clone(),
            sink: sink.to_owned(),
        }
    }

    pub(crate) fn sink(&self) -> &str {
        &self.sink
    }

    pub(super) fn id(&self) -> Document {
        id(self.rows.collection(), &self.sink)
    }

    /// Refuses a user who may not read the stream, before anything is kept for it.
    pub(crate) async fn allowed(&self) -> Result<()> {
        let wanted = Right::to_order(self.rows.collection());
        Rights::demand(&self.rows.database, "ordered sinks need", wanted).await
    }

    /// Makes it where it is missing, to begin at `start`; what phase it is in. Majority: what was committed before is there for
    /// whoever reads as a majority has it.
    pub(crate) async fn begin(&self, start: Timestamp, from_now: bool) -> Result<Phase> {
        let phase = match from_now {
            true => Phase::Skip,
            false => Phase::Pin,
        };
        let new = doc! {
            "epoch": 0_i64, "number": 0_i64, "phase": phase.word(), "start": start,
        };
        let once = || {
            self.all
                .find_one_and_update(self.id(), doc! { "$setOnInsert": new.clone() })
                .upsert(true)
                .return_document(ReturnDocument::After)
                .write_concern(WriteConcern::majority())
                .into_future()
        };
        let attempted = "making the cursor of an ordered sink";
        let made = match self.within(attempted, once()).await {
            // Two made it at once.
            Err(error) if error.is_duplicate() => self.within(attempted, once()).await?,
            made => made?,
        };
        Ok(made.map_or(phase, |made| read(&made).phase))
    }

    /// Makes this process its owner: from now on nobody who was saves anything any more. None where there is none.
    pub(crate) async fn take_over(&self) -> Result<Option<Cursor>> {
        let taken = self
            .all
            .find_one_and_update(self.id(), doc! { "$inc": { "epoch": 1_i64 } })
            .return_document(ReturnDocument::After)
            .write_concern(WriteConcern::majority())
            .into_future();
        let taken = self
            .within("taking over the cursor of an ordered sink", taken)
            .await?;
        Ok(taken.as_ref().map(read))
    }

    /// Moves it forward to a place; whether it still is this owner's. Majority; safe to repeat until the next.
    pub(crate) async fn save(&self, cursor: &mut Cursor, place: &Place) -> Result<bool> {
        let (row, token) = match place {
            Place::Row(row) => (Some(row), None),
            Place::Token(row, token) => (row.as_ref(), Some(token)),
        };
        cursor.row = row.map(codec::id).or(cursor.row.take());
        cursor.token = token.cloned().or(cursor.token.take());
        if row.is_some() {
            cursor.failed = None;
        }
        self.write(cursor).await
    }

    /// Notes that the row after its place has failed alone so often, for whoever is the owner then; whether it still is this
    /// owner's. Safe to repeat until the next.
    pub(crate) async fn failed(
        &self,
        cursor: &mut Cursor,
        row: &RowId,
        times: u32,
    ) -> Result<bool> {
        cursor.failed = Some((codec::id(row), times));
        self.write(cursor).await
    }

    /// What is committed from `start` on the stream brings, after what is owed of ids up to `upper`.
    pub(crate) async fn restart(
        &self,
        cursor: &mut Cursor,
        start: Timestamp,
        upper: Option<Bson>,
    ) -> Result<bool> {
        (cursor.phase, cursor.start, cursor.upper) = (Phase::Backlog, start, upper);
        (cursor.row, cursor.token, cursor.failed) = (None, None, None);
        self.write(cursor).await
    }

    /// From now on the stream brings what it is given.
    pub(crate) async fn stream(&self, cursor: &mut Cursor) -> Result<bool> {
        cursor.phase = Phase::Stream;
        self.write(cursor).await
    }

    async fn write(&self, cursor: &mut Cursor) -> Result<bool> {
        cursor.number += 1;
        let mut mine = self.id();
        mine.extend(doc! { "epoch": cursor.epoch, "number": { "$lt": cursor.number } });
        let failed = cursor.failed.clone();
        let failed =
            failed.map(|(row, times)| doc! { "row": row, "times": i64::from(times) }.into());
        let update = vec![doc! { "$set": {
            "number": cursor.number,
            "phase": cursor.phase.word(),
            "start": cursor.start,
            "upper": cursor.upper.clone().map_or("$$REMOVE".into(), literal),
            "row": cursor.row.clone().map_or("$$REMOVE".into(), literal),
            "token": cursor.token.clone().map_or("$$REMOVE".into(), literal),
            "failed": failed.map_or("$$REMOVE".into(), literal),
            "at": "$$NOW",
        } }];
        let saved = self
            .all
            .update_one(mine, update)
            .write_concern(WriteConcern::majority())
            .into_future();
        let saved = self
            .within("saving the cursor of an ordered sink", saved)
            .await?;
        Ok(saved.matched_count > 0)
    }

    pub(super) async fn within<T>(
        &self,
        attempted: &'static str,
        request: impl Future<Output = Result<T, mongodb::error::Error>>,
    ) -> Result<T> {
        super::within(&self.all.namespace().to_string(), attempted, request).await
    }
}

fn literal(value: Bson) -> Bson {
    doc! { "$literal": value }.into()
}

pub(super) fn id(collection: &str, sink: &str) -> Document {
    doc! { "_id": { "cursor": { "collection": collection, "sink": sink } } }
}

fn read(document: &Document) -> Cursor {
    let number = |field| document.get_i64(field).unwrap_or(0);
    Cursor {
        epoch: number("epoch"),
        number: number("number"),
        phase: Phase::of(document.get_str("phase").unwrap_or_default()),
        start: document.get_timestamp("start").unwrap_or(Timestamp {
            time: 0,
            increment: 0,
        }),
        upper: document.get("upper").cloned(),
        row: document.get("row").cloned(),
        token: document.get("token").cloned(),
        failed: failed(document),
    }
}

fn failed(document: &Document) -> Option<(Bson, u32)> {
    let failed = document.get_document("failed").ok()?;
    let times = failed.get_i64("times").ok()?;
    Some((failed.get("row")?.clone(), u32::try_from(times).ok()?))
}
