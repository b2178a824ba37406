//! A row to BSON and back, field by field. Rows of other writers are read as they are.

use bson::{
    Bson, Document, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, raw::cstr,
    spec::BinarySubtype,
};

use crate::{
    canonical,
    lane::LANES,
    row::{Event, Row, RowId},
};

/// A row that cannot be published, whoever wrote it.
#[derive(Debug, thiserror::Error)]
#[error("row {id} cannot be published: {problem}")]
pub(crate) struct Malformed {
    /// Its `_id`, in whatever form it has.
    pub(crate) id: String,
    pub(super) problem: String,
}

/// The field with the digest of the event, binary of no particular kind.
pub(super) const DIGEST: &str = "digest";

impl Malformed {
    /// It has no digest where one is wanted.
    pub(super) fn bare(id: &RowId) -> Self {
        Self {
            id: id.to_string(),
            problem: "digest is missing, and integrity = true wants one of every row".into(),
        }
    }
}

/// The document of a new row that carries a digest of its event; fails as [`encode`] does.
pub(crate) fn seal(row: &Row) -> Result<RawDocumentBuf, bson::error::Error> {
    let digest = canonical::digest(&canonical::event(&row.event)?);
    let mut raw = encode(row)?;
    let digest = bson::Binary {
        subtype: BinarySubtype::Generic,
        bytes: digest.to_vec(),
    };
    raw.append(cstr!("digest"), RawBson::Binary(digest));
    Ok(raw)
}

/// The document of a new row; fails on what BSON cannot hold, such as a key with a null character.
pub(crate) fn encode(row: &Row) -> Result<RawDocumentBuf, bson::error::Error> {
    let event = &row.event;
    let origin = event.origin.as_ref().map(RawDocumentBuf::try_from);
    let origin = origin.transpose()?.map_or(RawBson::Null, RawBson::Document);
    // Appended one by one: a document of all would hold copies of them.
    let mut raw = RawDocumentBuf::new();
    raw.append(cstr!("origin"), origin);
    raw.append(cstr!("state"), RawDocumentBuf::try_from(&event.state)?);
    raw.append(cstr!("trailers"), raw_bson(&event.trailers)?);
    raw.append(cstr!("input"), raw_bson(&event.input)?);
    let event = raw;

    let mut raw = RawDocumentBuf::new();
    raw.append(cstr!("_id"), RawBson::try_from(id(&row.id))?);
    raw.append(cstr!("lane"), i32::from(row.lane));
    raw.append(cstr!("published"), false);
    raw.append(cstr!("pending"), row.pending);
    raw.append(cstr!("event"), event);
    Ok(raw)
}

fn raw_bson(value: &Bson) -> Result<RawBson, bson::error::Error> {
    match value {
        Bson::Document(document) => RawDocumentBuf::try_from(document).map(RawBson::Document),
        other => other.clone().try_into(),
    }
}

/// An id as it stands in the collection.
pub(super) fn id(id: &RowId) -> Bson {
    match id {
        RowId::Uuid(uuid) => bson::Uuid::from_bytes(*uuid.as_bytes()).into(),
        RowId::ObjectId(id) => (*id).into(),
        RowId::Text(text) => text.as_str().into(),
    }
}

/// Reads a row as any writer may have spelled it. One that carries a digest has to match it.
pub(crate) fn decode(raw: &RawDocument) -> Result<Row, Malformed> {
    let id = raw.get("_id").ok().flatten();
    let malformed = |problem: &str| Malformed {
        id: id.map_or_else(|| "without _id".into(), shown),
        problem: problem.into(),
    };
    let row = Row {
        id: id
            .and_then(row_id)
            .ok_or_else(|| malformed("_id is neither a UUID, an ObjectId nor a string"))?,
        lane: lane(raw).ok_or_else(|| malformed("lane is not a whole number from 0 to 127"))?,
        pending: whole(raw, "pending").ok_or_else(|| malformed("pending is not a number"))?,
        event: event(raw).map_err(|problem| malformed(&problem))?,
        outstanding: outstanding(raw).map_err(malformed)?,
    };
    match is_altered(raw, &row.event) {
        true => Err(malformed(ALTERED)),
        false => Ok(row),
    }
}

/// Whether there is no digest.
pub(super) fn is_bare(raw: &RawDocument) -> bool {
    matches!(raw.get(DIGEST), Ok(None | Some(RawBsonRef::Null)))
}

const ALTERED: &str = "event does not match digest, it was changed after it was written";

