//! How much waits, and for how long.

use std::{future::IntoFuture, time::Duration};

use bson::{Bson, Document, doc};
use mongodb::options::Hint;

use super::Store;
use crate::error::Result;

/// The most rows that are counted: looking must not be a load when a lot waits.
const MOST: i32 = 100_000;

/// Unpublished rows, whoever has to publish them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// How many, [`MOST`] if there are more.
    pub(crate) rows: u64,
    /// For how long the oldest of those has been due, by the server's clock.
    pub(crate) age: Duration,
}

impl Store {
    /// Where there are more than it counts, the oldest of the first lanes stands for that of all: lanes are picked at
    /// random. Nothing is read but what is unpublished.
    pub(crate) async fn waiting(&self) -> Result<Waiting> {
        let waits = doc! { "$toLong": { "$subtract": [{ "$toLong": "$$NOW" }, "$oldest"] } };
        let pipeline = [
            doc! { "$match": { "published": false, "pending": { "$type": "number" } } },
            doc! { "$limit": MOST },
            doc! { "$group": { "_id": null, "rows": { "$sum": 1 }, "oldest": { "$min": "$pending" } } },
            doc! { "$project": { "rows": { "$toLong": "$rows" }, "age": waits } },
        ];
        let counted = async {
            let rows = self.rows.aggregate(pipeline);
            let hint = Hint::Keys(doc! { "lane": 1, "pending": 1 });
            let mut found = rows.hint(hint).into_future().await?;
            match found.advance().await? {
                true => found.deserialize_current().map(Some),
                false => Ok(None),
            }
        };
        let counted = self.within("counting what is unpublished", counted).await?;
        Ok(counted.as_ref().map(Waiting::of).unwrap_or_default())
    }
}

impl Waiting {
    fn of(counted: &Document) -> Self {
        let number = |name| match counted.get(name) {
            Some(Bson::Int64(number)) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        };
        Self {
            rows: number("rows"),
            // A row that is not due yet has not waited.
            age: Duration::from_millis(number("age")),
        }
    }
}
