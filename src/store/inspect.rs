//! What an operator asks of the rows. Nothing here changes one.

use std::{collections::BTreeMap, future::IntoFuture, time::Duration};

use bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use futures::TryStreamExt;
use mongodb::{
    Cursor, Database,
    change_stream::{ChangeStream, event::ChangeStreamEvent},
    options::{Hint, ReadConcern, ReadPreference, SelectionCriteria},
};

use super::{Store, codec, ensure};
use crate::{
    error::{Error, Result, code},
    lane::LANES,
};

/// How long the server may take over a question that it cannot answer by an index alone.
const LONGEST: Duration = Duration::from_secs(10);
/// Past this many, one who counts is told "at least".
pub(crate) const MOST_COUNTED: u64 = 1000;
/// Server codes of a question that took too long, and of a hint at an index that is not there.
const TOO_LONG: i32 = 50;
const BAD_VALUE: i32 = 2;

/// A change stream of inserted rows, as they are.
pub(crate) type Inserts = ChangeStream<ChangeStreamEvent<RawDocumentBuf>>;

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

impl Wanted {
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
        Kind::Unreadable => unreadable(),
        Kind::Any => doc! {},
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

fn lanes() -> Vec<i32> {
    (0..i32::from(LANES)).collect()
}

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
    /// The rows that are wanted, each without its event unless they are to be `whole`.
    pub(crate) async fn select(&self, wanted: Wanted, whole: bool) -> Result<Cursor<Document>> {
        let (limit, order) = (wanted.limit, order(wanted.kind));
        let found = self
            .rows
            .find(wanted.into_filter())
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

    /// The next row of a cursor of [`select`](Self::select). Not cancel safe.
    pub(crate) async fn next(
        &self,
        cursor: &mut Cursor<Document>,
    ) -> Result<Option<RawDocumentBuf>> {
        let advanced = self.within("reading rows", cursor.advance()).await?;
        Ok(advanced.then(|| cursor.current().to_owned()))
    }

    /// The rows whose `_id` is one of these, whole.
    pub(crate) async fn with_ids(&self, ids: &[Bson]) -> Result<Vec<RawDocumentBuf>> {
        let rows = self.rows.clone_with_type::<RawDocumentBuf>();
        let found = async {
            rows.find(doc! { "_id": { "$in": ids.to_vec() } })
                .await?
                .try_collect()
                .await
        };
        self.within("looking for a row", found).await
    }

    /// Counts what is unpublished: one scan of the index that the pump reads by.
    pub(crate) async fn backlog(&self) -> Result<Backlog> {
        let lanes = match self.by_lane(true).await {
            Err(error) if code(&error) == Some(BAD_VALUE) => self.by_lane(false).await,
            counted => counted,
        };
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

    async fn by_lane(&self, hint: bool) -> mongodb::error::Result<Vec<Document>> {
        let is_due = doc! { "$lte": ["$pending", { "$toLong": "$$NOW" }] };
        let lanes = self.rows.aggregate([
            doc! { "$match": { "published": false } },
            doc! { "$group": {
                "_id": "$lane",
                "rows": { "$sum": 1_i64 },
                "due": { "$sum": { "$cond": [is_due, 1_i64, 0_i64] } },
                "oldest": { "$min": "$pending" },
                "now": { "$first": { "$toLong": "$$NOW" } },
            } },
        ]);
        let lanes = match hint {
            true => lanes.hint(Hint::Keys(ensure::due_keys())),
            false => lanes,
        };
        lanes.await?.try_collect().await
    }

    /// How many rows no pump can read, at most [`MOST_COUNTED`], and what is wrong with the first few. None if the
    /// server took too long over it.
    pub(crate) async fn unreadable(&self) -> Result<Option<(u64, Vec<String>)>> {
        let asked = async {
            let count = self.rows.count_documents(unreadable());
            let count = count.limit(MOST_COUNTED).max_time(LONGEST).await?;
            let rows = self.rows.clone_with_type::<RawDocumentBuf>();
            let first = rows.find(unreadable()).limit(3).max_time(LONGEST).await?;
            let first: Vec<RawDocumentBuf> = first.try_collect().await?;
            Ok((count, first.iter().filter_map(|row| problem(row)).collect()))
        };
        self.patient("looking for rows no pump can read", asked)
            .await
    }

    /// The routes beside `known` that rows are owed to, with how many rows. None if the server took too long over it.
    pub(crate) async fn strangers(&self, known: &[&str]) -> Result<Option<Vec<(String, i64)>>> {
        let strange =
            doc! { "published": false, "outstanding": { "$elemMatch": { "$nin": known } } };
        let pipeline = [
            doc! { "$match": strange },
            doc! { "$unwind": "$outstanding" },
            doc! { "$match": { "outstanding": { "$nin": known, "$type": "string" } } },
            doc! { "$group": { "_id": "$outstanding", "rows": { "$sum": 1_i64 } } },
            doc! { "$sort": { "_id": 1 } },
            doc! { "$limit": 20 },
        ];
        let asked = async {
            let found = self.rows.aggregate(pipeline).max_time(LONGEST).await?;
            let found: Vec<Document> = found.try_collect().await?;
            let route = |found: &Document| {
                let name = found.get_str("_id").ok()?.to_owned();
                Some((name, found.get_i64("rows").ok()?))
            };
            Ok(found.iter().filter_map(route).collect())
        };
        self.patient("looking for rows owed to unknown routes", asked)
            .await
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

impl Backlog {
    fn add(&mut self, lane: &Document) {
        let number = |field: &str| lane.get_i64(field).unwrap_or_default();
        let rows = u64::try_from(number("rows")).unwrap_or(0);
        self.unpublished += rows;
        self.due += u64::try_from(number("due")).unwrap_or(0);
        if let Some(oldest) = lane.get("oldest").and_then(whole) {
            let age = number("now") - oldest;
            self.oldest = Some(self.oldest.map_or(age, |oldest| oldest.max(age)));
        }
        let name = lane.get("_id").and_then(whole);
        if let Some(name) = name.and_then(|lane| u8::try_from(lane).ok()) {
            *self.by_lane.entry(name).or_default() += rows;
        }
    }
}

impl Glance {
    pub(crate) fn of(raw: &RawDocument) -> Self {
        let number = |field: &str| raw.get(field).ok().flatten().and_then(raw_whole);
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

/// Why no pump will ever publish this row.
pub(crate) fn problem(raw: &RawDocument) -> Option<String> {
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
    let malformed = codec::decode(raw).err()?;
    wrong(&malformed.problem)
}

/// The `_id` as an operator can type it; see [`ids`].
fn id(raw: &RawDocument) -> String {
    let id = raw.get("_id").ok().flatten();
    let id = id
        .and_then(|id| Bson::try_from(id).ok())
        .unwrap_or(Bson::Null);
    match id {
        Bson::String(text) => text,
        Bson::ObjectId(id) => id.to_hex(),
        Bson::Binary(ref binary) => match binary.to_uuid() {
            Ok(uuid) => uuid.to_string(),
            Err(_) => id.into_relaxed_extjson().to_string(),
        },
        Bson::Int32(number) => number.to_string(),
        Bson::Int64(number) => number.to_string(),
        other => other.into_relaxed_extjson().to_string(),
    }
}

/// Every `_id` that may be meant by a text.
pub(crate) fn ids(text: &str) -> Vec<Bson> {
    let mut ids = vec![Bson::from(text)];
    if let Ok(uuid) = uuid::Uuid::try_parse(text) {
        ids.push(bson::Uuid::from_bytes(*uuid.as_bytes()).into());
        ids.push(uuid.to_string().into());
        ids.push(uuid.simple().to_string().into());
    }
    if let Ok(id) = bson::oid::ObjectId::parse_str(text) {
        ids.push(id.into());
    }
    if let Ok(number) = text.parse::<i64>() {
        ids.push(number.into());
    }
    if let Ok(value @ serde_json::Value::Object(_)) = serde_json::from_str(text) {
        ids.extend(Bson::try_from(value));
    }
    ids
}

/// Whether a row is meant by a text.
pub(crate) fn is(raw: &RawDocument, text: &str) -> bool {
    let stored = raw.get("_id").ok().flatten();
    let stored = stored.and_then(|id| Bson::try_from(id).ok());
    id(raw) == text || stored.is_some_and(|id| ids(text).contains(&id))
}

/// Follows the rows that are inserted into `collections`; without any, into every outbox collection there is or
/// will be.
pub(crate) async fn inserts(database: &Database, collections: &[String]) -> Result<Inserts> {
    let collection = match collections {
        [] => doc! { "$regex": "_outbox$" },
        names => doc! { "$in": names },
    };
    let filter = doc! { "$match": { "operationType": "insert", "ns.coll": collection } };
    let stream = database.watch().pipeline([filter]).await;
    let stream =
        stream.map_err(|error| Error::store("opening a change stream", database.name(), error))?;
    Ok(stream.with_type())
}

fn raw_whole(value: RawBsonRef<'_>) -> Option<i64> {
    whole(&Bson::try_from(value).ok()?)
}

fn whole(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some((*number).into()),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.is_finite() => Some(*number as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::oid::ObjectId;

    fn raw(document: Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(&document).unwrap()
    }

    #[test]
    fn the_id_that_is_shown_is_the_id_that_is_found() {
        let uuid = bson::Uuid::new();
        for id in [
            Bson::from(uuid),
            Bson::from(uuid.to_string()),
            Bson::from("0190163d8694739b8f0c1d3a9d2b6c11"),
            Bson::from(ObjectId::new()),
            Bson::from("anything at all"),
            Bson::Int64(7),
            Bson::from(bson::DateTime::from_millis(1_700_000_000_000)),
        ] {
            let shown = super::id(&raw(doc! { "_id": id.clone() }));
            assert!(ids(&shown).contains(&id), "{id:?}: {shown}");
        }
    }

    #[test]
    fn a_uuid_is_found_with_and_without_hyphens() {
        let uuid = bson::Uuid::new();
        let simple = uuid.to_string().replace('-', "");
        assert!(ids(&simple).contains(&uuid.into()));
        assert!(ids(&uuid.to_string()).contains(&simple.into()));
    }

    #[test]
    fn what_keeps_a_row_from_every_pump_is_said() {
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
            assert!(
                text.starts_with("row x: ") && text.contains(field),
                "{text}"
            );
        }
    }
}