/// Whether the event is another than the digest says; not where there is none.
fn is_altered(raw: &RawDocument, event: &Event) -> bool {
    let Ok(Some(RawBsonRef::Binary(stored))) = raw.get(DIGEST) else {
        return !is_bare(raw);
    };
    canonical::event(event).map_or(true, |bytes| canonical::digest(&bytes) != stored.bytes)
}

/// The id of a row, as far as it has one.
pub(crate) fn row_id_in(raw: &RawDocument) -> Option<RowId> {
    row_id(raw.get("_id").ok()??)
}

pub(super) fn row_id(id: RawBsonRef<'_>) -> Option<RowId> {
    match id {
        RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Uuid => {
            uuid::Uuid::from_slice(binary.bytes).ok().map(RowId::Uuid)
        }
        RawBsonRef::ObjectId(id) => Some(RowId::ObjectId(id)),
        RawBsonRef::String(text) => Some(RowId::Text(text.to_owned())),
        _ => None,
    }
}

/// An id as it stands in a document that was read.
pub(super) fn id_of(id: &Bson) -> Option<RowId> {
    match id {
        Bson::Binary(binary) if binary.subtype == BinarySubtype::Uuid => {
            uuid::Uuid::from_slice(&binary.bytes).ok().map(RowId::Uuid)
        }
        Bson::ObjectId(id) => Some(RowId::ObjectId(*id)),
        Bson::String(text) => Some(RowId::Text(text.clone())),
        _ => None,
    }
}

fn shown(id: RawBsonRef<'_>) -> String {
    match row_id(id) {
        Some(id) => id.to_string(),
        None => Bson::try_from(id).map_or_else(|_| "unreadable".into(), |id| id.to_string()),
    }
}

/// A fraction of a lane is none, though it lies between two of them.
fn lane(raw: &RawDocument) -> Option<u8> {
    let lane = u8::try_from(whole(raw, "lane")?).ok()?;
    let is_whole = match raw.get("lane").ok()?? {
        RawBsonRef::Double(number) => number.fract() == 0.0,
        RawBsonRef::Decimal128(number) => number.to_string().parse::<f64>().ok()?.fract() == 0.0,
        _ => true,
    };
    (is_whole && lane < LANES).then_some(lane)
}

/// A number of any BSON type; fractions are cut off.
pub(super) fn whole(raw: &RawDocument, field: &str) -> Option<i64> {
    match raw.get(field).ok()?? {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        RawBsonRef::Double(number) if number.is_finite() => Some(number as i64),
        RawBsonRef::Decimal128(number) => {
            let number: f64 = number.to_string().parse().ok()?;
            number.is_finite().then_some(number as i64)
        }
        _ => None,
    }
}

fn event(raw: &RawDocument) -> Result<Event, String> {
    let event = raw
        .get_document("event")
        .map_err(|_| "event is not a document")?;
    let mut event =
        Document::try_from(event).map_err(|error| format!("event is unreadable: {error}"))?;
    let mut take = |field: &str| event.remove(field).unwrap_or(Bson::Null);
    let state = match take("state") {
        Bson::Document(state) => state,
        _ => return Err("event.state is not a document".into()),
    };
    let origin = match take("origin") {
        Bson::Document(origin) => Some(origin),
        Bson::Null => None,
        _ => return Err("event.origin is neither a document nor null".into()),
    };
    Ok(Event {
        origin,
        state,
        trailers: take("trailers"),
        input: take("input"),
    })
}

