//! An `_id` as an operator reads and types it.

use bson::{Bson, RawBsonRef, RawDocument};

/// The `_id` as an operator can type it; see [`ids`].
pub(super) fn id(raw: &RawDocument) -> String {
    let id = raw.get("_id").ok().flatten();
    shown(id.unwrap_or(RawBsonRef::Null))
}

/// The same of an id that stands elsewhere.
pub(crate) fn shown(id: RawBsonRef<'_>) -> String {
    match Bson::try_from(id).unwrap_or(Bson::Null) {
        Bson::String(text) => text,
        Bson::ObjectId(id) => id.to_hex(),
        Bson::Binary(binary) => match binary.to_uuid() {
            Ok(uuid) => uuid.to_string(),
            Err(_) => Bson::Binary(binary).into_relaxed_extjson().to_string(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, RawDocumentBuf, doc, oid::ObjectId};

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
}
