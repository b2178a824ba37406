//! Messages as lines of JSON.

use base64::{Engine, engine::general_purpose::STANDARD};
use bson::DateTime;
use serde_json::Value;

use super::Message;
use crate::label::{BoxError, Encoding};

/// One a message, each with its line break.
pub(super) fn lines(batch: &[Message]) -> Result<Vec<u8>, BoxError> {
    let mut lines = Vec::new();
    for message in batch {
        line(message, &mut lines)?;
    }
    Ok(lines)
}

/// Field by field, since a body that is JSON is taken as it is.
fn line(message: &Message, to: &mut Vec<u8>) -> Result<(), BoxError> {
    let time = message
        .time()
        .and_then(rfc3339)
        .map_or(Value::Null, Value::from);
    for (name, value) in [
        ("{\"row\":", Value::from(message.row())),
        (",\"label\":", message.label().into()),
        (",\"component\":", message.component().into()),
        (",\"time\":", time),
    ] {
        to.extend(name.as_bytes());
        serde_json::to_writer(&mut *to, &value)?;
    }
    to.extend(b",\"entity\":");
    to.extend(Encoding::Json.encode(message.entity())?);
    to.extend(b",\"body\":");
    match message.content_type() == Encoding::Json.content_type() {
        true => to.extend(message.body()),
        false => to.extend(format!("\"{}\"", STANDARD.encode(message.body())).as_bytes()),
    }
    to.extend(b"}\n");
    Ok(())
}

/// A time in seconds since the epoch as text.
pub(super) fn rfc3339(seconds: u64) -> Option<String> {
    let millis = i64::try_from(seconds).ok()?.checked_mul(1000)?;
    DateTime::from_millis(millis).try_to_rfc3339_string().ok()
}