pub(super) fn outstanding(raw: &RawDocument) -> Result<Option<Vec<String>>, &'static str> {
    let wrong = "outstanding is not an array of strings";
    match raw.get("outstanding").map_err(|_| wrong)? {
        None | Some(RawBsonRef::Null) => Ok(None),
        Some(RawBsonRef::Array(routes)) => routes
            .into_iter()
            .map(|route| route.ok()?.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .map(Some)
            .ok_or(wrong),
        Some(_) => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{doc, oid::ObjectId};

    fn read(document: Document) -> Result<Row, String> {
        let raw = RawDocumentBuf::try_from(&document).unwrap();
        decode(&raw).map_err(|malformed| malformed.to_string())
    }

    fn row(id: impl Into<Bson>) -> Document {
        doc! {
            "_id": id.into(), "lane": 3, "published": false, "pending": 5_i64,
            "event": { "origin": null, "state": { "a": 1 }, "trailers": null, "input": null },
        }
    }

    fn with(field: &str, value: impl Into<Bson>) -> Document {
        let mut row = row("x");
        row.insert(field, value);
        row
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let row = Row {
            id: RowId::new(),
            lane: 127,
            pending: 1_700_000_000_000,
            event: Event::changed(doc! { "a": 1 }, doc! { "a": 2 })
                .input("in")
                .trailers(doc! { "t": [1] }),
            outstanding: None,
        };
        assert_eq!(decode(&encode(&row).unwrap()).unwrap(), row);
    }

    #[test]
    fn ids_of_other_writers_are_kept_as_they_are() {
        for id in [
            Bson::from("0190163d8694739b8f0c1d3a9d2b6c11"),
            Bson::from("anything at all"),
            Bson::from(ObjectId::new()),
            Bson::from(bson::Uuid::new()),
        ] {
            let row = read(row(id.clone())).unwrap();
            assert_eq!(super::id(&row.id), id);
        }
    }

    #[test]
    fn numbers_may_be_of_any_type() {
        for pending in [Bson::Int32(5), Bson::Int64(5), Bson::Double(5.9)] {
            assert_eq!(read(with("pending", pending)).unwrap().pending, 5);
        }
        assert_eq!(read(with("lane", 7.0)).unwrap().lane, 7);
        let decimal: bson::Decimal128 = "7.0".parse().unwrap();
        assert_eq!(read(with("lane", decimal)).unwrap().lane, 7);
        let decimal: bson::Decimal128 = "5".parse().unwrap();
        assert_eq!(read(with("pending", decimal)).unwrap().pending, 5);
    }

    #[test]
    fn unknown_fields_are_no_problem() {
        assert!(read(with("tenant", "t")).is_ok());
        assert_eq!(
            read(with("outstanding", vec!["amqp/x"]))
                .unwrap()
                .outstanding
                .unwrap(),
            ["amqp/x"]
        );
    }

    #[test]
    fn what_cannot_be_published_is_named_by_id() {
        let malformed = [
            (with("lane", 128), "lane"),
            (with("lane", -1), "lane"),
            (with("lane", "3"), "lane"),
            (with("lane", 1.5), "lane"),
            (
                with("lane", "1.5".parse::<bson::Decimal128>().unwrap()),
                "lane",
            ),
            (with("pending", "now"), "pending"),
            (with("event", 1), "event"),
            (with("event", doc! { "state": 1 }), "event.state"),
            (
                with("event", doc! { "state": {}, "origin": 1 }),
                "event.origin",
            ),
            (with("outstanding", vec![1]), "outstanding"),
        ];
        for (document, field) in malformed {
            let text = read(document.clone()).unwrap_err();
            assert!(
                text.starts_with("row x") && text.contains(field),
                "{document}: {text}"
            );
        }
        assert!(read(row(7)).unwrap_err().starts_with("row 7"));
    }

    #[test]
    fn a_row_with_a_digest_has_to_match_it() {
        let row = Row {
            id: RowId::Text("x".into()),
            lane: 3,
            pending: 5,
            event: Event::changed(doc! { "a": 1, "b": 1 }, doc! { "a": 2 }).input("in"),
            outstanding: None,
        };
        let sealed = seal(&row).unwrap();
        assert_eq!(decode(&sealed).unwrap(), row);
        let sealed = Document::try_from(sealed).unwrap();
        let altered = |change: fn(&mut Document)| {
            let mut altered = sealed.clone();
            change(&mut altered);
            read(altered)
        };
        let swap = |row: &mut Document| {
            let event = row.get_document_mut("event").unwrap();
            event.insert("origin", doc! { "b": 1, "a": 1 });
        };
        assert!(
            altered(swap).is_ok(),
            "the order of fields is of no meaning"
        );
        let edit = |row: &mut Document| {
            let event = row.get_document_mut("event").unwrap();
            event.insert("state", doc! { "a": 3 });
        };
        let text = altered(edit).unwrap_err();
        assert!(
            text.starts_with("row x") && text.contains("digest"),
            "{text}"
        );
        for digest in [
            Bson::from("text"),
            1.into(),
            bson::Binary {
                subtype: BinarySubtype::Generic,
                bytes: vec![0; 31],
            }
            .into(),
        ] {
            let mut row = sealed.clone();
            row.insert("digest", digest);
            assert!(read(row).is_err());
        }
    }

    #[test]
    fn what_bson_cannot_hold_is_an_error() {
        let event = Event::created(doc! { "a\0b": 1 });
        let row = Row {
            id: RowId::new(),
            lane: 0,
            pending: 0,
            event,
            outstanding: None,
        };
        assert!(encode(&row).is_err());
    }
}
