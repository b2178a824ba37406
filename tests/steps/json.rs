//! Values as features write them: JSON, extended where types matter.

use bson::{Bson, Document};
use serde_json::Value;

use crate::support::Delivery;

pub fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text} is no JSON: {error}"))
}

pub fn bson(text: &str) -> Bson {
    value(text)
        .try_into()
        .unwrap_or_else(|error| panic!("{text} is no BSON: {error}"))
}

pub fn document(text: &str) -> Document {
    match bson(text) {
        Bson::Document(document) => document,
        other => panic!("{other} is no document"),
    }
}

/// Where a step may say nothing.
pub fn or_null(text: &str) -> Bson {
    if text.is_empty() {
        Bson::Null
    } else {
        bson(text)
    }
}

pub fn or_empty(text: &str) -> Document {
    if text.is_empty() {
        Document::new()
    } else {
        document(text)
    }
}

/// A stored document as a feature would write it, numbers without their types.
pub fn plain(document: Document) -> Value {
    Bson::Document(document).into_relaxed_extjson()
}

/// A message's body by its content type; BSON with its types.
pub fn body(delivery: &Delivery) -> Result<Value, String> {
    let kind = delivery.properties.content_type().as_ref();
    let body = delivery.body.as_slice();
    match kind.map_or("", |kind| kind.as_str()) {
        "application/json" => serde_json::from_slice(body).map_err(|error| error.to_string()),
        "application/msgpack" => rmp_serde::from_slice(body).map_err(|error| error.to_string()),
        "application/bson" => {
            let document = Document::from_reader(body).map_err(|error| error.to_string())?;
            Ok(Bson::Document(document).into_canonical_extjson())
        }
        other => Err(format!("content type {other:?}")),
    }
}
