//! Secrets that are given as files, as orchestrators mount them: `mongodb_file` stands for `mongodb`.

use std::fs;

use super::{
    given::Given,
    key::{KEYS, Key},
};
use crate::error::{Error, Result};

/// The values of one layer, with the content of files in place of their names.
pub(super) fn opened(layer: Vec<Given>) -> Result<Vec<Given>> {
    let twice = |given: &Given| {
        let key = stands_for(given.key)?;
        layer.iter().find(|other| other.key.name == key.name)
    };
    if let Some((file, value)) = layer.iter().find_map(|file| Some((file, twice(file)?))) {
        return Err(file.fault(format!(
            "{} is set as well; keep one of the two",
            value.name
        )));
    }
    layer.into_iter().map(open).collect()
}

fn open(given: Given) -> Result<Given> {
    match stands_for(given.key) {
        Some(key) => Ok(Given {
            value: content(&given)?,
            origin: format!("{}, from {}", given.origin, given.value.trim()).into(),
            name: given.name,
            key,
        }),
        None => Ok(given),
    }
}

/// What a file says, never repeated in what goes wrong with it.
fn content(given: &Given) -> Result<String> {
    let text = fs::read_to_string(given.path()?).map_err(|error| unreadable(given, &error))?;
    match text.trim() {
        "" => Err(given.fault("the file is empty; write the connection string into it".into())),
        text => Ok(text.to_owned()),
    }
}

/// A file that cannot be read.
pub(super) fn unreadable(given: &Given, error: &std::io::Error) -> Error {
    given.fault(format!(
        "the file cannot be read: {error}; check its path and permissions"
    ))
}

fn stands_for(key: &Key) -> Option<&'static Key> {
    let name = key.name.strip_suffix("_file")?;
    KEYS.iter().find(|key| key.name == name)
}
