//! What expressions make of events, and which are refused.

use bson::{Binary, DateTime, Document, Timestamp, doc, oid::ObjectId, spec::BinarySubtype};

use super::*;

fn event() -> Event {
    let origin = doc! { "temperature": 20, "tags": ["new"] };
    let state = doc! {
        "_id": ObjectId::from_bytes([1; 12]),
        "uuid": bson::Uuid::from_bytes([2; 16]),
        "bytes": Binary { subtype: BinarySubtype::Generic, bytes: vec![0, 255] },
        "at": DateTime::from_millis(1_700_000_000_123),
        "far": DateTime::from_millis(i64::MAX),
        "temperature": 100,
        "big": i64::MAX,
        "half": 0.5,
        "price": "9.99".parse::<bson::Decimal128>().unwrap(),
        "stamp": Timestamp { time: 7, increment: 8 },
        "empty": null,
        "tags": ["hot", "new"],
        "cups": [{ "size": 1 }, { "size": 3 }],
        "z": { "y": { "x": 1 }, "a": 2 },
    };
    Event::changed(origin, state)
        .input("boil")
        .trailers(doc! { "by": "me" })
}

fn holds(text: &str) -> Result<bool, String> {
    let condition = condition(text)?;
    condition(&event()).map_err(|error| error.to_string())
}

fn made(text: &str) -> Result<Bson, String> {
    let payload = payload(text)?;
    payload(&event()).map_err(|error| error.to_string())
}

#[test]
fn conditions_see_the_whole_event() {
    for text in [
        "origin != null && state.temperature >= 100 && origin.temperature < 100",
        "input == 'boil' && trailers.by == \"me\"",
        "has(state.temperature) && !has(state.volume)",
        "state._id == '010101010101010101010101'",
        "state.uuid == '02020202-0202-0202-0202-020202020202'",
        "size(state.bytes) == 2",
        "state.at > timestamp('2023-11-14T00:00:00Z') && state.at.getFullYear() == 2023",
        "state.at - timestamp('2023-11-14T22:13:20Z') < duration('1s')",
        "state.far == 9223372036854775807 && state.big == state.far",
        "double(state.price) > 9.5 && state.half < 1",
        "state.stamp.t == 7",
        "state.empty == null",
        "state.tags == ['hot', 'new'] && 'hot' in state.tags && state.tags[0] == 'hot'",
        "state.cups.exists(cup, cup.size > 2) && state.cups.map(cup, cup.size) == [1, 3]",
        "state.cups.filter(state, state.size > 2).size() == 1",
        "state.z.y.x == 1 && state['z']['a'] == 2",
        "state.?volume.orValue(3) == 3 && optional.none().orValue(true)",
        "type(state.temperature) == int",
        "state.tags.all(tag, tag.matches('^[a-z]+$'))",
        "false || state.temperature > origin.temperature",
    ] {
        assert_eq!(holds(text), Ok(true), "{text}");
    }
}

#[test]
fn what_is_missing_is_an_error_and_null_is_not() {
    for (text, says) in [
        ("state.volume > 1", "when: No such key: volume"),
        ("state.z.b == 1", "No such key: b"),
        ("state.empty.x == 1", "no matching overload"),
        ("state.temperature", "compare it"),
        ("state.temperature > 'hot'", "no matching overload"),
        ("state.tags[7] == ''", "out of bounds"),
    ] {
        let said = holds(text).unwrap_err();
        assert!(said.contains(says), "{text}: {said}");
    }
    let created = Event::created(doc! { "temperature": 1 });
    let careful = condition("origin != null && origin.temperature > 0").unwrap();
    assert!(!careful(&created).unwrap());
    assert!(condition("origin.temperature > 0").unwrap()(&created).is_err());
}

#[test]
fn plain_paths_keep_their_types_and_their_order() {
    let Event { state, origin, .. } = event();
    let whole = made("state").unwrap();
    assert_eq!(whole, state.clone().into());
    assert_eq!(made("origin"), Ok(origin.into()));
    let shaped = made(
        "{'id': state._id, 'p': state.price, 'a': [state.uuid, has(state.volume) ? state.volume : state.z]}",
    );
    let expected = doc! {
        "id": state.get("_id"),
        "p": state.get("price"),
        "a": [state.get("uuid"), state.get("z")],
    };
    assert_eq!(shaped, Ok(expected.into()));
}

