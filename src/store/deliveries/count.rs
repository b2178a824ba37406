//! How many deliveries of a sink have failed.

use std::future::IntoFuture;

use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::options::{AggregateOptions, Hint};

use super::Deliveries;
use crate::{
    error::{Result, code},
    store::BAD_HINT,
};

/// The most that are counted.
const MOST: i64 = 100_000;

/// Failed deliveries of one sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) retrying: u64,
    pub(crate) dead: u64,
    pub(crate) abandoned: u64,
}

impl Deliveries {
    /// How many there are of each state, 100 000 in all at most: one query, by the index on the states.
    pub(crate) async fn count(&self, sink: &str) -> Result<Count> {
        let states = doc! { "$in": ["retrying", "dead", "abandoned"] };
        let pipeline = [
            doc! { "$match": { "state": states, "sink": sink } },
            doc! { "$limit": MOST },
            doc! { "$group": { "_id": "$state", "count": { "$sum": 1_i64 } } },
        ];
        let asked = |hint| {
            let options = AggregateOptions::builder().hint(hint).build();
            let counted = self.all.aggregate(pipeline.clone()).with_options(options);
            async {
                counted
                    .into_future()
                    .await?
                    .try_collect::<Vec<Document>>()
                    .await
            }
        };
        let counted = async {
            let by_state = Hint::Keys(doc! { "state": 1, "sink": 1, "deadAt": 1 });
            match asked(Some(by_state)).await {
                Err(error) if code(&error) == Some(BAD_HINT) => asked(None).await,
                counted => counted,
            }
        };
        let counted = self.within("counting failed deliveries", counted).await?;
        let of = |state: &str| {
            let of = counted
                .iter()
                .find(|of| of.get_str("_id").is_ok_and(|of| of == state));
            let count = of.and_then(|of| of.get_i64("count").ok());
            count.map_or(0, i64::unsigned_abs)
        };
        Ok(Count {
            retrying: of("retrying"),
            dead: of("dead"),
            abandoned: of("abandoned"),
        })
    }
}
