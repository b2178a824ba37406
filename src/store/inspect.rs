//! What an operator asks of the rows. Nothing here changes one.

mod backlog;
mod faults;
mod ids;

use std::{future::IntoFuture, time::Duration};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use futures::TryStreamExt;
use mongodb::{
    Cursor,
    options::{FindOptions, ReadConcern, ReadPreference, SelectionCriteria},
};

use super::{
    PATIENCE, Store, codec,
    waiting::{lanes, parts},
};
use crate::error::Result;

pub(crate) use backlog::Backlog;
pub(crate) use faults::MOST_COUNTED;
use ids::id;
pub(crate) use ids::{ids, is, shown};

/// Which rows, and in what order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Those a pump would read, now or later, the longest due first.
    Unpublished,
    /// By when they were published.
    Published,
    /// Those no pump can read, in no order.
    Unreadable,
    /// By `_id`.
    Any,
}

/// What the rows an operator asks for have in common.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) kind: Kind,
    /// None: in any lane.
    pub(crate) lane: Option<u8>,
    /// Routes of which one at least is owed; none: whatever is owed.
    pub(crate) owing: Vec<String>,
    /// Due for longer than this.
    pub(crate) due_for: Option<Duration>,
    /// A filter of the operator's own.
    pub(crate) filter: Option<Document>,
    /// Zero: no limit.
    pub(crate) limit: i64,
}

/// A row without its event, readable or not.
#[derive(Debug)]
pub(crate) struct Glance {
    pub(crate) id: String,
    pub(crate) lane: Option<i64>,
    pub(crate) is_published: bool,
    /// Milliseconds since the epoch, as the next one.
    pub(crate) pending: Option<i64>,
    pub(crate) published_at: Option<i64>,
    pub(crate) outstanding: Option<Vec<String>>,
}

impl Wanted {
    /// A filter that leaves nothing but unpublished rows is asked by their index, not by that of all ids.
    fn by_index(mut self) -> Self {
        let filter = self.filter.as_ref();
        let unpublished = filter.and_then(|filter| filter.get_bool("published").ok());
        if self.kind == Kind::Any && unpublished == Some(false) {
            self.kind = Kind::Unpublished;
        }
        self
    }

    fn into_filter(self) -> Document {
        let mut all = vec![kind(self.kind)];
        if let Some(lane) = self.lane {
            all.push(doc! { "lane": i32::from(lane) });
        }
        if !self.owing.is_empty() {
            // What a row does not say, it owes.
            let mut owing: Vec<Bson> = self.owing.into_iter().map(Bson::from).collect();
            owing.push(Bson::Null);
            all.push(doc! { "outstanding": { "$in": owing } });
        }
        if let Some(span) = self.due_for {
            let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
            let bound = doc! { "$subtract": [{ "$toLong": "$$NOW" }, millis] };
            all.push(doc! { "$expr": { "$lte": ["$pending", bound] } });
        }
        all.extend(self.filter);
        doc! { "$and": all }
    }
}

fn kind(kind: Kind) -> Document {
    match kind {
        // Each lane by name, so that the index gives the order as well.
        Kind::Unpublished => doc! { "published": false, "lane": { "$in": lanes() } },
        Kind::Published => doc! { "published": true },
        // Each part says it by itself.
        Kind::Unreadable | Kind::Any => doc! {},
    }
}

fn order(kind: Kind) -> Document {
    match kind {
        Kind::Unpublished => doc! { "pending": 1 },
        Kind::Published => doc! { "publishedAt": 1 },
        Kind::Unreadable => doc! {},
        Kind::Any => doc! { "_id": 1 },
    }
}

/// Rows that were asked for, in the order that was.
pub(crate) struct Rows {
    kind: Kind,
    parts: Vec<Part>,
    /// How many more may come.
    left: u64,
}

/// Some of them, which the server has in order.
struct Part {
    cursor: Cursor<Document>,
    head: Option<RawDocumentBuf>,
    /// Whether the server cannot tell which of them are wanted.
    is_sifted: bool,
}

impl Rows {
    /// The part that has the next one.
    fn first(&self) -> Option<usize> {
        let heads = self.parts.iter().enumerate();
        let places = heads.filter_map(|(index, part)| {
            let place = place(self.kind, part.head.as_ref()?);
            Some((place, index))
        });
        places.min().map(|(_, index)| index)
    }
}

