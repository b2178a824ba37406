//! What one sink is owed, and which of it has waited longest: that row, and what came with it, is kept until the sink has it.

use std::{future::IntoFuture, time::Duration};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use futures::TryStreamExt;
use mongodb::options::{AggregateOptions, FindOneOptions, Hint};

use super::{BAD_HINT, Store, codec, deliveries::retrying, ensure, primary, waiting::lanes};
use crate::error::{Result, TOO_LONG, code};

/// The most rows that are counted of a kind: looking must not be a load when a lot is owed.
pub(crate) const MOST: u64 = 10_000;

/// How long the oldest is looked for where there are more than are counted.
const LONGEST: Duration = Duration::from_secs(1);

/// What a sink is owed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Debt {
    /// How many rows, those included that nobody has taken anything of; at least so many where there are [`MOST`] of a kind.
    pub(crate) rows: u64,
    pub(crate) oldest: Option<Oldest>,
}

/// The row that has been owed for longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Oldest {
    pub(crate) row: String,
    /// When it was due first, in milliseconds since the epoch.
    pub(crate) since: i64,
    /// For how long that is by the server's clock, in milliseconds.
    pub(crate) age: i64,
}

/// Rows that owe something, by the index that has them.
struct Part {
    filter: Document,
    keys: Document,
}

impl Store {
    /// What these routes are owed. One bounded query for each kind of rows, by an index.
    pub(crate) async fn owed(&self, routes: &[&str]) -> Result<Debt> {
        let asked = async {
            let mut debt = Debt::default();
            for part in [whole(), partly(routes)] {
                let (rows, oldest) = self.some(&part).await?;
                debt.rows += rows;
                debt.add(oldest);
                if rows >= MOST {
                    for oldest in self.oldest(&part, routes).await? {
                        debt.add(Some(oldest));
                    }
                }
            }
            Ok(debt)
        };
        self.within("counting what a sink is owed", asked).await
    }

    /// The bytes of the rows that owe these routes, at least those of the first [`MOST`] of a kind.
    pub(crate) async fn owed_bytes(&self, routes: &[&str]) -> Result<u64> {
        let sum =
            doc! { "$group": { "_id": null, "bytes": { "$sum": { "$bsonSize": "$$ROOT" } } } };
        let asked = async {
            let mut bytes = 0;
            for part in [whole(), partly(routes)] {
                let found = self.first(&part, &[limit(), sum.clone()]).await?;
                bytes += found.map_or(0, |found| number(&found, "bytes").unsigned_abs());
            }
            Ok(bytes)
        };
        self.within("measuring what a sink is owed", asked).await
    }

    /// Some of a part, at most [`MOST`], and the oldest of those.
    async fn some(&self, part: &Part) -> mongodb::error::Result<(u64, Option<Oldest>)> {
        let counted = doc! { "$group": {
            "_id": null,
            "rows": { "$sum": 1_i64 },
            "first": { "$min": { "pending": "$pending", "id": "$_id" } },
            "now": { "$first": { "$toLong": "$$NOW" } },
        } };
        let found = self.first(part, &[limit(), counted]).await?;
        let Some(found) = found else {
            return Ok((0, None));
        };
        let rows = number(&found, "rows").unsigned_abs();
        let first = found.get_document("first").ok();
        let oldest = first.and_then(|first| oldest(first, "id", number(&found, "now")));
        Ok((rows, oldest))
    }

    async fn first(
        &self,
        part: &Part,
        stages: &[Document],
    ) -> mongodb::error::Result<Option<RawDocumentBuf>> {
        let matched = doc! { "$match": part.filter.clone() };
        let pipeline: Vec<Document> = [matched]
            .into_iter()
            .chain(stages.iter().cloned())
            .collect();
        let asked = |hint| {
            let options = AggregateOptions::builder()
                .hint(hint)
                .selection_criteria(primary())
                .build();
            let rows = self.rows.aggregate(pipeline.clone());
            let rows = rows.with_options(options).with_type::<RawDocumentBuf>();
            async { rows.into_future().await?.try_next().await }
        };
        match asked(Some(Hint::Keys(part.keys.clone()))).await {
            Err(error) if code(&error) == Some(BAD_HINT) => asked(None).await,
            found => found,
        }
    }

