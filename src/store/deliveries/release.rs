//! Takes a route that is served no more off every row that owes it.

use std::future::IntoFuture;

use bson::{Bson, Document, doc};
use futures::{TryStreamExt, future::try_join_all};
use mongodb::options::WriteConcern;

use super::{AT_ONCE, Deliveries, id, retrying};
use crate::{
    error::Result,
    row::RowId,
    store::{Marking, codec, primary, registry::Registry},
};

/// How many rows are released by one update.
const BATCH: i64 = 1000;

impl Deliveries {
    /// Releases the rows that owe `route` and say so, in batches, and forgets what was to be tried again; what is dead stays.
    /// Where it is *abandoned* instead, a copy of each row is kept first, to be replayed. How many rows those were; `tell` is told of
    /// each batch.
    ///
    /// Ends early where the route is served again meanwhile: what came for it since then is owed.
    pub(crate) async fn release(
        &self,
        sink: &str,
        route: &str,
        is_abandoned: bool,
        tell: impl Fn(u64),
    ) -> Result<u64> {
        let later = retrying(route);
        let marking = Marking {
            done: &[route, &later],
            ..Marking::default()
        };
        let registry = Registry::new(&self.rows.database);
        let mut released = 0;
        loop {
            let rows = self.owing(&marking).await?;
            // After the rows were read, so that whatever was is from before.
            if registry.owes(self.rows.collection(), sink, route).await? {
                return Ok(released);
            }
            if rows.is_empty() {
                break;
            }
            if is_abandoned {
                self.abandon(&rows, sink, route).await?;
            }
            let some = self.rows.mark(&rows, &marking).await?;
            released += some;
            tell(some);
        }
        if !is_abandoned {
            let tried = doc! { "sink": sink, "state": "retrying", "_id.route": route };
            let deleted = self.all.delete_many(tried);
            let deleted = deleted.write_concern(WriteConcern::majority());
            self.within("forgetting failed deliveries", deleted.into_future())
                .await?;
        }
        Ok(released)
    }

    async fn owing(&self, marking: &Marking<'_>) -> Result<Vec<RowId>> {
        let owing = doc! {
            "published": false,
            "partial": true,
            "outstanding": { "$in": marking.done.to_vec() },
        };
        let rows = &self.rows.rows;
        let found = rows
            .find(owing)
            .projection(doc! { "_id": 1 })
            .selection_criteria(primary())
            .limit(BATCH);
        let found = async { found.await?.try_collect::<Vec<Document>>().await };
        let found = self.rows.within("reading what owes a route", found).await?;
        let id = |row: &Document| codec::id_of(row.get("_id")?);
        Ok(found.iter().filter_map(id).collect())
    }

    async fn abandon(&self, rows: &[RowId], sink: &str, route: &str) -> Result<()> {
        for some in rows.chunks(AT_ONCE) {
            try_join_all(some.iter().map(|row| self.abandon_one(row, sink, route))).await?;
        }
        Ok(())
    }

    async fn abandon_one(&self, row: &RowId, sink: &str, route: &str) -> Result<()> {
        let copy = self.rows.copy(row).await?.map_or(Bson::Null, Bson::from);
        let set = doc! {
            "sink": sink,
            "state": "abandoned",
            "first": { "$ifNull": ["$first", "$$NOW"] },
            "attempts": { "$ifNull": ["$attempts", 0] },
            "error": { "$ifNull": ["$error", "no replica has had the consumer for the grace"] },
            "deadAt": "$$NOW",
            "next": "$$REMOVE",
            "claim": "$$REMOVE",
            "row": { "$ifNull": ["$row", { "$literal": copy }] },
        };
        let updated = self
            .all
            .update_one(id(row, route), vec![doc! { "$set": set }])
            .upsert(true)
            .write_concern(WriteConcern::majority());
        self.within("abandoning a delivery", updated.into_future())
            .await
            .map(drop)
    }
}
