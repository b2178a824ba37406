//! What an operator does with deliveries that are given up.

use std::future::IntoFuture;

use bson::{Bson, Document, doc};
use mongodb::options::WriteConcern;

use super::{Deliveries, inspect::Delivery};
use crate::error::Result;

impl Deliveries {
    /// Has a delivery that is given up tried again at once, as if it had never been, from the copy of its row. Whether it was:
    /// not if it has been taken, discarded or replayed since it was looked at, or has no copy. So of two who replay the same, one
    /// does. Majority.
    pub(crate) async fn replay(&self, delivery: &Delivery, approval: Option<&str>) -> Result<bool> {
        let mut set = doc! {
            "state": "retrying",
            "replay": true,
            "attempts": 0,
            "next": "$$NOW",
            "claim": "$$REMOVE",
            "deadAt": "$$REMOVE",
            "expires": "$$REMOVE",
        };
        if let Some(approval) = approval {
            set.insert("approval", doc! { "$literal": approval });
        }
        let mut given_up = as_it_was(delivery);
        given_up.insert("row", doc! { "$type": "object" });
        let updated = self.all.update_one(given_up, vec![doc! { "$set": set }]);
        let updated = updated.write_concern(WriteConcern::majority());
        let updated = self
            .within("replaying a dead delivery", updated.into_future())
            .await?;
        Ok(updated.modified_count > 0)
    }

    /// Deletes a delivery that is given up, and the copy of its row, once its row knows of that. Whether it was. Majority.
    pub(crate) async fn discard(&self, delivery: &Delivery) -> Result<bool> {
        let mut buried = as_it_was(delivery);
        buried.insert("next", doc! { "$exists": false });
        let deleted = self.all.delete_one(buried);
        let deleted = deleted.write_concern(WriteConcern::majority());
        let deleted = self
            .within("discarding a dead delivery", deleted.into_future())
            .await?;
        Ok(deleted.deleted_count > 0)
    }

    /// Deletes all of a sink's that are given up. How many those were. Majority.
    pub(crate) async fn discard_all(&self, sink: &str) -> Result<u64> {
        let given_up = doc! {
            "state": { "$in": ["dead", "abandoned"] },
            "sink": sink,
            "next": { "$exists": false },
        };
        let deleted = self.all.delete_many(given_up);
        let deleted = deleted.write_concern(WriteConcern::majority());
        let deleted = self
            .within("discarding dead deliveries", deleted.into_future())
            .await?;
        Ok(deleted.deleted_count)
    }
}

/// Given up, and at the same moment: one that has been replayed and given up again meanwhile is another.
fn as_it_was(delivery: &Delivery) -> Document {
    let dead_at = delivery.dead_at.map_or(Bson::Null, Bson::from);
    doc! {
        "_id": &delivery.key,
        "state": { "$in": ["dead", "abandoned"] },
        "deadAt": dead_at,
    }
}
