//! Conditions and payloads of a configuration file, in the [Common Expression Language][cel].
//!
//! They see the event: `origin`, `state`, `trailers`, `input`. A payload that is a plain path, such as `state` or
//! `state._id`, carries what stands there as it is, and so do the plain paths in the map, the list and the choice
//! (`a ? b : c`) a payload is made of; their order of fields stays, too. What is computed with becomes a value of CEL
//! first, and of BSON again afterwards:
//!
//! | BSON | CEL | and back |
//! | --- | --- | --- |
//! | document | map; keys in no order | document, keys in alphabetical order; a key that is a number or a boolean becomes text |
//! | array | list | array |
//! | string, symbol, code | string | string |
//! | int32, int64 | int | int64 |
//! | | uint | int64; too large is an error |
//! | double | double | double |
//! | boolean | bool | boolean |
//! | null, undefined, DBPointer | null | null |
//! | date | timestamp; beyond the years 1–9999 an int, milliseconds since the epoch | date, in milliseconds |
//! | ObjectId | string, 24 hexadecimal digits | string |
//! | UUID (binary subtype 4) | string, hyphenated | string |
//! | other binary | bytes | binary subtype 0 |
//! | decimal128 | string; `double(state.price) > 9.5` compares it | string |
//! | timestamp | map `{'t': seconds, 'i': ordinal}` | document |
//! | regular expression | string `/pattern/options` | string |
//! | min key, max key | string | string |
//! | | optional | its value, or null |
//! | | duration, type | an error: use `string(…)` |
//!
//! **What is missing is an error**, not null, and so is a field of `origin` where `origin` is null. A label whose
//! expression fails cannot be rendered: its row waits, and the log says why. So ask first:
//!
//! ```cel
//! origin != null && has(origin.temperature) && has(state.temperature) && state.temperature > origin.temperature
//! ```
//!
//! `&&` and `||` look at their left side first. `{'at': has(state.place) ? state.place : null}` is a payload that does
//! without the field.
//!
//! Only what an expression mentions is converted: of `state.temperature` that number, not the whole of `state`.
//!
//! [cel]: https://cel.dev

mod expression;
mod payload;
mod scope;
mod value;

use bson::Bson;

use self::{expression::Expression, payload::Shape};
use super::BoxError;
use crate::row::Event;

/// A condition: true or false for every event.
///
/// # Errors
///
/// What is wrong with the text, as a phrase.
pub(crate) fn condition(
    text: &str,
) -> Result<impl Fn(&Event) -> Result<bool, BoxError> + Send + Sync + 'static, String> {
    let expression = Expression::parse(text)?;
    if let Some(value) = expression.constant()? {
        truth(&value)?;
    }
    Ok(move |event: &Event| {
        let value = expression.evaluate(event).map_err(in_field("when"))?;
        Ok(truth(&value).map_err(in_field("when"))?)
    })
}

/// A payload: any value for every event.
///
/// # Errors
///
/// What is wrong with the text, as a phrase.
pub(crate) fn payload(
    text: &str,
) -> Result<impl Fn(&Event) -> Result<Bson, BoxError> + Send + Sync + 'static, String> {
    let expression = Expression::parse(text)?;
    expression.constant()?;
    let shape = Shape::of(expression);
    Ok(move |event: &Event| Ok(shape.fill(event).map_err(in_field("payload"))?))
}

fn truth(value: &Bson) -> Result<bool, String> {
    match value {
        Bson::Boolean(value) => Ok(*value),
        other => Err(format!(
            "expected true or false, the expression makes {:?}; compare it with something",
            other.element_type()
        )),
    }
}

fn in_field(field: &'static str) -> impl Fn(String) -> String {
    move |problem| format!("{field}: {problem}")
}

#[cfg(test)]
mod tests;
