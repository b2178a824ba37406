//! How much waits.

use std::collections::BTreeMap;

use bson::{Document, RawDocument, doc};

use crate::{
    error::Result,
    store::{Store, codec::whole},
};

/// How many rows wait.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    pub(crate) unpublished: u64,
    pub(crate) due: u64,
    /// For how long the oldest has been due, in milliseconds; negative: it is not due yet.
    pub(crate) oldest: Option<i64>,
    pub(crate) by_lane: BTreeMap<u8, u64>,
    /// All rows less those, by the server's own statistics: exact but after a crash of the server.
    pub(crate) published: u64,
}

impl Store {
    /// Counts what is unpublished: one scan of the index that the pump reads by.
    pub(crate) async fn backlog(&self) -> Result<Backlog> {
        let lanes = self.counted(&[by_lane()], None).await;
        let lanes = lanes.map_err(|error| self.failed("counting unpublished rows", error))?;
        let all = self.rows.estimated_document_count().await;
        let all = all.map_err(|error| self.failed("counting rows", error))?;
        let mut backlog = Backlog::default();
        for lane in &lanes {
            backlog.add(lane);
        }
        backlog.published = all.saturating_sub(backlog.unpublished);
        Ok(backlog)
    }
}

fn by_lane() -> Document {
    let now = doc! { "$toLong": "$$NOW" };
    let is_due = doc! { "$lte": ["$pending", &now] };
    doc! { "$group": {
        "_id": "$lane",
        "rows": { "$sum": 1_i64 },
        "due": { "$sum": { "$cond": [is_due, 1_i64, 0_i64] } },
        "oldest": { "$min": "$pending" },
        "now": { "$first": now },
    } }
}

impl Backlog {
    fn add(&mut self, lane: &RawDocument) {
        let number = |field: &str| whole(lane, field).unwrap_or_default();
        let rows = u64::try_from(number("rows")).unwrap_or(0);
        self.unpublished += rows;
        self.due += u64::try_from(number("due")).unwrap_or(0);
        if let Some(oldest) = whole(lane, "oldest") {
            let age = number("now") - oldest;
            self.oldest = Some(self.oldest.map_or(age, |oldest| oldest.max(age)));
        }
        let name = whole(lane, "_id");
        if let Some(name) = name.and_then(|lane| u8::try_from(lane).ok()) {
            *self.by_lane.entry(name).or_default() += rows;
        }
    }
}
