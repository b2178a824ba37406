//! The layer of the file.

mod section;

use std::{fs, io::ErrorKind};

use toml::de::DeTable;

use super::{
    component::{Declared, component},
    given::Given,
    key::KEYS,
    secret,
    sinks::{self, sink},
};
use crate::error::{Error, Result};
use section::Source;

pub(super) use section::Section;

/// What the file says.
#[derive(Default)]
pub(super) struct File {
    /// None where there is no file.
    pub(super) path: Option<String>,
    pub(super) given: Vec<Given>,
    pub(super) components: Vec<Declared>,
    pub(super) sinks: Vec<sinks::Declared>,
}

/// The file that is read where none is named, if it is there.
const DEFAULT: &str = "toa-outbox.toml";

/// Reads the file that was asked for, or else the one of the working directory.
pub(super) fn read(asked: Option<&Given>) -> Result<File> {
    let path = match asked {
        Some(given) => given.text()?,
        None => DEFAULT.to_owned(),
    };
    match (fs::read_to_string(&path), asked) {
        (Ok(text), _) => parse(&path, &text),
        (Err(error), None) if error.kind() == ErrorKind::NotFound => Ok(File::default()),
        (Err(error), Some(given)) => Err(secret::unreadable(given, &error)),
        (Err(error), None) => Err(Error::Setting {
            name: "the configuration".into(),
            origin: "working directory".into(),
            value: path,
            expected: format!("the file cannot be read: {error}; check its permissions"),
        }),
    }
}

fn parse(path: &str, text: &str) -> Result<File> {
    let source = Source { path, text };
    let table = DeTable::parse(text).map_err(|error| source.broken(&error))?;
    let file = Section::whole(source, table.get_ref());
    let keys = KEYS.iter().map(|key| key.name);
    file.refuse_strangers(
        keys.filter(|&name| name != "config")
            .chain(["component", "sink"]),
    )?;
    let given = KEYS.iter().filter_map(|key| file.given(key).transpose());
    let components = file.sections("component")?;
    let sinks = file.sections("sink")?;
    Ok(File {
        path: Some(path.to_owned()),
        given: secret::opened(given.collect::<Result<_>>()?)?,
        components: components.iter().map(component).collect::<Result<_>>()?,
        sinks: sinks.iter().map(sink).collect::<Result<_>>()?,
    })
}
