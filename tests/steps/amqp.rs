//! Exchanges and properties, as the broker and the consumer see them.

use cucumber::{gherkin::Step, given, then, when};
use lapin::{
    BasicProperties, ExchangeKind,
    options::{ExchangeDeclareOptions, ExchangeDeleteOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::Value;

use super::{consumer::channel, json, row::row, world::Tea};

async fn declare(name: &str, kind: ExchangeKind, passive: bool) -> Result<(), lapin::Error> {
    let options = ExchangeDeclareOptions {
        durable: true,
        passive,
        ..Default::default()
    };
    channel()
        .await
        .exchange_declare(name.into(), kind, options, FieldTable::default())
        .await
}

/// The broker refuses to declare an exchange anew that is not the same.
#[then(regex = r#"^"(\S+)" is a durable fanout exchange without arguments$"#)]
async fn is_fanout(w: &mut Tea, name: String) {
    let name = w.local(&name);
    declare(&name, ExchangeKind::Fanout, true)
        .await
        .expect("it exists");
    declare(&name, ExchangeKind::Fanout, false)
        .await
        .expect("it is the same");
}

#[given(regex = r#"^someone has declared "(\S+)" as a direct exchange$"#)]
async fn is_direct(w: &mut Tea, name: String) {
    declare(&w.local(&name), ExchangeKind::Direct, false)
        .await
        .unwrap();
}

#[when(regex = r#"^someone deletes the exchange "(\S+)"$"#)]
async fn delete(w: &mut Tea, name: String) {
    let name = w.local(&name);
    let options = ExchangeDeleteOptions::default();
    channel()
        .await
        .exchange_delete(name.as_str().into(), options)
        .await
        .unwrap();
}

#[then("it has these properties:")]
async fn properties(w: &mut Tea, step: &Step) {
    let delivery = w.delivery.clone().expect("a message");
    for line in &step.table.as_ref().expect("a table").rows {
        let found = property(&delivery.properties, &line[0]);
        match line[1].as_str() {
            "the second in which it was written" => {
                let second: i64 = found.expect("a timestamp").parse().unwrap();
                assert!(
                    (w.written.0 / 1000..=w.written.1 / 1000).contains(&second),
                    "{second}"
                );
            }
            text if text.starts_with("the id of the row") => {
                let row = row(w, &w.pot).await.expect("a row");
                let id = row.get("_id").and_then(|id| match id {
                    bson::Bson::Binary(binary) => binary.to_uuid().ok(),
                    _ => None,
                });
                assert_eq!(found, id.map(|id| id.to_string()));
            }
            "tea.pots" => assert_eq!(found, Some(w.local("tea.pots"))),
            text if text.starts_with('{') => {
                let found = found.map(|text| json::value(&text));
                assert_eq!(found, Some(json::value(text)), "{}", line[0]);
            }
            text => assert_eq!(found.as_deref(), Some(text), "{}", line[0]),
        }
    }
}

fn property(of: &BasicProperties, name: &str) -> Option<String> {
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().map(ToString::to_string);
    match name {
        "message_id" => text(of.message_id()),
        "type" => text(of.kind()),
        "app_id" => text(of.app_id()),
        "content_type" => text(of.content_type()),
        "timestamp" => of.timestamp().map(|second| second.to_string()),
        "delivery_mode" => of.delivery_mode().map(|mode| mode.to_string()),
        "headers" => of
            .headers()
            .as_ref()
            .map(|headers| shown(headers).to_string()),
        other => panic!("no property {other}"),
    }
}

fn shown(headers: &FieldTable) -> Value {
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => Value::from(text.to_string()),
        other => panic!("{other:?}"),
    };
    headers
        .inner()
        .iter()
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}
