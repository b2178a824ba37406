//! What a service declares of its pots.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use bson::{Bson, doc};
use cucumber::{given, when};
use toa_outbox::{BoxError, Component, Encoding, Event, Label, Redact};

use super::world::Tea;

/// What becomes the component `tea.pots`.
pub struct Declared {
    pub labels: Vec<Label>,
    /// Whether labels that cannot be rendered can by now.
    mended: Arc<AtomicBool>,
    encoding: Encoding,
    mandatory: bool,
    header: Option<(String, String)>,
    redact: Vec<Redact>,
    /// The template of exchange names.
    exchange: String,
}

impl Default for Declared {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            mended: Arc::default(),
            encoding: Encoding::Json,
            mandatory: false,
            header: None,
            redact: Vec::new(),
            exchange: "{namespace}.{name}.{label}".into(),
        }
    }
}

impl Declared {
    pub fn component(&self, namespace: &str) -> Component {
        let component = Component::new(namespace, "pots")
            .labels(self.labels.clone())
            .encoding(self.encoding)
            .mandatory(self.mandatory)
            .redact(self.redact.clone())
            .exchange(&self.exchange);
        match &self.header {
            Some((name, value)) => component.header(name, value),
            None => component,
        }
    }

    /// The exchange of a label, as a consumer would be told.
    pub fn exchange_of(&self, namespace: &str, label: &str) -> String {
        let template = self.exchange.replace("{namespace}", namespace);
        template.replace("{name}", "pots").replace("{label}", label)
    }
}

#[given(regex = r"^the field (\w+) of the state is redacted$")]
fn redacted(w: &mut Tea, field: String) {
    let path = format!("state.{field}");
    w.declared.redact.push(Redact::dropped(path));
}

/// The system's label of this name, or one of the user's own.
fn label(name: &str) -> Label {
    match name {
        "created" => Label::created(),
        "updated" => Label::updated(),
        "deleted" => Label::deleted(),
        "sync" => Label::sync(),
        own => Label::new(own.to_owned()),
    }
}

/// `a, b and c`.
fn names(list: &str) -> Vec<String> {
    list.replace(" and ", ", ")
        .split(", ")
        .map(str::to_owned)
        .collect()
}

#[given(regex = r"^pots with the labels? (.+)$")]
fn labels(w: &mut Tea, list: String) {
    w.declared.labels = names(&list).iter().map(|name| label(name)).collect();
}

#[given(regex = r#"^a label "(\w+)"$"#)]
fn one_more(w: &mut Tea, name: String) {
    w.declared.labels.push(label(&name));
}

#[given(regex = r#"^a label "(\w+)" that carries the whole event$"#)]
fn whole_event(w: &mut Tea, name: String) {
    let whole = |event: &Event| {
        Ok(Bson::from(doc! {
            "origin": event.origin.clone(),
            "state": event.state.clone(),
            "trailers": event.trailers.clone(),
            "input": event.input.clone(),
        }))
    };
    w.declared.labels.push(Label::new(name).payload(whole));
}

#[given(regex = r#"^a label "(\w+)" for pots of (\d+) degrees and more, that carries the input$"#)]
fn boiled(w: &mut Tea, name: String, degrees: i32) {
    let hot = move |event: &Event| {
        Ok(event
            .state
            .get_i32("temperature")
            .is_ok_and(|is| is >= degrees))
    };
    let input = |event: &Event| Ok(event.input.clone());
    w.declared
        .labels
        .push(Label::new(name).when(hot).payload(input));
}

#[given(regex = r#"^a label "(\w+)" whose (payload|condition) (fails|panics)$"#)]
fn broken(w: &mut Tea, name: String, part: String, fault: String) {
    let mended = w.declared.mended.clone();
    let label = Label::new(name);
    w.declared.labels.push(match part.as_str() {
        "payload" => label.payload(move |event| {
            attempt(&mended, &fault)?;
            Ok(event.state.clone().into())
        }),
        _ => label.when(move |_| attempt(&mended, &fault).map(|()| true)),
    });
}

fn attempt(mended: &Arc<AtomicBool>, fault: &str) -> Result<(), BoxError> {
    match (mended.load(Relaxed), fault) {
        (true, _) => Ok(()),
        (false, "panics") => panic!("the price list is missing"),
        (false, _) => Err("the price list is missing".into()),
    }
}

#[when(regex = r#"^"\w+" can be rendered$"#)]
fn mend(w: &mut Tea) {
    w.declared.mended.store(true, Relaxed);
}

#[given(regex = r#"^the exchange is named "(.+)"$"#)]
fn exchange(w: &mut Tea, template: String) {
    w.declared.exchange = template;
}

#[given(regex = r#"^a header "(\w+)" of "(.+)"$"#)]
fn header(w: &mut Tea, name: String, value: String) {
    w.declared.header = Some((name, value));
}

#[given("messages are mandatory")]
fn mandatory(w: &mut Tea) {
    w.declared.mandatory = true;
}

#[given(regex = r"^bodies in (.+)$")]
fn encoding(w: &mut Tea, name: String) {
    w.declared.encoding = match name.as_str() {
        "JSON" => Encoding::Json,
        "relaxed Extended JSON" => Encoding::RelaxedJson,
        "canonical Extended JSON" => Encoding::CanonicalJson,
        "MessagePack" => Encoding::MessagePack,
        "BSON" => Encoding::Bson,
        other => panic!("no encoding {other}"),
    };
}
