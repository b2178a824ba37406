//! What a request carries: messages as JSON, our own or that of CloudEvents, or one message as it is.

use base64::{Engine, engine::general_purpose::STANDARD};
use bson::Bson;
use serde::Serialize;

use super::signature::{escaped, id};
use crate::{
    label::{BoxError, Encoding},
    sinks::{Message, lines::rfc3339},
};

const JSON: &str = "application/json";

/// In which form messages are sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Form {
    /// One message a request.
    pub(super) is_single: bool,
    /// As CloudEvents.
    pub(super) is_cloud: bool,
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) media_type: &'static str,
    /// How many messages it carries.
    pub(super) count: usize,
}

impl Form {
    /// Those of the messages, from the first on and at least that one, that fit into a request of `most` bytes. What an
    /// operator sends again does not go with what is new: one header tells of all.
    pub(super) fn content(self, messages: &[Message], most: usize) -> Result<Content, BoxError> {
        match (self.is_single, messages) {
            (true, [message, ..]) => self.single(message),
            _ => self.several(messages, most),
        }
    }

    fn single(self, message: &Message) -> Result<Content, BoxError> {
        let (bytes, media_type) = match self.is_cloud {
            true => (cloud(message)?, "application/cloudevents+json"),
            false => (message.body().to_vec(), message.content_type()),
        };
        Ok(Content {
            bytes,
            media_type,
            count: 1,
        })
    }

    fn several(self, messages: &[Message], most: usize) -> Result<Content, BoxError> {
        let mut bytes = vec![b'['];
        let mut count = 0;
        let alike = messages
            .chunk_by(|a, b| a.is_replay() == b.is_replay())
            .next();
        for message in alike.unwrap_or_default() {
            let object = match self.is_cloud {
                true => cloud(message)?,
                false => plain(message)?,
            };
            // With a comma or the bracket at the end.
            if count > 0 && bytes.len() + object.len() + 2 > most {
                break;
            }
            if count > 0 {
                bytes.push(b',');
            }
            bytes.extend(object);
            count += 1;
        }
        bytes.push(b']');
        let media_type = match self.is_cloud {
            true => "application/cloudevents-batch+json",
            false => JSON,
        };
        Ok(Content {
            bytes,
            media_type,
            count,
        })
    }
}

/// What is said of a message beside a body that is sent as it is.
pub(super) fn headers(message: &Message) -> Result<Vec<(&'static str, String)>, BoxError> {
    let entity = String::from_utf8(Encoding::Json.encode(message.entity())?)?;
    let mut headers = vec![
        ("toa-row", escaped(message.row())),
        ("toa-label", escaped(message.label())),
        ("toa-component", escaped(message.component())),
        ("toa-entity", escaped(&entity)),
    ];
    headers.extend(time(message).map(|time| ("toa-time", time)));
    Ok(headers)
}

pub(super) fn delivery(message: &Message) -> &'static str {
    if message.is_replay() {
        "replay"
    } else {
        "live"
    }
}

fn plain(message: &Message) -> Result<Vec<u8>, BoxError> {
    let mut object = Object::default();
    object.add("id", id(message))?;
    object.add("row", message.row())?;
    object.add("label", message.label())?;
    object.add("component", message.component())?;
    object.add_json("entity", &Encoding::Json.encode(message.entity())?);
    object.add("time", time(message))?;
    object.add("attempt", message.attempt())?;
    object.add("content_type", message.content_type())?;
    object.add_body(message)?;
    Ok(object.end())
}

fn cloud(message: &Message) -> Result<Vec<u8>, BoxError> {
    let mut object = Object::default();
    object.add("specversion", "1.0")?;
    object.add("id", id(message))?;
    object.add("source", escaped(message.component()))?;
    let kind = format!("{}.{}", message.component(), message.label());
    object.add("type", kind)?;
    if let Some(subject) = subject(message)? {
        object.add("subject", subject)?;
    }
    if let Some(time) = time(message) {
        object.add("time", time)?;
    }
    object.add("toarow", message.row())?;
    object.add("toalabel", message.label())?;
    object.add("toaattempt", message.attempt())?;
    object.add("toadelivery", delivery(message))?;
    object.add("datacontenttype", message.content_type())?;
    object.add_body(message)?;
    Ok(object.end())
}

