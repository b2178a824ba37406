//! Arguments that are more than words.

use std::time::Duration;

use bson::{DateTime, Document};

use crate::{Error, config::masked, row::now};

/// An argument that cannot be used. It may be a connection string in the wrong place.
pub(super) fn refuse(name: &str, value: &str, expected: impl Into<String>) -> Error {
    Error::Setting {
        name: name.to_owned(),
        origin: "command line".into(),
        value: masked(value),
        expected: expected.into(),
    }
}

/// A span such as `90s`, `5m`, `2h`, `1d` or `500ms`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let expected = || format!("expected a number and ms, s, m, h or d, such as 5m, not {text:?}");
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(expected()),
    };
    let millis = number
        .checked_mul(millis)
        .filter(|&millis| millis <= i64::MAX as u64);
    millis.map(Duration::from_millis).ok_or_else(expected)
}

/// A moment: as RFC 3339 has it, or a span before now.
pub(super) fn moment(text: &str) -> Result<DateTime, String> {
    if let Ok(span) = span(text) {
        let ago = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        return Ok(DateTime::from_millis(now().saturating_sub(ago)));
    }
    DateTime::parse_rfc3339_str(text).map_err(|_| {
        format!("expected a time such as 2026-01-31T09:00:00Z, or how long ago it is, such as 2h, not {text:?}")
    })
}

/// A filter as the shell of MongoDB takes it, in Extended JSON.
pub(super) fn filter(text: &str) -> Result<Document, String> {
    let expected = |problem: String| {
        format!(
            "expected a MongoDB filter as JSON, such as '{{\"event.state.material\": \"clay\"}}': {problem}"
        )
    };
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(map)) => {
            Document::try_from(map).map_err(|error| expected(error.to_string()))
        }
        Ok(_) => Err(expected("this is no object".into())),
        Err(error) => Err(expected(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn spans_are_read() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86_400)] {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)));
        }
        for text in [
            "",
            "5",
            "m",
            "-5m",
            "5 m",
            "1.5h",
            "99999999999999999999d",
            "9999999999999999d",
        ] {
            assert!(span(text).unwrap_err().contains("such as 5m"), "{text}");
        }
    }

    #[test]
    fn moments_are_times_or_spans_before_now() {
        let time = "2026-01-31T09:00:00Z";
        assert_eq!(moment(time).unwrap().try_to_rfc3339_string().unwrap(), time);
        let hour = now() - moment("1h").unwrap().timestamp_millis();
        assert!((3_600_000..3_660_000).contains(&hour), "{hour}");
        assert!(moment("yesterday").unwrap_err().contains("such as 2h"));
    }

    #[test]
    fn filters_are_extended_json() {
        let id = bson::oid::ObjectId::new();
        let text = format!(r#"{{"_id": {{"$oid": "{id}"}}, "lane": {{"$gt": 5}}}}"#);
        assert_eq!(filter(&text), Ok(doc! { "_id": id, "lane": { "$gt": 5 } }));
        for text in ["", "[]", "{lane: 5}", r#"{"_id": {"$oid": "x"}}"#] {
            assert!(
                filter(text)
                    .unwrap_err()
                    .starts_with("expected a MongoDB filter"),
                "{text}"
            );
        }
    }
}
