//! What an outbox holds when a sink begins, or has lost its place: kept for it, and read in the order of ids.

use std::future::IntoFuture;

use bson::{Bson, Document, doc};
use futures::{StreamExt, TryStreamExt};
use mongodb::{
    ClientSession, Cursor as Rows,
    options::{Hint, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};

use super::cursors::{self, Cursors, Phase};
use crate::error::Result;

/// How many rows are kept by one transaction: it is short, since who marks one of them meanwhile has to wait.
const AT_ONCE: usize = 1000;

const READING: &str = "reading what an outbox holds";
const KEEPING: &str = "keeping rows for an ordered sink";

impl Cursors {
    /// Keeps every row that the outbox holds for the sink: whatever its state is, it owes it these `routes` from now on, so that the
    /// server does not reap it. A row of which nothing is done says what `all` of its routes are: nobody can publish it then
    /// who does not know the sink yet.
    ///
    /// In transactions with the cursor: once another has finished, and the sink may have taken some of it, nothing more is kept.
    pub(crate) async fn pin(&self, routes: &[&str], all: &[&str]) -> Result<()> {
        // What the server reaps first comes first; then whatever there is, since rows are published meanwhile.
        let published = || (doc! { "published": true }, doc! { "publishedAt": 1 });
        let owes = doc! { "outstanding": { "$all": routes } };
        let every = (doc! { "$nor": [owes] }, doc! { "_id": 1 });
        self.renew().await?;
        for which in [published(), every] {
            if !self.pin_all(which, routes, all).await? {
                return Ok(());
            }
        }
        self.pinned().await
    }

    /// Has what is published stay for its whole retention once more. It is quick: to keep it takes much longer, and the server
    /// would reap some before its turn.
    async fn renew(&self) -> Result<()> {
        // By the time it is asked: what is renewed is not found again.
        let before = doc! { "$lt": ["$publishedAt", "$$NOW"] };
        let before = doc! { "published": true, "$expr": before };
        let mut ids = self.ids((before, doc! { "publishedAt": 1 })).await?;
        loop {
            let some = self.some(&mut ids).await?;
            if some.is_empty() {
                return Ok(());
            }
            let which = doc! { "_id": { "$in": some }, "published": true };
            let renewed = self
                .rows
                .rows
                .update_many(which, vec![doc! { "$set": { "publishedAt": "$$NOW" } }]);
            self.within(KEEPING, renewed.into_future()).await?;
        }
    }

    /// Whether all of it was still to be done.
    async fn pin_all(
        &self,
        which: (Document, Document),
        routes: &[&str],
        all: &[&str],
    ) -> Result<bool> {
        let mut ids = self.ids(which).await?;
        loop {
            let some = self.some(&mut ids).await?;
            if some.is_empty() {
                return Ok(true);
            }
            if !self.pin_these(&some, routes, all).await? {
                return Ok(false);
            }
        }
    }

    /// The next of them, up to as many as are changed at once; none: that was all.
    async fn some(&self, ids: &mut Rows<Document>) -> Result<Vec<Bson>> {
        let some = ids
            .try_filter_map(async |mut row| Ok(row.remove("_id")))
            .take(AT_ONCE)
            .try_collect();
        self.within(READING, some).await
    }

    async fn ids(&self, (which, order): (Document, Document)) -> Result<Rows<Document>> {
        let found = self
            .rows
            .rows
            .find(which)
            .projection(doc! { "_id": 1 })
            .sort(order)
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .into_future();
        self.within(READING, found).await
    }

    /// Whether it was still to be done.
    async fn pin_these(&self, ids: &[Bson], routes: &[&str], all: &[&str]) -> Result<bool> {
        let mut waits = super::marking::waits();
        loop {
            match self.pin_once(ids, routes, all).await {
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(waits.next().unwrap_or_default()).await;
                }
                pinned => return pinned,
            }
        }
    }

    async fn pin_once(&self, ids: &[Bson], routes: &[&str], all: &[&str]) -> Result<bool> {
        let client = self.rows.database.client();
        let started = client.start_session().into_future();
        let mut session = self.within(KEEPING, started).await?;
        let pinning = async {
            let started = session.start_transaction();
            started.write_concern(WriteConcern::majority()).await?;
            let is_open = self.pin_in(&mut session, ids, routes, all).await?;
            match is_open {
                true => session.commit_transaction().await?,
                false => session.abort_transaction().await?,
            }
            Ok(is_open)
        };
        self.within(KEEPING, pinning).await
    }

    async fn pin_in(
        &self,
        session: &mut ClientSession,
        ids: &[Bson],
        routes: &[&str],
        all: &[&str],
    ) -> Result<bool, mongodb::error::Error> {
        let mut open = self.id();
        open.insert("phase", "pin");
        // What two transactions change, only one of them does.
        let held = self
            .all
            .update_one(open, doc! { "$inc": { "pins": 1_i64 } });
        if held.session(&mut *session).await?.matched_count == 0 {
            return Ok(false);
        }
        let before = doc! { "$cond": [
            { "$eq": ["$published", true] },
            [],
            { "$ifNull": ["$outstanding", all] },
        ] };
        let pin = vec![
            doc! { "$set": { "outstanding": { "$setUnion": [before, routes] } } },
            doc! { "$set": { "published": false, "partial": true } },
            doc! { "$unset": "publishedAt" },
        ];
        let pinned = self
            .rows
            .rows
            .update_many(doc! { "_id": { "$in": ids } }, pin);
        pinned.session(&mut *session).await?;
        Ok(true)
    }

    async fn pinned(&self) -> Result<()> {
        let upper = self.upper().await?;
        let mut open = self.id();
        open.insert("phase", "pin");
        let over = match upper {
            Some(upper) => doc! { "phase": "backlog", "upper": upper },
            None => doc! { "phase": "stream" },
        };
        let over = self.all.update_one(open, doc! { "$set": over });
        let over = over.write_concern(WriteConcern::majority());
        self.within(KEEPING, over.into_future()).await.map(drop)
    }

    /// The last id there is, of any row.
    pub(crate) async fn upper(&self) -> Result<Option<Bson>> {
        let last = self
            .rows
            .rows
            .find_one(doc! {})
            .sort(doc! { "_id": -1 })
            .projection(doc! { "_id": 1 })
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .into_future();
        let last = self.within("reading the last row", last).await?;
        Ok(last.and_then(|mut last| last.remove("_id")))
    }

    /// The rows that owe one of these routes, by id, after the last that was delivered. Ids of different types are
    /// compared too, which a filter alone would not do.
    pub(crate) async fn backlog(
        &self,
        cursor: &cursors::Cursor,
        routes: &[&str],
        batch: u32,
    ) -> Result<Rows<Document>> {
        let mut owing = doc! {
            "published": false,
            "$or": [
                { "outstanding": { "$in": routes.to_vec() } },
                { "outstanding": { "$exists": false } },
            ],
        };
        if let Some(upper) = &cursor.upper {
            owing.insert("$expr", doc! { "$lte": ["$_id", { "$literal": upper }] });
        }
        let mut found = self
            .rows
            .rows
            .find(owing)
            .sort(doc! { "_id": 1 })
            .hint(Hint::Keys(doc! { "_id": 1 }))
            .batch_size(batch)
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        if let Some(row) = &cursor.row
            && cursor.phase != Phase::Stream
        {
            found = found.min(doc! { "_id": row });
        }
        self.within("reading what an ordered sink is owed", found.into_future())
            .await
    }

    /// The next document of that; whether there is one.
    pub(crate) async fn advance(&self, rows: &mut Rows<Document>) -> Result<bool> {
        self.within("reading on what an ordered sink is owed", rows.advance())
            .await
    }
}