#[test]
fn what_is_computed_becomes_bson_again() {
    for (text, expected) in [
        ("state.temperature + 1", Bson::Int64(101)),
        ("7u", Bson::Int64(7)),
        ("state.half * 3.0", Bson::Double(1.5)),
        ("'pot ' + state._id", "pot 010101010101010101010101".into()),
        (
            "b'ab'",
            Binary {
                subtype: BinarySubtype::Generic,
                bytes: b"ab".to_vec(),
            }
            .into(),
        ),
        (
            "state.at + duration('1ms')",
            DateTime::from_millis(1_700_000_000_124).into(),
        ),
        ("state.?volume", Bson::Null),
        ("state.?temperature", Bson::Int64(100)),
        ("null", Bson::Null),
        (
            "[1, 'a', true].map(each, each)",
            vec![Bson::Int64(1), "a".into(), true.into()].into(),
        ),
        (
            "[state.z][0]",
            doc! { "a": 2_i64, "y": { "x": 1_i64 } }.into(),
        ),
        (
            "[{2: 'b', true: 'c', 'a': 1}][0]",
            doc! { "2": "b", "a": 1_i64, "true": "c" }.into(),
        ),
    ] {
        assert_eq!(made(text), Ok(expected), "{text}");
    }
    for (text, says) in [
        ("duration('1s')", "a duration cannot be published"),
        ("18446744073709551615u", "too large"),
        ("state.volume", "No such key: volume"),
        ("{'a': state.volume}", "No such key: volume"),
        ("state.temperature ? 1 : 2", "true or false"),
        ("state.big + 1", "Overflow"),
        ("state.temperature / 0", "Division by zero"),
        ("{'a': 1, 'a': 2}", "repeated key"),
    ] {
        let said = made(text).unwrap_err();
        assert!(
            said.to_lowercase().contains(&says.to_lowercase()),
            "{text}: {said}"
        );
    }
}

#[test]
fn what_can_never_be_evaluated_is_refused_on_one_line() {
    for (text, says) in [
        ("", "CEL expression; line 1, column"),
        ("state.temperature >", "line 1, column"),
        ("state.\ntemperature > )", "line 2, column"),
        (
            "sate.temperature > 1",
            "no variable sate; there are origin, state",
        ),
        ("state.cups.all(cup, cap.size > 1)", "no variable cap"),
        (
            "state.tags.exists(t, t == 'a') && t == 'a'",
            "no variable t",
        ),
        ("length(state.tags) == 1", "no function length"),
        ("state.tags.length() == 1", "no function length"),
        ("state.tags.map(tag)", "no function map"),
        ("optional.off(1)", "no function off"),
        ("has(state)", "line 1"),
        ("'hot'", "true or false"),
        ("1 + 1", "true or false"),
        ("1 / 0 == 1", "by zero"),
    ] {
        let said = condition(text).map(|_| ()).unwrap_err();
        assert!(said.contains(says), "{text}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
}

/// On the small stack of a test's thread, like that of a worker.
#[test]
fn nesting_without_end_is_refused_before_the_stack_ends() {
    let nested = |open: &str, close: &str, times: usize| {
        format!("{}state.a{}", open.repeat(times), close.repeat(times))
    };
    for times in [10, 25, 30, 60, 100, 500, 2000, 100_000] {
        for text in [
            nested("(", ")", times),
            nested("[", "]", times),
            nested("{'a': ", "}", times),
            nested("!", "", times),
            nested("-", "", times),
            nested("size(", ")", times),
            nested("state.a ? 1 : ", "", times),
            nested("[1].map(x, ", ")", times.min(300)),
            nested("", ".b", times),
            nested("", "[0]", times),
            nested("", " + 1", times),
            nested("", " && true", times),
            nested("", ".f()", times),
        ] {
            if let Ok(payload) = payload(&text) {
                let _ = payload(&event());
            }
        }
    }
}

#[test]
fn long_chains_of_conditions_are_fine() {
    let text = vec!["state.temperature > 1"; 50].join(" && ");
    assert_eq!(holds(&text), Ok(true));
    assert_eq!(holds(&text.replace("&&", "||")), Ok(true));
}

#[test]
fn an_event_of_any_depth_can_be_looked_at() {
    let deep = (0..100).fold(Document::new(), |inner, _| doc! { "a": inner });
    let size = payload("size(state) + size(state.a.a.a)").unwrap();
    assert_eq!(size(&Event::created(deep)).unwrap(), Bson::Int64(2));
}