    /// The oldest of a part of which there is more than was counted: of each route, by the order that the index has.
    async fn oldest(&self, part: &Part, routes: &[&str]) -> mongodb::error::Result<Vec<Oldest>> {
        let mut filters = vec![part.filter.clone()];
        if part.filter.contains_key("outstanding") {
            filters = spelled(routes)
                .into_iter()
                .map(|route| {
                    let mut filter = part.filter.clone();
                    filter.insert("outstanding", route);
                    filter
                })
                .collect();
        }
        let now = bson::DateTime::now().timestamp_millis();
        let mut found = Vec::new();
        for mut filter in filters {
            // Each lane by name, so that the index gives the order within each.
            filter.insert("lane", doc! { "$in": lanes() });
            let mut options = FindOneOptions::default();
            options.hint = Some(Hint::Keys(part.keys.clone()));
            options.sort = Some(doc! { "pending": 1 });
            options.projection = Some(doc! { "pending": 1 });
            options.max_time = Some(LONGEST);
            options.selection_criteria = Some(primary());
            let rows = self.rows.clone_with_type::<RawDocumentBuf>();
            match rows.find_one(filter).with_options(options).await {
                Ok(row) => found.extend(row.and_then(|row| oldest(&row, "_id", now))),
                // Those that were counted stand for all.
                Err(error) if matches!(code(&error), Some(TOO_LONG | BAD_HINT)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Those of which nobody has taken anything: each owes everything.
fn whole() -> Part {
    let lanes = doc! { "$gte": 0, "$lt": i32::from(crate::LANES) };
    Part {
        filter: doc! { "published": false, "partial": { "$exists": false }, "lane": lanes },
        keys: ensure::due_keys(),
    }
}

/// Those that say what they owe.
fn partly(routes: &[&str]) -> Part {
    Part {
        filter: doc! {
            "published": false,
            "partial": true,
            "outstanding": { "$in": spelled(routes) },
        },
        keys: ensure::owed_keys(),
    }
}

/// However a row may spell them.
fn spelled(routes: &[&str]) -> Vec<String> {
    let later = routes.iter().map(|route| retrying(route));
    routes
        .iter()
        .map(|&route| route.to_owned())
        .chain(later)
        .collect()
}

fn limit() -> Document {
    doc! { "$limit": MOST as i64 }
}

fn number(raw: &RawDocument, field: &str) -> i64 {
    codec::whole(raw, field).unwrap_or_default()
}

fn oldest(row: &RawDocument, id: &str, now: i64) -> Option<Oldest> {
    let since = codec::whole(row, "pending")?;
    let id = row.get(id).ok()??;
    Some(Oldest {
        row: match codec::row_id(id) {
            Some(id) => id.to_string(),
            None => Bson::try_from(id).ok()?.to_string(),
        },
        since,
        age: now - since,
    })
}

impl Debt {
    fn add(&mut self, oldest: Option<Oldest>) {
        let known = self.oldest.take().into_iter();
        self.oldest = known.chain(oldest).min_by_key(|oldest| oldest.since);
    }

    /// With what another collection owes.
    pub(crate) fn join(&mut self, other: Self) {
        self.rows += other.rows;
        self.add(other.oldest);
    }

    /// Whether there may be more than are counted.
    pub(crate) fn is_more(&self) -> bool {
        self.rows >= MOST
    }

    /// For how long the oldest has been owed; nothing where none is, or it is not due yet.
    pub(crate) fn age(&self) -> Duration {
        let age = self.oldest.as_ref().map_or(0, |oldest| oldest.age);
        Duration::from_millis(age.try_into().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_all_parts_is_kept() {
        let one = |since: i64| Oldest {
            row: since.to_string(),
            since,
            age: 100 - since,
        };
        let mut debt = Debt::default();
        for since in [50, 20, 70] {
            debt.add(Some(one(since)));
        }
        debt.add(None);
        assert_eq!(debt.oldest, Some(one(20)));
        assert_eq!(debt.age(), Duration::from_millis(80));
        debt.oldest = Some(one(200));
        assert_eq!(debt.age(), Duration::ZERO, "not due yet");
    }

    #[test]
    fn a_route_is_found_however_it_is_spelled() {
        assert_eq!(
            spelled(&["bad/created"]),
            ["bad/created", "retrying bad/created"]
        );
    }
}
