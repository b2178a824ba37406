//! How a payload becomes bytes.

use std::ops::RangeInclusive;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use bson::{Bson, Document};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::BoxError;

/// The encoding of message bodies, per component.
///
/// [`Json`](Self::Json) and [`MessagePack`](Self::MessagePack) render BSON plainly, for consumers that know
/// nothing of it:
///
/// | BSON | JSON | MessagePack |
/// | --- | --- | --- |
/// | document, array, string, boolean, null | the same | the same |
/// | int32, int64 | number, all 64 bits | integer |
/// | double | number; `null` when not finite | float |
/// | ObjectId | 24 hexadecimal digits | the same |
/// | UUID (binary subtype 4) | hyphenated text | the same |
/// | other binary | base64 | bytes |
/// | date | RFC 3339 in UTC, milliseconds; beyond the years 0–9999 milliseconds since the epoch as a number | the same |
/// | decimal128 | its text | the same |
/// | timestamp | `{ "t": seconds, "i": ordinal }` | the same |
/// | regular expression | `/pattern/options` | the same |
/// | symbol, code, min key, max key | text | the same |
/// | undefined, DBPointer | `null` | nil |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Plain JSON, `application/json`. The default.
    #[default]
    Json,
    /// MongoDB Extended JSON v2, relaxed, `application/json`.
    RelaxedJson,
    /// MongoDB Extended JSON v2, canonical, `application/json`.
    CanonicalJson,
    /// MessagePack, `application/msgpack`.
    MessagePack,
    /// The document as BSON, `application/bson`. Payloads that are no documents cannot be rendered.
    Bson,
}

impl Encoding {
    pub(crate) const ALL: [Self; 5] = [
        Self::Json,
        Self::RelaxedJson,
        Self::CanonicalJson,
        Self::MessagePack,
        Self::Bson,
    ];

    /// By its name in a configuration file.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|encoding| encoding.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::RelaxedJson => "relaxed-json",
            Self::CanonicalJson => "canonical-json",
            Self::MessagePack => "msgpack",
            Self::Bson => "bson",
        }
    }

    /// The content type of a body, without parameters: consumers compare it exactly.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json | Self::RelaxedJson | Self::CanonicalJson => "application/json",
            Self::MessagePack => "application/msgpack",
            Self::Bson => "application/bson",
        }
    }

    pub(crate) fn encode(self, payload: &Bson) -> Result<Vec<u8>, BoxError> {
        match (self, payload) {
            (_, Bson::Document(document)) => self.encode_document(document),
            (Self::Json, value) => Ok(serde_json::to_vec(&Plain::json(value))?),
            (Self::MessagePack, value) => Ok(rmp_serde::to_vec(&Plain::binary(value))?),
            (Self::RelaxedJson, value) => {
                Ok(serde_json::to_vec(&value.clone().into_relaxed_extjson())?)
            }
            (Self::CanonicalJson, value) => {
                Ok(serde_json::to_vec(&value.clone().into_canonical_extjson())?)
            }
            (Self::Bson, _) => {
                Err("BSON can carry a document only: change payload or encoding".into())
            }
        }
    }

    pub(super) fn encode_document(self, document: &Document) -> Result<Vec<u8>, BoxError> {
        match self {
            Self::Json => Ok(serde_json::to_vec(&PlainDocument(document, Bytes::Base64))?),
            Self::MessagePack => Ok(rmp_serde::to_vec(&PlainDocument(document, Bytes::Raw))?),
            Self::Bson => Ok(document.to_vec()?),
            Self::RelaxedJson => Ok(serde_json::to_vec(
                &Bson::Document(document.clone()).into_relaxed_extjson(),
            )?),
            Self::CanonicalJson => Ok(serde_json::to_vec(
                &Bson::Document(document.clone()).into_canonical_extjson(),
            )?),
        }
    }
}

/// What becomes of binary values.
#[derive(Clone, Copy)]
enum Bytes {
    Base64,
    Raw,
}

struct Plain<'a>(&'a Bson, Bytes);

struct PlainDocument<'a>(&'a Document, Bytes);

impl<'a> Plain<'a> {
    fn json(value: &'a Bson) -> Self {
        Self(value, Bytes::Base64)
    }

    fn binary(value: &'a Bson) -> Self {
        Self(value, Bytes::Raw)
    }
}

impl Serialize for PlainDocument<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key, &Plain(value, self.1))?;
        }
        map.end()
    }
}

