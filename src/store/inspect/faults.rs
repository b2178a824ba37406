//! Rows that nobody will publish.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use futures::TryStreamExt;

use super::{
    super::{codec, ensure},
    ids::id,
};
use crate::{
    error::{Result, TOO_LONG, code},
    store::Store,
};

/// How long the server may take over a question that it cannot answer by an index alone.
const LONGEST: Duration = Duration::from_secs(10);
/// Past this many, one who counts is told "at least".
pub(crate) const MOST_COUNTED: u64 = 1000;

/// Every row that neither is published nor could ever be. Without a date of publication, so that the index on it
/// leaves out the rows that are done.
fn unreadable() -> Document {
    let uuid = |byte: u8| bson::Uuid::from_bytes([byte; 16]);
    // Binary values are compared by length, then by subtype: between these two there are UUIDs alone.
    let is_uuid = doc! { "_id": { "$gte": uuid(0), "$lte": uuid(255) } };
    doc! {
        "publishedAt": null,
        "$or": [
            { "$nor": [ensure::validator()] },
            { "$and": [{ "_id": { "$type": "binData" } }, { "$nor": [is_uuid] }] },
            { "pending": { "$in": [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] } },
            { "outstanding": { "$exists": true, "$not": { "$type": ["array", "null"] } } },
            { "outstanding": { "$elemMatch": { "$not": { "$type": "string" } } } },
        ],
    }
}

impl Store {
    pub(super) fn unreadable_filter(&self) -> Document {
        let unreadable = unreadable();
        let bare = doc! { "publishedAt": null, codec::DIGEST: null };
        match self.wants_digest {
            true => doc! { "$or": [unreadable, bare] },
            false => unreadable,
        }
    }

    /// The other rows that have a digest and are to be published: the server cannot tell whether it is the right one.
    pub(super) fn sealed_filter(&self) -> Document {
        doc! {
            "published": false,
            // As above.
            "publishedAt": null,
            codec::DIGEST: { "$ne": null },
            "$nor": [self.unreadable_filter()],
        }
    }

    /// How many rows are not what their digest says, at most [`MOST_COUNTED`], and which the first few are. None if none was
    /// found in the time there is for it.
    pub(crate) async fn altered(&self) -> Result<Option<(u64, Vec<String>)>> {
        let begun = Instant::now();
        let (mut count, mut first) = (0, Vec::new());
        let sealed = self.rows.find(self.sealed_filter()).into_future();
        let mut rows = self.within("looking for altered rows", sealed).await?;
        while count < MOST_COUNTED && self.advance(&mut rows).await? {
            if let Some(problem) = self.problem(rows.current()) {
                count += 1;
                first.extend((first.len() < 3).then_some(problem));
            }
            if begun.elapsed() > LONGEST {
                return Ok((count > 0).then_some((count, first)));
            }
        }
        Ok(Some((count, first)))
    }

    /// Why no pump will ever publish this row.
    pub(crate) fn problem(&self, raw: &RawDocument) -> Option<String> {
        problem(raw).or_else(|| {
            let malformed = self.decode(raw).err()?;
            Some(format!("row {}: {}", id(raw), malformed.problem))
        })
    }

    /// How many rows no pump can read, at most [`MOST_COUNTED`], and what is wrong with the first few. None if the
    /// server took too long over it.
    pub(crate) async fn unreadable(&self) -> Result<Option<(u64, Vec<String>)>> {
        let asked = async {
            let count = self.rows.count_documents(self.unreadable_filter());
            let count = count.limit(MOST_COUNTED).max_time(LONGEST).await?;
            let rows = self.rows.clone_with_type::<RawDocumentBuf>();
            let first = rows
                .find(self.unreadable_filter())
                .limit(3)
                .max_time(LONGEST)
                .await?;
            let first: Vec<RawDocumentBuf> = first.try_collect().await?;
            Ok((
                count,
                first.iter().filter_map(|row| self.problem(row)).collect(),
            ))
        };
        self.patient("looking for rows no pump can read", asked)
            .await
    }

    /// The routes beside `known` that rows are owed to, with how many rows. None if the server took too long over it.
    pub(crate) async fn strangers(&self, known: &[&str]) -> Result<Option<Vec<(String, i64)>>> {
        let pipeline = [
            doc! { "$match": { "outstanding": { "$elemMatch": { "$nin": known } } } },
            doc! { "$unwind": "$outstanding" },
            doc! { "$match": { "outstanding": { "$nin": known, "$type": "string" } } },
            doc! { "$group": { "_id": "$outstanding", "rows": { "$sum": 1_i64 } } },
            doc! { "$sort": { "_id": 1 } },
            doc! { "$limit": 20 },
        ];
        let route = |found: &RawDocumentBuf| {
            let name = found.get_str("_id").ok()?.to_owned();
            Some((name, found.get_i64("rows").ok()?))
        };
        let asked = async {
            let found = self.counted(&pipeline, Some(LONGEST)).await?;
            Ok(found.iter().filter_map(route).collect())
        };
        self.patient("looking for rows owed to unknown routes", asked)
            .await
    }

    /// How an administrator makes rows owe a route no more.
    pub(crate) fn taking_off(&self, route: &str) -> String {
        format!(
            "db.{}.updateMany({{ published: false, outstanding: {route:?} }}, {{ $pull: {{ outstanding: {route:?} }} }})",
            self.collection()
        )
    }

    async fn patient<T>(
        &self,
        attempted: &'static str,
        asked: impl Future<Output = mongodb::error::Result<T>>,
    ) -> Result<Option<T>> {
        match asked.await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if code(&error) == Some(TOO_LONG) => Ok(None),
            Err(error) => Err(self.failed(attempted, error)),
        }
    }
}

/// What a pump does not even read.
fn problem(raw: &RawDocument) -> Option<String> {
    let wrong = |problem: &str| Some(format!("row {}: {problem}", id(raw)));
    match (raw.get_bool("published"), raw.get_datetime("publishedAt")) {
        (Err(_), _) => {
            return wrong("published is neither true nor false, so no pump looks for it");
        }
        (Ok(true), Err(_)) => {
            return wrong("published without publishedAt, so it is neither pumped nor reaped");
        }
        _ => {}
    }
    if raw.get_f64("lane").is_ok_and(|lane| lane.fract() != 0.0) {
        return wrong("lane is not a whole number, so no pump looks for it");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::Bson;

    fn raw(document: Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(&document).unwrap()
    }

    #[test]
    fn what_keeps_a_row_from_every_pump_is_said() {
        let problem = |row: &RawDocument| {
            let decoded = codec::decode(row)
                .err()
                .map(|malformed| malformed.to_string());
            super::problem(row).or(decoded)
        };
        let row = doc! { "_id": "x", "lane": 1, "published": false, "pending": 1, "event": { "state": {} } };
        assert_eq!(problem(&raw(row.clone())), None);
        for (field, value) in [
            ("published", Bson::Null),
            ("published", true.into()),
            ("lane", 1.5.into()),
            ("lane", 128.into()),
            ("pending", "now".into()),
        ] {
            let mut wrong = row.clone();
            wrong.insert(field, value);
            let text = problem(&raw(wrong)).unwrap();
            assert!(text.starts_with("row x") && text.contains(field), "{text}");
        }
    }
}
