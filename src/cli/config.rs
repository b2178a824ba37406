//! `config`: what holds, and who said so.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use super::{
    failure::Outcome,
    options::{Configuration, Options},
    output::Output,
};
use crate::config::{KEYS, Key, Source, masked, sinks::Declared};

/// Show the effective settings and where each came from.
///
/// Connects to nothing. Passwords are not shown.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox config --config toa-outbox.toml --json")]
pub(super) struct Config {}

impl Config {
    pub(super) fn run(self, options: &Options) -> Outcome {
        let mut output = Output::new(options.json);
        let configuration = options.configuration()?;
        if options.json {
            output.json(&configuration.shown())?;
            return Ok(());
        }
        for key in shown() {
            let (value, origin) = (configuration.value(key), configuration.origin(key));
            setting(&mut output, key.name, &plain(&value), &origin)?;
        }
        for (variable, labels) in configuration.consumed() {
            let origin = format!("environment: {variable}");
            setting(&mut output, "consumed", &labels.join(" "), &origin)?;
        }
        for sink in &configuration.sinks {
            output.line(format_args!("\nsink {}  {}", sink.name, sink.origin))?;
            for (name, value) in [
                ("kind", sink.destination.kind()),
                ("to", &sink.destination.to_string()),
                ("labels", &sink.patterns.join(" ")),
                ("order", sink.treatment.order),
                ("start", sink.treatment.start),
                ("policy", sink.treatment.policy),
            ] {
                output.line(format_args!("  {name:<10} {value}"))?;
            }
        }
        let declared = configuration.components.iter();
        for (component, source) in declared.zip(&configuration.sources) {
            output.line(format_args!("\n{}  {}", component.id(), source.origin))?;
            let Value::Object(fields) = component.shown() else {
                continue;
            };
            for (name, value) in fields {
                output.line(format_args!("  {name:<10} {}", plain(&value)))?;
            }
            for (kind, label, text) in source.texts() {
                output.line(format_args!("  {kind:<10} {label}: {text}"))?;
            }
        }
        Ok(())
    }
}

fn setting(output: &mut Output, name: &str, value: &str, origin: &str) -> std::io::Result<()> {
    output.line(format_args!("{name:<10} {value:<40} {origin}"))
}

impl Source {
    /// Conditions and payloads, of which label and how they are written.
    fn texts(&self) -> impl Iterator<Item = (&'static str, &str, &str)> {
        self.labels.iter().flat_map(|label| {
            let texts = [("when", &label.when), ("payload", &label.payload)];
            texts
                .into_iter()
                .filter_map(|(kind, text)| Some((kind, label.name.as_str(), text.as_deref()?)))
        })
    }

    /// What is shown of a component, and how it is written.
    fn shown(&self, mut component: Value) -> Value {
        component["origin"] = json!(self.origin);
        for kind in ["when", "payload"] {
            let texts = self.texts().filter(|(of, ..)| *of == kind);
            component[kind] = texts
                .map(|(_, label, text)| (label.to_owned(), json!(text)))
                .collect::<serde_json::Map<_, _>>()
                .into();
        }
        component
    }
}

/// All but those that only say where another one is to be found.
fn shown() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| !key.name.ends_with("_file"))
}

impl Configuration {
    fn shown(&self) -> Value {
        let setting = |key: &'static Key| {
            let shown = json!({ "value": self.value(key), "origin": self.origin(key) });
            (key.name.to_owned(), shown)
        };
        let settings: serde_json::Map<_, _> = shown().map(setting).collect();
        let components = self.components.iter().zip(&self.sources);
        let components = components.map(|(component, source)| source.shown(component.shown()));
        let sink = |sink: &Declared| {
            json!({
                "name": sink.name,
                "kind": sink.destination.kind(),
                "to": sink.destination.to_string(),
                "labels": sink.patterns,
                "order": sink.treatment.order,
                "start": sink.treatment.start,
                "policy": sink.treatment.policy,
                "origin": sink.origin,
            })
        };
        json!({
            "sinks": self.sinks.iter().map(sink).collect::<Vec<_>>(),
            "settings": settings,
            "components": components.collect::<Vec<_>>(),
            "consumed": self.settings.events,
        })
    }

    /// The labels that something consumes, by the variable that says so.
    fn consumed(&self) -> BTreeMap<&String, &Vec<String>> {
        self.settings.events.iter().collect()
    }

    fn origin(&self, key: &Key) -> String {
        let origin = self.origins.get(key.name);
        origin.map_or_else(|| "default".to_owned(), ToString::to_string)
    }

    fn value(&self, key: &Key) -> Value {
        let settings = &self.settings;
        match key.name {
            "mongodb" => json!(settings.mongodb.as_deref().map(masked)),
            "database" => json!(settings.database.as_deref().map(masked)),
            "amqp" => settings.amqp.iter().map(|uri| masked(uri)).collect(),
            "amqp_ca" => json!(settings.amqp_ca),
            "amqp_cert" => json!(settings.amqp_cert),
            "amqp_key" => json!(settings.amqp_key),
            "interval" => json!(millis(settings.interval)),
            "batch" => json!(settings.batch),
            "retention" => json!(settings.retention.as_secs()),
            "defer" => json!(settings.defer),
            "inflight" => json!(settings.inflight),
            "slot" => json!(settings.slot.map(|slot| slot.to_string())),
            "beat" => json!(millis(settings.beat)),
            "ensure" => json!(settings.ensure),
            "ceiling" => json!(settings.ceiling.map(|ceiling| ceiling.to_string())),
            "listen" => json!(self.listen),
            "log" => json!(self.log.name()),
            "log_level" => json!(self.log_level),
            "config" => json!(self.file),
            _ => Value::Null,
        }
    }
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// As people read it: texts without quotes, lists without brackets, nothing as a dash.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Object(fields) if fields.is_empty() => "-".to_owned(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("{name}={}", plain(value));
            fields.iter().map(field).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}