impl Serialize for Plain<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Bson::Document(document) => PlainDocument(document, self.1).serialize(to),
            Bson::Array(values) => {
                let mut seq = to.serialize_seq(Some(values.len()))?;
                for value in values {
                    seq.serialize_element(&Plain(value, self.1))?;
                }
                seq.end()
            }
            Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => {
                to.serialize_str(text)
            }
            Bson::JavaScriptCodeWithScope(code) => to.serialize_str(&code.code),
            Bson::Boolean(value) => to.serialize_bool(*value),
            Bson::Int32(value) => to.serialize_i32(*value),
            Bson::Int64(value) => to.serialize_i64(*value),
            Bson::Double(value) if value.is_finite() => to.serialize_f64(*value),
            Bson::ObjectId(id) => to.collect_str(id),
            Bson::DateTime(date) => plain_date(*date, to),
            Bson::Decimal128(value) => to.collect_str(value),
            Bson::Binary(binary) => plain_binary(binary, self.1, to),
            Bson::Timestamp(stamp) => {
                let mut map = to.serialize_map(Some(2))?;
                map.serialize_entry("t", &stamp.time)?;
                map.serialize_entry("i", &stamp.increment)?;
                map.end()
            }
            Bson::RegularExpression(regex) => {
                to.collect_str(&format_args!("/{}/{}", regex.pattern, regex.options))
            }
            Bson::MinKey => to.serialize_str("MinKey"),
            Bson::MaxKey => to.serialize_str("MaxKey"),
            Bson::Double(_) | Bson::Null | Bson::Undefined | Bson::DbPointer(_) => {
                to.serialize_unit()
            }
        }
    }
}

/// The years 0 to 9999, which is what RFC 3339 can tell; in milliseconds since the epoch.
const TOLD: RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_799_999;

fn plain_date<S: Serializer>(date: bson::DateTime, to: S) -> Result<S::Ok, S::Error> {
    let millis = date.timestamp_millis();
    match date.try_to_rfc3339_string() {
        Ok(text) if TOLD.contains(&millis) => to.serialize_str(&text),
        _ => to.serialize_i64(millis),
    }
}

fn plain_binary<S: Serializer>(
    binary: &bson::Binary,
    bytes: Bytes,
    to: S,
) -> Result<S::Ok, S::Error> {
    match (binary.subtype, binary.to_uuid(), bytes) {
        (bson::spec::BinarySubtype::Uuid, Ok(uuid), _) => to.collect_str(&uuid),
        (_, _, Bytes::Base64) => to.serialize_str(&BASE64.encode(&binary.bytes)),
        (_, _, Bytes::Raw) => to.serialize_bytes(&binary.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Binary, DateTime, Timestamp, doc, oid::ObjectId, spec::BinarySubtype};

    fn sample() -> Document {
        doc! {
            "id": ObjectId::from_bytes([1; 12]),
            "uuid": bson::Uuid::from_bytes([2; 16]),
            "bytes": Binary { subtype: BinarySubtype::Generic, bytes: vec![0, 255] },
            "at": DateTime::from_millis(1_700_000_000_123),
            "far": DateTime::from_millis(i64::MAX),
            "big": i64::MAX,
            "half": 0.5,
            "nan": f64::NAN,
            "price": "9.99".parse::<bson::Decimal128>().unwrap(),
            "stamp": Timestamp { time: 7, increment: 8 },
            "list": [1, "two", null, { "deep": true }],
        }
    }

    #[test]
    fn plain_json_is_what_a_consumer_without_bson_expects() {
        let body = Encoding::Json.encode_document(&sample()).unwrap();
        let expected = r#"{"id":"010101010101010101010101","uuid":"02020202-0202-0202-0202-020202020202","bytes":"AP8=","at":"2023-11-14T22:13:20.123Z","far":9223372036854775807,"big":9223372036854775807,"half":0.5,"nan":null,"price":"9.99","stamp":{"t":7,"i":8},"list":[1,"two",null,{"deep":true}]}"#;
        assert_eq!(String::from_utf8(body).unwrap(), expected);
    }

    #[test]
    fn extended_json_keeps_types() {
        let event = doc! { "n": 1_i64 };
        let relaxed = Encoding::RelaxedJson.encode_document(&event).unwrap();
        let canonical = Encoding::CanonicalJson.encode_document(&event).unwrap();
        assert_eq!(relaxed, br#"{"n":1}"#);
        assert_eq!(canonical, br#"{"n":{"$numberLong":"1"}}"#);
    }

    #[test]
    fn message_pack_reads_back() {
        let body = Encoding::MessagePack.encode_document(&sample()).unwrap();
        let value: serde_json::Value = rmp_serde::from_slice(&body).unwrap_or_default();
        // Bytes are the one thing JSON's model cannot take from MessagePack.
        assert!(value.is_null());
        let mut rest = sample();
        rest.remove("bytes");
        let body = Encoding::MessagePack.encode_document(&rest).unwrap();
        let value: serde_json::Value = rmp_serde::from_slice(&body).unwrap();
        assert_eq!(value["big"], i64::MAX);
        assert_eq!(value["list"][3]["deep"], true);
    }

    #[test]
    fn bson_carries_documents_and_nothing_else() {
        let body = Encoding::Bson.encode(&sample().into()).unwrap();
        assert_eq!(
            Document::from_reader(&body[..]).unwrap().len(),
            sample().len()
        );
        assert!(Encoding::Bson.encode(&Bson::Int32(1)).is_err());
    }

    #[test]
    fn a_payload_may_be_any_value() {
        let values = [(Bson::Null, "null"), (7.into(), "7"), ("x".into(), "\"x\"")];
        for (value, text) in values {
            assert_eq!(Encoding::Json.encode(&value).unwrap(), text.as_bytes());
        }
    }
}