/// The entity's id as text; an attribute that is empty or null may not be there.
fn subject(message: &Message) -> Result<Option<String>, BoxError> {
    let json = match message.entity() {
        Bson::Null | Bson::Undefined => return Ok(None),
        entity => Encoding::Json.encode(entity)?,
    };
    let text = match serde_json::from_slice::<serde_json::Value>(&json)? {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn time(message: &Message) -> Option<String> {
    message.time().and_then(rfc3339)
}

/// A JSON object, written field by field, since a body that is JSON is taken as it is.
#[derive(Default)]
struct Object(Vec<u8>);

impl Object {
    fn add(&mut self, name: &str, value: impl Serialize) -> Result<(), BoxError> {
        self.name(name);
        Ok(serde_json::to_writer(&mut self.0, &value)?)
    }

    fn add_json(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.0.extend(json);
    }

    /// As `data` where it is JSON, else in base64 as `data_base64`.
    fn add_body(&mut self, message: &Message) -> Result<(), BoxError> {
        match message.content_type() == JSON {
            true => self.add_json("data", message.body()),
            false => self.add("data_base64", STANDARD.encode(message.body()))?,
        }
        Ok(())
    }

    fn name(&mut self, name: &str) {
        let before = if self.0.is_empty() { '{' } else { ',' };
        self.0.extend(format!("{before}\"{name}\":").bytes());
    }

    fn end(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sinks::samples::{message, message_of};

    const MOST: usize = 1024;

    fn form(is_single: bool, is_cloud: bool) -> Form {
        Form {
            is_single,
            is_cloud,
        }
    }

    fn read(content: &Content) -> Value {
        serde_json::from_slice(&content.bytes).unwrap()
    }

    #[test]
    fn a_batch_is_an_array_of_objects_even_of_one() {
        let content = form(false, false).content(&[message("a", r#"{"x":1}"#)], MOST);
        let content = content.unwrap();
        assert_eq!((content.media_type, content.count), ("application/json", 1));
        let expected = json!([{
            "id": "a.created", "row": "a", "label": "created", "component": "tea.pots", "entity": 7,
            "time": "2026-01-02T03:04:05Z", "attempt": 1, "content_type": "application/json", "data": { "x": 1 },
        }]);
        assert_eq!(read(&content), expected);
    }

    #[test]
    fn events_are_those_of_the_specification() {
        let messages = [message("a", r#"{"x":1}"#), message("b", "[]")];
        let content = form(false, true).content(&messages, MOST).unwrap();
        assert_eq!(content.media_type, "application/cloudevents-batch+json");
        let event = |row: &str, data: Value| {
            json!({
                "specversion": "1.0", "id": format!("{row}.created"), "source": "tea.pots", "type": "tea.pots.created",
                "subject": "7", "time": "2026-01-02T03:04:05Z", "toarow": row, "toalabel": "created", "toaattempt": 1,
                "toadelivery": "live", "datacontenttype": "application/json", "data": data,
            })
        };
        let (a, b) = (event("a", json!({ "x": 1 })), event("b", json!([])));
        assert_eq!(read(&content), json!([a, b]));
        let content = form(true, true).content(&messages, MOST).unwrap();
        let (media_type, count) = (content.media_type, content.count);
        assert_eq!((media_type, count), ("application/cloudevents+json", 1));
        assert_eq!(read(&content), a);
    }

    #[test]
    fn what_is_no_json_is_carried_in_base64() {
        for content_type in ["application/msgpack", "application/bson"] {
            let messages = [message_of("a", &[0, 255], content_type)];
            for (is_cloud, name) in [(true, "datacontenttype"), (false, "content_type")] {
                let object = &read(&form(false, is_cloud).content(&messages, MOST).unwrap())[0];
                assert_eq!(object[name], content_type);
                assert_eq!(
                    (&object["data_base64"], object.get("data")),
                    (&json!("AP8="), None)
                );
            }
        }
    }

    #[test]
    fn a_message_of_its_own_request_is_sent_as_it_is() {
        let messages = [
            message_of("a b", &[0, 255], "application/bson"),
            message("b", "[]"),
        ];
        let content = form(true, false).content(&messages, MOST).unwrap();
        assert_eq!((&*content.bytes, content.count), (&[0, 255][..], 1));
        assert_eq!(content.media_type, "application/bson");
        let headers = headers(&messages[0]).unwrap();
        assert!(
            headers.contains(&("toa-row", "a%20b".into())),
            "{headers:?}"
        );
        assert!(headers.contains(&("toa-entity", "7".into())), "{headers:?}");
    }

    #[test]
    fn nothing_is_said_of_what_nobody_knows() {
        let mut unknown = message("a", "{}");
        (unknown.entity, unknown.time) = (Bson::Null, None);
        let event = &read(&form(false, true).content(&[unknown], MOST).unwrap())[0];
        assert_eq!((event.get("subject"), event.get("time")), (None, None));
    }

    #[test]
    fn as_many_go_together_as_there_is_room_for() {
        let messages = vec![message("a", &format!("\"{}\"", "x".repeat(200))); 10];
        let all = form(false, false).content(&messages, usize::MAX).unwrap();
        assert_eq!(all.count, 10);
        for most in 0..=all.bytes.len() {
            let content = form(false, false).content(&messages, most).unwrap();
            let next = content.bytes.len() + (all.bytes.len() - 1) / 10;
            assert!(content.bytes.len() <= most || content.count == 1);
            assert!(content.count == 10 || next > most, "{most}");
            assert_eq!(read(&content).as_array().unwrap().len(), content.count);
        }
    }

    #[test]
    fn what_is_sent_again_does_not_go_with_what_is_new() {
        let mut messages = vec![message("a", "1"); 5];
        messages[3].is_replay = true;
        for (from, count) in [(0, 3), (3, 1), (4, 1)] {
            let content = form(false, false).content(&messages[from..], MOST * 10);
            assert_eq!(content.unwrap().count, count);
        }
    }
}
