//! The layer of the environment.

use std::{collections::HashMap, ffi::OsString};

use super::{
    given::Given,
    key::{KEYS, Key, PREFIX, stranger},
    secret,
};
use crate::error::{Error, Result};

const EVENTS: &str = "TOA_EVENTS_";

/// What the environment says.
pub(super) struct Environment {
    pub(super) given: Vec<Given>,
    /// The labels something consumes, by variable.
    pub(super) events: HashMap<String, Vec<String>>,
}

/// That of this process.
pub(super) fn own() -> Result<Environment> {
    // What is not UTF-8 cannot be the name of one of ours.
    let text = |(name, value): (OsString, OsString)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    };
    read(std::env::vars_os().filter_map(text))
}

pub(super) fn read(vars: impl Iterator<Item = (String, String)>) -> Result<Environment> {
    let mut given = Vec::new();
    let mut events = HashMap::new();
    for (name, value) in vars {
        if let Some(key) = Key::of_variable(&name) {
            let origin = "environment".into();
            given.push(Given {
                key,
                name,
                origin,
                value,
            });
        } else if name.starts_with(PREFIX) {
            return Err(unknown(name));
        } else if name.starts_with(EVENTS) {
            let labels = value.split_whitespace().map(str::to_owned).collect();
            events.insert(name, labels);
        }
    }
    let given = secret::opened(given)?;
    Ok(Environment { given, events })
}

fn unknown(name: String) -> Error {
    let known: Vec<String> = KEYS.iter().map(Key::variable).collect();
    Error::Setting {
        expected: stranger("setting", &name, &known),
        name,
        origin: "environment".into(),
        value: "…".into(),
    }
}
