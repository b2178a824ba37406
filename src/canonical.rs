//! What is written as bytes that are the same whoever wrote it, in whatever language and order of fields.
//!
//! How that is stands where users read it, in [`Component::integrity`](crate::Component::integrity); what becomes of one event, in the
//! tests below.

use bson::{Bson, Document, JavaScriptCodeWithScope, RawDocumentBuf, doc};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN};

use crate::row::Event;

/// A SHA-256.
pub(crate) type Digest = [u8; SHA256_OUTPUT_LEN];

/// What differs for two events exactly where they are not the same.
///
/// # Errors
///
/// What BSON cannot hold, such as a key with a null character.
pub(crate) fn event(event: &Event) -> Result<Vec<u8>, bson::error::Error> {
    document(&doc! {
        "input": &event.input,
        "origin": event.origin.as_ref(),
        "state": &event.state,
        "trailers": &event.trailers,
    })
}

/// That of the document `{ value }`, since a value by itself has no BSON.
pub(crate) fn value(value: &Bson) -> Result<Vec<u8>, bson::error::Error> {
    document(&doc! { "value": value })
}

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    let mut digest = Digest::default();
    digest.copy_from_slice(ring::digest::digest(&SHA256, bytes).as_ref());
    digest
}

fn document(document: &Document) -> Result<Vec<u8>, bson::error::Error> {
    RawDocumentBuf::try_from(&sorted(document)).map(RawDocumentBuf::into_bytes)
}

fn sorted(document: &Document) -> Document {
    let mut fields: Vec<(&String, &Bson)> = document.iter().collect();
    fields.sort_unstable_by_key(|(name, _)| *name);
    fields
        .into_iter()
        .map(|(name, value)| (name.clone(), sorted_value(value)))
        .collect()
}

fn sorted_value(value: &Bson) -> Bson {
    match value {
        Bson::Document(document) => sorted(document).into(),
        Bson::Array(values) => values.iter().map(sorted_value).collect(),
        Bson::JavaScriptCodeWithScope(code) => JavaScriptCodeWithScope {
            code: code.code.clone(),
            scope: sorted(&code.scope),
        }
        .into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn same(one: &Event, other: &Event) -> bool {
        event(one).unwrap() == event(other).unwrap()
    }

    /// So that what is stored today is read tomorrow, and other languages have something to compare with.
    #[test]
    fn the_digest_is_what_it_has_always_been() {
        let pot = doc! { "_id": 1, "material": "clay", "b": [2_i64, doc! { "z": 0.5, "a": null }], "é": true };
        let bytes = event(&Event::created(pot).input("in")).unwrap();
        assert_eq!(hex(&bytes), GOLDEN_BYTES,);
        assert_eq!(hex(&digest(&bytes)), GOLDEN_DIGEST);
        let shown = Event::created(doc! { "_id": 1, "material": "clay" }).input("in");
        let shown = hex(&digest(&event(&shown).unwrap()));
        assert!(include_str!("component.rs").contains(&shown), "{shown}");
    }

    const GOLDEN_BYTES: &str = "7b00000002696e7075740003000000696e000a6f726967696e00037374617465004f000000105f69640001000000046200260000001230000200000000000000033100130000000a6100017a00000000000000e03f0000026d6174657269616c0005000000636c61790008c3a90001000a747261696c6572730000";
    const GOLDEN_DIGEST: &str = "dc7924dd141cb1016aa8798400a50ffb68adf307e455512de1449c76922e7f53";

    #[test]
    fn an_event_is_the_same_whatever_the_order_of_its_fields() {
        let scope = |scope| {
            let code = "f".to_owned();
            Bson::from(JavaScriptCodeWithScope { code, scope })
        };
        let one = Event::created(
            doc! { "a": 1, "b": { "c": f64::NAN, "d": [1, doc! { "e": 1, "f": 2 }] } },
        );
        let other = Event::created(
            doc! { "b": { "d": [1, doc! { "f": 2, "e": 1 }], "c": f64::NAN }, "a": 1 },
        );
        assert!(same(&one, &other));
        let one = one.input(scope(doc! { "a": 1, "b": 2 }));
        assert!(same(&one, &other.input(scope(doc! { "b": 2, "a": 1 }))));
    }

    #[test]
    fn and_another_where_anything_differs() {
        let event = || Event::created(doc! { "a": 1, "b": [1, 2], "c": 0.0 });
        for other in [
            Event::created(doc! { "a": 1, "c": 0.0 }),
            Event::created(doc! { "a": 1, "b": [1, 2], "c": 0.0, "d": 1 }),
            Event::created(doc! { "a": 1, "b": [2, 1], "c": 0.0 }),
            Event::created(doc! { "a": 1, "b": [1], "c": 0.0 }),
            Event::created(doc! { "a": 1_i64, "b": [1, 2], "c": 0.0 }),
            Event::created(doc! { "a": 1, "b": [1, 2], "c": -0.0 }),
            Event::created(doc! { "a": 1, "b": { "0": 1, "1": 2 }, "c": 0.0 }),
            event().input(1),
            event().trailers(doc! {}),
            Event::changed(doc! {}, event().state),
        ] {
            assert!(!same(&event(), &other), "{other:?}");
        }
    }

    /// Documents of documents and arrays, a few levels deep.
    fn documents() -> impl Strategy<Value = Document> {
        let leaf = prop_oneof![
            any::<i32>().prop_map(Bson::from),
            any::<i64>().prop_map(Bson::from),
            any::<f64>().prop_map(Bson::from),
            ".{0,3}".prop_map(Bson::from),
            Just(Bson::Null),
        ];
        let fields = |value| collection::btree_map("[a-zé]{1,3}", value, 0..5);
        let value = leaf.prop_recursive(3, 30, 5, move |value| {
            prop_oneof![
                collection::vec(value.clone(), 0..4).prop_map(Bson::from),
                fields(value).prop_map(|fields| Document::from_iter(fields).into()),
            ]
        });
        fields(value.boxed()).prop_map(Document::from_iter)
    }

    fn reversed(value: Bson) -> Bson {
        match value {
            Bson::Document(document) => {
                let fields = document
                    .into_iter()
                    .map(|(name, value)| (name, reversed(value)));
                let fields: Vec<_> = fields.collect();
                Document::from_iter(fields.into_iter().rev()).into()
            }
            Bson::Array(values) => values.into_iter().map(reversed).collect(),
            other => other,
        }
    }

    proptest! {
        #[test]
        fn what_is_stored_has_the_digest_of_what_was_written(document in documents()) {
            let written = value(&document.clone().into()).unwrap();
            let stored = RawDocumentBuf::try_from(&document).unwrap();
            let stored = Document::try_from(stored).unwrap();
            prop_assert_eq!(&written, &value(&stored.into()).unwrap());
            prop_assert_eq!(&written, &value(&reversed(document.into())).unwrap());
        }
    }

    #[test]
    fn what_bson_cannot_hold_has_none() {
        assert!(event(&Event::created(doc! { "a\0b": 1 })).is_err());
    }
}
