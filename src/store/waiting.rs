//! How much waits, and for how long.

use std::{future::IntoFuture, time::Duration};

use bson::{Document, RawDocumentBuf, doc};
use futures::TryStreamExt;
use mongodb::{
    error::Error as DriverError,
    options::{AggregateOptions, Hint},
};

use super::{BAD_HINT, Store, ensure};
use crate::{
    error::{Result, code},
    lane::LANES,
};

/// The most rows that are counted: looking must not be a load when a lot waits.
const MOST: i32 = 100_000;

/// How long the oldest row is looked for where there are more than are counted. Right after a drain the index is full of
/// rows that are gone, and each of them is passed over.
const LONGEST: Duration = Duration::from_secs(1);

/// Unpublished rows, whoever has to publish them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// How many, [`MOST`] if there are more.
    pub(crate) rows: u64,
    /// For how long the oldest has been due, by the server's clock, in milliseconds; negative: it is not due yet.
    age: i64,
}

impl Store {
    /// Nothing is read but what is unpublished.
    pub(crate) async fn waiting(&self) -> Result<Waiting> {
        let asked = async {
            let counted = self.counted(&[limit(MOST), oldest()], None).await?;
            let counted = counted.first().map(Waiting::of).unwrap_or_default();
            match counted.rows < MOST.unsigned_abs().into() {
                true => Ok(counted),
                false => Ok(self.longest(counted).await),
            }
        };
        self.within("counting what is unpublished", asked).await
    }

    /// With the age of the oldest of all; where that takes too long, the oldest of the lanes that were counted stands for
    /// it, since lanes are picked at random.
    async fn longest(&self, mut counted: Waiting) -> Waiting {
        for part in parts() {
            let mut some =
                doc! { "lane": { "$in": lanes() }, "pending": { "$gte": f64::NEG_INFINITY } };
            some.extend(part);
            let first = [
                doc! { "$match": some },
                doc! { "$sort": { "pending": 1 } },
                limit(1),
                oldest(),
            ];
            let found = self.counted(&first, Some(LONGEST)).await;
            let found = found.ok().and_then(|found| found.first().map(Waiting::of));
            counted.age = found.map_or(counted.age, |first| first.age.max(counted.age));
        }
        counted
    }

    /// The answer of a pipeline over all unpublished rows: by the index that pumps read by or, where that is missing,
    /// slower.
    pub(super) async fn counted(
        &self,
        pipeline: &[Document],
        longest: Option<Duration>,
    ) -> Result<Vec<RawDocumentBuf>, DriverError> {
        let hint = Hint::Keys(ensure::due_keys());
        match self.by(Some(hint), pipeline, longest).await {
            Err(error) if code(&error) == Some(BAD_HINT) => self.by(None, pipeline, longest).await,
            answer => answer,
        }
    }

    async fn by(
        &self,
        hint: Option<Hint>,
        pipeline: &[Document],
        longest: Option<Duration>,
    ) -> Result<Vec<RawDocumentBuf>, DriverError> {
        let mut options = AggregateOptions::default();
        options.hint = hint;
        options.max_time = longest;
        let unpublished = doc! { "$match": { "published": false } };
        let stages = [unpublished].into_iter().chain(pipeline.iter().cloned());
        let rows = self.rows.aggregate(stages).with_options(options);
        let rows = rows.with_type::<RawDocumentBuf>();
        rows.into_future().await?.try_collect().await
    }
}

/// The rows of which nothing is done and those of which something is, each of which the index has in order.
pub(super) fn parts() -> [Document; 2] {
    [
        doc! { "partial": { "$exists": false } },
        doc! { "partial": true },
    ]
}

/// All of them, each by name, so that the index gives the order within each as well.
pub(super) fn lanes() -> Vec<i32> {
    (0..i32::from(LANES)).collect()
}

fn limit(rows: i32) -> Document {
    doc! { "$limit": rows }
}

/// How many, and by how much the least `pending` of them that is a number has passed.
fn oldest() -> Document {
    let now = doc! { "$toLong": "$$NOW" };
    // A number of any type, and none that makes the whole question fail.
    let number = doc! { "$convert": { "input": "$pending", "to": "double", "onError": null, "onNull": null } };
    let number = doc! { "$cond": [{ "$isNumber": "$pending" }, number, null] };
    doc! { "$group": {
        "_id": null,
        "rows": { "$sum": 1_i64 },
        "age": { "$max": { "$subtract": [now, number] } },
    } }
}

impl Waiting {
    /// Some time after it was counted, and nobody could count again: what waited then still does.
    pub(crate) fn age(&self, after: Duration) -> Duration {
        let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
        let age = match self.rows {
            0 => 0,
            _ => self.age.saturating_add(after),
        };
        // A row that is not due yet has not waited.
        Duration::from_millis(age.try_into().unwrap_or(0))
    }

    fn of(counted: &RawDocumentBuf) -> Self {
        let rows = counted.get_i64("rows").unwrap_or_default();
        Self {
            rows: rows.try_into().unwrap_or(0),
            age: counted.get_f64("age").unwrap_or_default() as i64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_goes_on_while_nobody_can_look() {
        let waiting = |rows, age| Waiting { rows, age };
        let (none, some) = (Duration::ZERO, Duration::from_secs(60));
        assert_eq!(waiting(3, 2000).age(none), Duration::from_secs(2));
        assert_eq!(waiting(3, 2000).age(some), Duration::from_secs(62));
        assert_eq!(waiting(3, -2000).age(none), none, "not due yet");
        assert_eq!(waiting(3, -2000).age(some), Duration::from_secs(58));
        assert_eq!(waiting(0, 0).age(some), none, "nothing waits");
    }
}
