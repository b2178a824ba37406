//! BSON to CEL and back; the table is in the module above.

use std::collections::HashMap;

use bson::{Binary, Bson, Document, spec::BinarySubtype};
use cel::common::{
    types::{
        CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelOptional,
        CelString, CelTimestamp, CelUInt,
    },
    value::Val,
};
use chrono::{DateTime, Datelike};

pub(super) type Boxed<'a> = Box<dyn Val + 'a>;

pub(super) fn of_bson(value: &Bson) -> Boxed<'_> {
    match value {
        Bson::Document(document) => of_document(document),
        Bson::Array(values) => {
            let values: Vec<Boxed<'_>> = values.iter().map(of_bson).collect();
            Box::new(CelList::from(values))
        }
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => {
            Box::new(CelString::from(text.as_str()))
        }
        Bson::JavaScriptCodeWithScope(code) => Box::new(CelString::from(code.code.as_str())),
        Bson::Int32(value) => Box::new(CelInt::from(i64::from(*value))),
        Bson::Int64(value) => Box::new(CelInt::from(*value)),
        Bson::Double(value) => Box::new(CelDouble::from(*value)),
        Bson::Boolean(value) => Box::new(CelBool::from(*value)),
        Bson::Null | Bson::Undefined | Bson::DbPointer(_) => Box::new(CelNull),
        Bson::DateTime(date) => of_date(*date),
        Bson::ObjectId(id) => text(id.to_hex()),
        Bson::Binary(binary) => of_binary(binary),
        Bson::Decimal128(value) => text(value.to_string()),
        Bson::Timestamp(stamp) => {
            let part = |name, value: u32| {
                let value: Boxed<'_> = Box::new(CelInt::from(i64::from(value)));
                (CelMapKey::String(CelString::from(name)), value)
            };
            let parts = HashMap::from([part("t", stamp.time), part("i", stamp.increment)]);
            Box::new(CelMap::from(parts))
        }
        Bson::RegularExpression(regex) => text(format!("/{}/{}", regex.pattern, regex.options)),
        Bson::MinKey => text("MinKey".to_owned()),
        Bson::MaxKey => text("MaxKey".to_owned()),
    }
}

pub(super) fn of_document(document: &Document) -> Boxed<'_> {
    let entries = document.iter();
    let entries: HashMap<CelMapKey<'_>, Boxed<'_>> = entries
        .map(|(key, value)| (key_of(key), of_bson(value)))
        .collect();
    Box::new(CelMap::from(entries))
}

fn key_of(key: &str) -> CelMapKey<'_> {
    CelMapKey::String(CelString::from(key))
}

fn text<'a>(text: String) -> Boxed<'a> {
    Box::new(CelString::from(text))
}

fn of_date<'a>(date: bson::DateTime) -> Boxed<'a> {
    let millis = date.timestamp_millis();
    match DateTime::from_timestamp_millis(millis) {
        Some(date) if (1..=9999).contains(&date.year()) => {
            Box::new(CelTimestamp::from(date.fixed_offset()))
        }
        _ => Box::new(CelInt::from(millis)),
    }
}

fn of_binary(binary: &Binary) -> Boxed<'_> {
    match (binary.subtype, binary.to_uuid()) {
        (BinarySubtype::Uuid, Ok(uuid)) => text(uuid.to_string()),
        _ => Box::new(CelBytes::from(&binary.bytes[..])),
    }
}

pub(super) fn to_bson(value: &dyn Val) -> Result<Bson, String> {
    if let Some(value) = scalar(value) {
        return Ok(value);
    }
    if let Some(number) = value.downcast_ref::<CelUInt>() {
        let number = *number.inner();
        return match i64::try_from(number) {
            Ok(number) => Ok(number.into()),
            Err(_) => Err(format!("{number} is too large for an int64")),
        };
    }
    if let Some(list) = value.downcast_ref::<CelList<'_>>() {
        let values: Result<_, _> = list.inner().iter().map(|value| to_bson(&**value)).collect();
        return values.map(Bson::Array);
    }
    if let Some(map) = value.downcast_ref::<CelMap<'_>>() {
        return document(map).map(Bson::Document);
    }
    if let Some(optional) = value.downcast_ref::<CelOptional<'_>>() {
        return optional.inner().map_or(Ok(Bson::Null), to_bson);
    }
    let kind = value.get_type().name().rsplit('.').next();
    let kind = kind.unwrap_or_default().to_lowercase();
    Err(format!(
        "a {kind} cannot be published; make a text of it: string(…)"
    ))
}

fn scalar(value: &dyn Val) -> Option<Bson> {
    if let Some(text) = value.downcast_ref::<CelString<'_>>() {
        Some(text.inner().into())
    } else if let Some(value) = value.downcast_ref::<CelInt>() {
        Some((*value.inner()).into())
    } else if let Some(value) = value.downcast_ref::<CelBool>() {
        Some((*value.inner()).into())
    } else if let Some(value) = value.downcast_ref::<CelDouble>() {
        Some((*value.inner()).into())
    } else if let Some(bytes) = value.downcast_ref::<CelBytes<'_>>() {
        let (subtype, bytes) = (BinarySubtype::Generic, bytes.inner().to_vec());
        Some(Binary { subtype, bytes }.into())
    } else if let Some(date) = value.downcast_ref::<CelTimestamp>() {
        Some(bson::DateTime::from_millis(date.inner().timestamp_millis()).into())
    } else {
        value.downcast_ref::<CelNull>().map(|_| Bson::Null)
    }
}

/// The order of a map is another one in every process; a repeated message has to be the same one.
fn document(map: &CelMap<'_>) -> Result<Document, String> {
    let mut entries: Vec<(String, &Boxed<'_>)> = map
        .inner()
        .iter()
        .map(|(key, value)| (name(key), value))
        .collect();
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    entries
        .into_iter()
        .map(|(key, value)| Ok((key, to_bson(&**value)?)))
        .collect()
}

fn name(key: &CelMapKey<'_>) -> String {
    match key {
        CelMapKey::String(text) => text.inner().to_owned(),
        CelMapKey::Int(number) => number.inner().to_string(),
        CelMapKey::UInt(number) => number.inner().to_string(),
        CelMapKey::Bool(value) => value.inner().to_string(),
    }
}
