//! `show`: one row, and the messages it renders to.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use bson::{Bson, Document, RawDocument};
use clap::Args;
use serde_json::{Value, json};

use super::{
    failure::{Failure, Outcome},
    options::Options,
    output::Output,
    target::{Aim, Target},
};
use crate::{
    clock::Term,
    config::masked,
    routes::Rendering,
    row::Row,
    sinks::Message,
    store::{
        deliveries::retrying,
        inspect::{Glance, ids},
    },
};

/// Show a row and the messages it renders to. Nothing is sent.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox show 0190163d-8694-739b-8f0c-1d3a9d2b6c11")]
pub(super) struct Show {
    /// Its _id as `list` prints it; a UUID without its hyphens too
    id: String,
    #[command(flatten)]
    target: Target,
}

impl Show {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.target.aims(&configuration, &database).await?;
        let mut output = Output::new(options.json);
        let wanted = ids(&self.id);
        let mut is_found = false;
        for aim in &aims {
            for row in aim.store.with_ids(&wanted).await? {
                is_found = true;
                match output.is_json {
                    true => output.json(&as_json(aim, &row))?,
                    false => tell(aim, &row, &mut output)?,
                }
            }
        }
        match is_found {
            true => Ok(output.flush()?),
            false => Err(Failure::Because(format!(
                "no row {} in {} of {} components; a published row is kept for the retention only",
                masked(&self.id),
                database.name(),
                aims.len()
            ))),
        }
    }
}

/// What a label makes of a row.
enum Made {
    Message(Box<Message>),
    /// Its condition does not hold.
    Nothing,
    /// It cannot be rendered.
    Failed(String),
}

fn make(aim: &Aim, row: &Row, rendering: &Rendering) -> Made {
    match rendering.label.render(&row.event, aim.routes.encoding) {
        Ok(Some(body)) => Made::Message(Box::new(rendering.message(row, body, &Term::Endless))),
        Ok(None) => Made::Nothing,
        Err(unrendered) => Made::Failed(unrendered.to_string()),
    }
}

fn as_json(aim: &Aim, raw: &RawDocument) -> Value {
    let row = aim.store.decode(raw);
    let messages: Option<Vec<Value>> = row.as_ref().ok().map(|row| {
        let message = |rendering: &Rendering| {
            let is_owed = is_owed(raw, row, rendering);
            let route = &rendering.name;
            match make(aim, row, rendering) {
                Made::Message(message) => json!({
                    "route": route,
                    "owed": is_owed,
                    "exchange": message.route.exchange,
                    "properties": properties(&message),
                    "body": body(&message),
                }),
                Made::Nothing => json!({ "route": route, "owed": false, "skipped": SKIPPED }),
                Made::Failed(problem) => {
                    json!({ "route": route, "owed": is_owed, "problem": problem })
                }
            }
        };
        aim.routes.all.iter().map(message).collect()
    });
    json!({
        "component": aim.component.id(),
        "collection": aim.component.rows(),
        "row": stored(raw),
        "problem": aim.store.problem(raw),
        "messages": messages,
    })
}

fn tell(aim: &Aim, raw: &RawDocument, output: &mut Output) -> std::io::Result<()> {
    output.line(format_args!(
        "{} in {}",
        aim.component.id(),
        aim.store.name()
    ))?;
    output.line(format_args!("{:#}", stored(raw)))?;
    if let Some(problem) = aim.store.problem(raw) {
        output.line(format_args!("\nno pump can read it: {problem}"))?;
    }
    let Ok(row) = aim.store.decode(raw) else {
        return Ok(());
    };
    for rendering in &aim.routes.all {
        let name = &rendering.name;
        match make(aim, &row, rendering) {
            Made::Nothing => output.line(format_args!("\n{name}: {SKIPPED}"))?,
            Made::Failed(problem) => {
                output.line(format_args!("\n{name}: cannot be rendered: {problem}"))?;
            }
            Made::Message(message) => {
                let state = if is_owed(raw, &row, rendering) {
                    ""
                } else {
                    " (done)"
                };
                output.line(format_args!(
                    "\n{name}{state}: to exchange {}",
                    message.route.exchange
                ))?;
                output.line(format_args!("{:#}", properties(&message)))?;
                output.line(format_args!("{:#}", body(&message)))?;
            }
        }
    }
    Ok(())
}

const SKIPPED: &str = "not published, its condition does not hold";

/// A published row owes nothing, and does not say what it did owe.
fn is_owed(raw: &RawDocument, row: &Row, rendering: &Rendering) -> bool {
    let owed = row.outstanding.as_ref();
    let later = retrying(&rendering.name);
    let owes = |owed: &Vec<String>| owed.contains(&rendering.name) || owed.contains(&later);
    !Glance::of(raw).is_published && owed.is_none_or(owes)
}

fn stored(raw: &RawDocument) -> Value {
    match Document::try_from(raw) {
        Ok(row) => Bson::Document(row).into_relaxed_extjson(),
        Err(error) => Value::String(format!("unreadable BSON: {error}")),
    }
}

/// As AMQP names them.
fn properties(message: &Message) -> Value {
    let route = &message.route;
    json!({
        "message_id": message.row,
        "type": route.label,
        "app_id": route.component,
        "content_type": route.content_type,
        "timestamp": message.time,
        "delivery_mode": 2,
        "headers": route.headers,
        "mandatory": route.mandatory,
    })
}

/// What it carries; base64 where it is not JSON.
fn body(message: &Message) -> Value {
    serde_json::from_slice(&message.body).unwrap_or_else(|_| BASE64.encode(&message.body).into())
}
