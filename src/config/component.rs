//! Components as the file declares them.

use std::borrow::Cow;

use super::{file::Section, key::stranger};
use crate::{
    component::Component,
    error::Result,
    label::{Encoding, Label, cel},
};

/// A component, and where it is declared.
pub(super) struct Declared {
    pub(super) component: Component,
    pub(super) origin: Cow<'static, str>,
}

type Make = fn() -> Label;

/// The labels that are declared by name.
const SYSTEM: [(&str, Make); 4] = [
    ("created", Label::created),
    ("updated", Label::updated),
    ("deleted", Label::deleted),
    ("sync", Label::sync),
];

/// Reads one `[[component]]`.
pub(super) fn component(section: &Section<'_>) -> Result<Declared> {
    let section = &section.about(format!("component {}, ", title(section)));
    section.refuse_strangers([
        "namespace",
        "name",
        "collection",
        "outbox",
        "encoding",
        "exchange",
        "mandatory",
        "headers",
        "labels",
        "label",
    ])?;
    let mut component = Component::new(section.required("namespace")?, section.required("name")?)
        .labels(system(section)?)
        .labels(own(section)?)
        .encoding(encoding(section)?)
        .mandatory(section.switch("mandatory")?.unwrap_or_default());
    if let Some(name) = section.text("collection")? {
        component = component.collection(name);
    }
    if let Some(name) = section.text("outbox")? {
        component = component.outbox(name);
    }
    if let Some(template) = section.text("exchange")? {
        component = component.exchange(template);
    }
    for (name, value) in section.pairs("headers")? {
        component = component.header(name, value);
    }
    let origin = section.origin("name");
    Ok(Declared { component, origin })
}

/// What the component is called in errors, as far as it says so.
fn title(section: &Section<'_>) -> String {
    let part = |key| {
        section
            .text(key)
            .ok()
            .flatten()
            .unwrap_or_else(|| "?".into())
    };
    format!("{}.{}", part("namespace"), part("name"))
}

fn encoding(section: &Section<'_>) -> Result<Encoding> {
    let Some(name) = section.text("encoding")? else {
        return Ok(Encoding::default());
    };
    Encoding::named(&name).ok_or_else(|| {
        let known = Encoding::ALL.map(|encoding| encoding.name().to_owned());
        section.fault("encoding", &name, stranger("encoding", &name, &known))
    })
}

fn system(section: &Section<'_>) -> Result<Vec<Label>> {
    let Some(names) = section.texts("labels")? else {
        return Ok(Label::system().into());
    };
    let label = |name: &String| {
        let known = SYSTEM.iter().find(|(known, _)| known == name);
        known.map(|(_, label)| label()).ok_or_else(|| {
            let known = SYSTEM.map(|(name, _)| name.to_owned());
            let problem = stranger("system label", name, &known);
            let remedy = "declare your own under [[component.label]]";
            section.fault("labels", name, format!("{problem}; {remedy}"))
        })
    };
    names.iter().map(label).collect()
}

fn own(section: &Section<'_>) -> Result<Vec<Label>> {
    section.sections("label")?.iter().map(label).collect()
}

/// Reads one `[[component.label]]`.
fn label(section: &Section<'_>) -> Result<Label> {
    let name = section.required("name")?;
    let section = section.about(format!("{}label {name}, ", section.what));
    section.refuse_strangers(["name", "when", "payload"])?;
    let mut label = Label::new(name);
    if let Some(text) = section.text("when")? {
        let condition = cel::condition(&text);
        label = label.when(condition.map_err(|problem| section.fault("when", &text, problem))?);
    }
    if let Some(text) = section.text("payload")? {
        let payload = cel::payload(&text);
        label = label.payload(payload.map_err(|problem| section.fault("payload", &text, problem))?);
    }
    Ok(label)
}
