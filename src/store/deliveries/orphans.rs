//! Rows that wait for a delivery nobody knows of any more: deleted by hand, or missing in a copy that was restored.

use std::{collections::HashSet, future::IntoFuture};

use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::options::{Hint, WriteConcern};

use super::{Deliveries, key, retrying};
use crate::{
    error::Result,
    store::{codec, primary},
};

/// How many rows are looked at by one request.
const AT_ONCE: usize = 1000;

impl Deliveries {
    /// Has rows owe `route` by its own name again that owe it at a time of its own which nobody knows. Safe at any time: a delivery is
    /// known before its row says so, and forgotten after. How many rows those were.
    pub(crate) async fn adopt(&self, route: &str) -> Result<u64> {
        let later = retrying(route);
        let owing = doc! { "published": false, "partial": true, "outstanding": &later };
        let attempted = "reading what waits for another attempt";
        let rows = &self.rows.rows;
        let found = rows
            .find(owing)
            .projection(doc! { "_id": 1 })
            .selection_criteria(primary());
        let mut waiting = self
            .within(attempted, found.into_future())
            .await?
            .try_chunks(AT_ONCE);
        let mut adopted = 0;
        loop {
            let some = async { waiting.try_next().await.map_err(|cut| cut.1) };
            let Some(some) = self.within(attempted, some).await? else {
                return Ok(adopted);
            };
            let orphans = self.unknown(&some, route).await?;
            if !orphans.is_empty() {
                adopted += self.spell(orphans, route, &later).await?;
            }
        }
    }

    /// The ids of those rows of which no delivery is known.
    async fn unknown(&self, rows: &[Document], route: &str) -> Result<Vec<Bson>> {
        let ids: Vec<&Bson> = rows.iter().filter_map(|row| row.get("_id")).collect();
        let keys: Vec<Bson> = ids
            .iter()
            .filter_map(|id| Some(key(&codec::id_of(id)?, route)))
            .collect();
        let known = self
            .all
            .find(doc! { "_id": { "$in": keys } })
            .projection(doc! { "_id": 1 });
        let known = async { known.await?.try_collect::<Vec<Document>>().await };
        let known = self.within("looking for failed deliveries", known).await?;
        let row = |one: &Document| {
            one.get_document("_id")
                .ok()?
                .get("row")
                .map(Bson::to_string)
        };
        let known: HashSet<String> = known.iter().filter_map(row).collect();
        let is_unknown = |id: &&Bson| !known.contains(&id.to_string());
        Ok(ids.into_iter().filter(is_unknown).cloned().collect())
    }

    /// Where it is still spelled so: who took it meanwhile has marked the row.
    async fn spell(&self, ids: Vec<Bson>, route: &str, later: &str) -> Result<u64> {
        let rest = doc! { "$setDifference": ["$outstanding", [later]] };
        let update = vec![doc! { "$set": { "outstanding": { "$setUnion": [rest, [route]] } } }];
        let updated = self
            .rows
            .rows
            .update_many(
                doc! { "_id": { "$in": ids }, "published": false, "outstanding": later },
                update,
            )
            .hint(Hint::Keys(doc! { "_id": 1 }))
            .write_concern(WriteConcern::majority());
        let updated = self.within("having rows owe a route again", updated.into_future());
        Ok(updated.await?.modified_count)
    }
}
