//! Components as the file declares them.

use std::borrow::Cow;

use super::{file::Section, key::stranger};
use crate::{
    component::Component,
    error::Result,
    label::{Encoding, Label, cel},
};

/// A component, and how it is written.
pub(super) struct Declared {
    pub(super) component: Component,
    pub(super) source: Source,
}

/// Where a component is declared, and the texts of what it computes.
pub(crate) struct Source {
    pub(crate) origin: Cow<'static, str>,
    pub(crate) labels: Vec<Written>,
}

/// A label of the user's own, as it is written.
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) when: Option<String>,
    pub(crate) payload: Option<String>,
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
        "integrity",
        "labels",
        "label",
    ])?;
    let (own, written): (Vec<_>, Vec<_>) = own(section)?.into_iter().unzip();
    let mut component = Component::new(section.required("namespace")?, section.required("name")?)
        .labels(system(section)?)
        .labels(own)
        .encoding(encoding(section)?)
        .mandatory(section.switch("mandatory")?.unwrap_or_default())
        .integrity(section.switch("integrity")?.unwrap_or_default());
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
    let source = Source {
        origin: section.origin("name"),
        labels: written,
    };
    Ok(Declared { component, source })
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

fn own(section: &Section<'_>) -> Result<Vec<(Label, Written)>> {
    section.sections("label")?.iter().map(label).collect()
}

/// Reads one `[[component.label]]`.
fn label(section: &Section<'_>) -> Result<(Label, Written)> {
    let name = section.required("name")?;
    let section = section.about(format!("{}label {name}, ", section.what));
    section.refuse_strangers(["name", "when", "payload"])?;
    let written = Written {
        name: name.clone(),
        when: section.text("when")?,
        payload: section.text("payload")?,
    };
    let mut label = Label::new(name);
    if let Some(text) = &written.when {
        let condition = cel::condition(text);
        label = label.when(condition.map_err(|problem| section.fault("when", text, problem))?);
    }
    if let Some(text) = &written.payload {
        let payload = cel::payload(text);
        label = label.payload(payload.map_err(|problem| section.fault("payload", text, problem))?);
    }
    Ok((label, written))
}