/// What the rows of a kind are ordered by; those that have none come first.
fn place(kind: Kind, row: &RawDocument) -> i64 {
    let place = match kind {
        Kind::Unpublished => codec::whole(row, "pending"),
        // They come in one part.
        Kind::Published | Kind::Unreadable | Kind::Any => None,
    };
    place.unwrap_or(i64::MIN)
}

impl Store {
    /// The rows that are wanted, each without its event unless they are to be `whole`.
    pub(crate) async fn select(&self, wanted: Wanted, whole: bool) -> Result<Rows> {
        let wanted = wanted.by_index();
        let mut rows = Rows {
            kind: wanted.kind,
            parts: Vec::new(),
            left: match wanted.limit {
                0 => u64::MAX,
                limit => limit.unsigned_abs(),
            },
        };
        let parts = match wanted.kind {
            Kind::Unpublished => parts().to_vec(),
            Kind::Unreadable => vec![self.unreadable_filter(), self.sealed_filter()],
            Kind::Published | Kind::Any => vec![doc! {}],
        };
        for (index, part) in parts.into_iter().enumerate() {
            let is_sifted = wanted.kind == Kind::Unreadable && index > 0;
            let mut wanted = wanted.clone();
            if is_sifted {
                wanted.limit = 0;
            }
            let mut part = Part {
                cursor: self.selected(wanted, part, whole || is_sifted).await?,
                head: None,
                is_sifted,
            };
            self.advance_part(&mut part).await?;
            rows.parts.push(part);
        }
        Ok(rows)
    }

    async fn selected(
        &self,
        wanted: Wanted,
        part: Document,
        whole: bool,
    ) -> Result<Cursor<Document>> {
        let (limit, order) = (wanted.limit, order(wanted.kind));
        // Over the life of a cursor that brings all there is, it would add up.
        let longest = (limit > 0).then_some(PATIENCE);
        let mut options = FindOptions::default();
        options.max_time = longest;
        let found = self
            .rows
            .find(doc! { "$and": [part, wanted.into_filter()] })
            .with_options(options)
            .sort(order)
            .limit(limit)
            .projection(match whole {
                true => doc! {},
                false => doc! { "event": 0 },
            })
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .into_future();
        self.within("looking for rows", found).await
    }

    /// The next of the rows of [`select`](Self::select). Not cancel safe.
    pub(crate) async fn next(&self, rows: &mut Rows) -> Result<Option<RawDocumentBuf>> {
        let first = rows.first().filter(|_| rows.left > 0);
        let Some(first) = first else { return Ok(None) };
        rows.left -= 1;
        let part = &mut rows.parts[first];
        let row = part.head.take();
        self.advance_part(part).await?;
        Ok(row)
    }

    async fn advance_part(&self, part: &mut Part) -> Result<()> {
        part.head = None;
        while self.within("reading rows", part.cursor.advance()).await? {
            let row = part.cursor.current();
            if !part.is_sifted || self.problem(row).is_some() {
                part.head = Some(row.to_owned());
                break;
            }
        }
        Ok(())
    }

    /// The rows whose `_id` is one of these, whole.
    pub(crate) async fn with_ids(&self, ids: &[Bson]) -> Result<Vec<RawDocumentBuf>> {
        let rows = self.rows.clone_with_type::<RawDocumentBuf>();
        let asked = rows
            .find(doc! { "_id": { "$in": ids.to_vec() } })
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let found = async { asked.await?.try_collect().await };
        self.within("looking for a row", found).await
    }
}

impl Glance {
    pub(crate) fn of(raw: &RawDocument) -> Self {
        let number = |field: &str| codec::whole(raw, field);
        let published_at = raw.get_datetime("publishedAt").ok();
        Self {
            id: id(raw),
            lane: number("lane"),
            is_published: raw.get_bool("published").unwrap_or(false),
            pending: number("pending"),
            published_at: published_at.map(bson::DateTime::timestamp_millis),
            outstanding: codec::outstanding(raw).ok().flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpublished_rows_are_asked_for_by_their_index() {
        let wanted = |kind, filter| Wanted {
            kind,
            lane: None,
            owing: Vec::new(),
            due_for: None,
            filter: Some(filter),
            limit: 0,
        };
        let kind = |filter| wanted(Kind::Any, filter).by_index().kind;
        assert_eq!(kind(doc! { "published": false, "x": 1 }), Kind::Unpublished);
        assert_eq!(kind(doc! { "published": true }), Kind::Any);
        assert_eq!(kind(doc! { "event.state.x": 1 }), Kind::Any);
    }
}
