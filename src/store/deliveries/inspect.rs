//! What an operator asks of the failed deliveries. Nothing here changes one.

use std::future::IntoFuture;

use bson::{Bson, DateTime, Document, RawDocument, RawDocumentBuf, doc};
use futures::TryStreamExt;
use mongodb::options::ReadConcern;

use super::Deliveries;
use crate::{
    error::Result,
    store::{codec, inspect},
};

/// Which of those that are given up, and how many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Ids of rows, as an operator types them; none: of any row.
    pub(crate) rows: Vec<String>,
    pub(crate) sink: Option<String>,
    pub(crate) label: Option<String>,
    /// Given up at or after this moment.
    pub(crate) since: Option<DateTime>,
    /// Given up before this moment.
    pub(crate) until: Option<DateTime>,
    /// The latest first, instead of the oldest.
    pub(crate) is_newest_first: bool,
    /// Zero: no limit.
    pub(crate) limit: i64,
}

/// A failed delivery, of one row by one route.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// What it is found by.
    pub(super) key: Bson,
    /// The row's id, as an operator types it.
    pub(crate) row: String,
    /// `<sink>/<label>`.
    pub(crate) route: String,
    /// `retrying`, `dead` or `abandoned`.
    pub(crate) state: String,
    pub(crate) attempts: i64,
    /// Why the last attempt failed, in our words.
    pub(crate) error: String,
    pub(crate) first: Option<DateTime>,
    /// When it is tried again.
    pub(crate) next: Option<DateTime>,
    pub(crate) dead_at: Option<DateTime>,
    /// When its own retention ends.
    pub(crate) expires: Option<DateTime>,
    pub(crate) is_replay: bool,
    /// By whose leave it was replayed last.
    pub(crate) approval: Option<String>,
    /// How large the row is that is kept with it, in bytes; none if there is none.
    pub(crate) bytes: Option<i64>,
    /// That row, where it was asked for.
    pub(crate) copy: Option<RawDocumentBuf>,
}

impl Wanted {
    fn filter(&self) -> Document {
        let mut all = vec![doc! { "state": { "$in": ["dead", "abandoned"] } }];
        if !self.rows.is_empty() {
            let ids = self.rows.iter().flat_map(|row| inspect::ids(row));
            all.push(of_rows(ids));
        }
        if let Some(sink) = &self.sink {
            all.push(doc! { "sink": sink });
        }
        if let Some(label) = &self.label {
            let route = doc! { "$concat": ["$sink", "/", { "$literal": label }] };
            all.push(doc! { "$expr": { "$eq": ["$_id.route", route] } });
        }
        if let Some(since) = self.since {
            all.push(doc! { "deadAt": { "$gte": since } });
        }
        if let Some(until) = self.until {
            all.push(doc! { "deadAt": { "$lt": until } });
        }
        doc! { "$and": all }
    }
}

/// Those of some rows, as a range for each: the index on the ids has them by row, and within it by route.
fn of_rows(ids: impl IntoIterator<Item = Bson>) -> Document {
    let range = |id: Bson| {
        let least = doc! { "row": id.clone(), "route": Bson::MinKey };
        let most = doc! { "row": id, "route": Bson::MaxKey };
        doc! { "_id": { "$gte": least, "$lte": most } }
    };
    doc! { "$or": ids.into_iter().map(range).collect::<Vec<_>>() }
}

impl Deliveries {
    /// Those that are given up and wanted, without their copies.
    pub(crate) async fn select(&self, wanted: &Wanted) -> Result<Vec<Delivery>> {
        let order = if wanted.is_newest_first { -1 } else { 1 };
        let order = doc! { "deadAt": order, "_id": order };
        self.find(wanted.filter(), order, wanted.limit, false).await
    }

    /// Those of one row, by its id as an operator types it, whatever has become of them.
    pub(crate) async fn of_row(&self, row: &str, with_copies: bool) -> Result<Vec<Delivery>> {
        let filter = of_rows(inspect::ids(row));
        self.find(filter, doc! { "_id": 1 }, 0, with_copies).await
    }

    /// As it stands now; none where it is gone.
    pub(crate) async fn again(&self, delivery: &Delivery) -> Result<Option<Delivery>> {
        let filter = doc! { "_id": &delivery.key };
        let found = self.find(filter, doc! { "_id": 1 }, 1, false).await?;
        Ok(found.into_iter().next())
    }

    async fn find(
        &self,
        filter: Document,
        order: Document,
        limit: i64,
        with_copies: bool,
    ) -> Result<Vec<Delivery>> {
        let mut projection = doc! {
            "sink": 1, "state": 1, "attempts": 1, "error": 1, "first": 1, "next": 1, "deadAt": 1, "expires": 1,
            "replay": 1, "approval": 1, "bytes": { "$bsonSize": "$row" },
        };
        if with_copies {
            projection.insert("row", 1);
        }
        let all = self.all.clone_with_type::<RawDocumentBuf>();
        let found = all
            .find(filter)
            .sort(order)
            .limit(limit)
            .projection(projection)
            // What is dead may be more than the server sorts in memory.
            .allow_disk_use(true)
            .read_concern(ReadConcern::majority());
        let found = async {
            let found = found.into_future().await?;
            found.try_collect::<Vec<RawDocumentBuf>>().await
        };
        let found = self.within("looking for failed deliveries", found).await?;
        Ok(found.iter().filter_map(|one| read(one)).collect())
    }
}

fn read(raw: &RawDocument) -> Option<Delivery> {
    let key = Bson::try_from(raw.get("_id").ok()??).ok()?;
    let id = raw.get_document("_id").ok()?;
    let date = |field: &str| raw.get_datetime(field).ok();
    Some(Delivery {
        row: inspect::shown(id.get("row").ok()??),
        route: id.get_str("route").ok()?.to_owned(),
        key,
        state: raw.get_str("state").ok()?.to_owned(),
        attempts: codec::whole(raw, "attempts").unwrap_or_default(),
        error: raw.get_str("error").unwrap_or_default().to_owned(),
        first: date("first"),
        next: date("next"),
        dead_at: date("deadAt"),
        expires: date("expires"),
        is_replay: raw.get_bool("replay").unwrap_or(false),
        approval: raw.get_str("approval").ok().map(str::to_owned),
        bytes: codec::whole(raw, "bytes"),
        copy: raw.get_document("row").ok().map(ToOwned::to_owned),
    })
}

impl Delivery {
    /// The sink and the label.
    pub(crate) fn parts(&self) -> (&str, &str) {
        // No sink has a slash in its name.
        self.route.split_once('/').unwrap_or((&self.route, ""))
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.state != "retrying"
    }
}
