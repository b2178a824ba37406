//! How much an outbox holds that has yet to leave, or could not.

use std::{future::IntoFuture, time::Duration};

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use futures::TryStreamExt;
use mongodb::{
    Collection,
    error::Error as DriverError,
    options::{AggregateOptions, Hint, ReadPreference, SelectionCriteria},
};

use super::{BAD_HINT, Store, ensure};
use crate::{
    ceiling::Ceiling,
    error::{Result, code},
};

/// How long the server may count.
const LONGEST: Duration = Duration::from_secs(2);

/// How many rows are measured for the average.
const SAMPLE: u64 = 1000;

/// What is counted: rows of one collection, by an index.
struct Part<'a> {
    rows: &'a Collection<Document>,
    filter: Document,
    hint: Option<Hint>,
}

/// Rows and, where they were measured, their bytes.
#[derive(Clone, Copy)]
struct Sum {
    rows: u64,
    bytes: u64,
}

impl Store {
    /// The collection of what was given up on, beside that of the rows.
    pub(crate) fn deliveries(&self) -> String {
        format!("{}_deliveries", self.rows.name())
    }

    /// Unpublished rows, and copies of those that were given up on, counted up to the ceiling and not beyond.
    pub(crate) async fn held(&self, ceiling: Ceiling) -> Result<u64> {
        let deliveries = self.database.collection(&self.deliveries());
        let waiting = Part {
            rows: &self.rows,
            filter: doc! { "published": false },
            hint: Some(Hint::Keys(ensure::due_keys())),
        };
        let given_up = Part {
            rows: &deliveries,
            filter: given_up(),
            hint: None,
        };
        let counted = async {
            let parked = given_up.held(ceiling, 0).await?;
            Ok(parked.saturating_add(waiting.held(ceiling, parked).await?))
        };
        self.within("counting the backlog", counted).await
    }
}

/// Those of which a copy is kept.
fn given_up() -> Document {
    doc! { "state": { "$in": ["dead", "abandoned"] } }
}

impl Part<'_> {
    /// In the unit of the ceiling, of which so much is held by others.
    async fn held(&self, ceiling: Ceiling, others: u64) -> Result<u64, DriverError> {
        let most = ceiling.most().saturating_sub(others);
        match ceiling {
            _ if most == 0 => Ok(0),
            Ceiling::Rows(_) => Ok(self.sum(most, false).await?.rows),
            Ceiling::Bytes(_) => self.bytes(most).await,
        }
    }

    /// Exactly, of no more than [`SAMPLE`] rows; otherwise by their average.
    async fn bytes(&self, most: u64) -> Result<u64, DriverError> {
        let sample = self.sum(SAMPLE, true).await?;
        if sample.rows < SAMPLE || sample.bytes >= most {
            return Ok(sample.bytes);
        }
        let each = (sample.bytes / sample.rows).max(1);
        let counted = self.sum(most / each + 1, false).await?;
        Ok(counted.rows.saturating_mul(each))
    }

    async fn sum(&self, limit: u64, is_measured: bool) -> Result<Sum, DriverError> {
        let bytes = match is_measured {
            true => doc! { "$sum": { "$bsonSize": "$$ROOT" } },
            false => doc! { "$sum": 0 },
        };
        let pipeline = [
            doc! { "$match": self.filter.clone() },
            doc! { "$limit": i64::try_from(limit).unwrap_or(i64::MAX) },
            doc! { "$group": { "_id": null, "rows": { "$sum": 1 }, "bytes": bytes } },
        ];
        match self.ask(&pipeline, self.hint.clone()).await {
            Err(error) if code(&error) == Some(BAD_HINT) => self.ask(&pipeline, None).await,
            answer => answer,
        }
    }

    /// Of the primary, whatever the connection string prefers: another one lags behind.
    async fn ask(&self, pipeline: &[Document], hint: Option<Hint>) -> Result<Sum, DriverError> {
        let mut options = AggregateOptions::default();
        options.hint = hint;
        options.max_time = Some(LONGEST);
        options.selection_criteria =
            Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let asked = self
            .rows
            .aggregate(pipeline.iter().cloned())
            .with_options(options)
            .with_type::<RawDocumentBuf>();
        let answer: Vec<RawDocumentBuf> = asked.into_future().await?.try_collect().await?;
        let number = |answer: &RawDocument, field| {
            super::codec::whole(answer, field).and_then(|number| u64::try_from(number).ok())
        };
        let sum = answer.first().map(|answer| Sum {
            rows: number(answer, "rows").unwrap_or(0),
            bytes: number(answer, "bytes").unwrap_or(0),
        });
        Ok(sum.unwrap_or(Sum { rows: 0, bytes: 0 }))
    }
}
