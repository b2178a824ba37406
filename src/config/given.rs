//! One value that somebody gave, and how it is read.

use std::{borrow::Cow, fmt::Display, ops::RangeInclusive, path::PathBuf, str::FromStr};

use super::{key::Key, uri};
use crate::error::{Error, Result};

/// A value as it stands in one of the layers.
pub(crate) struct Given {
    pub(crate) key: &'static Key,
    /// The setting, as it is spelled where it was given.
    pub(crate) name: String,
    pub(crate) origin: Cow<'static, str>,
    pub(crate) value: String,
}

impl Given {
    /// From the command line.
    #[cfg(feature = "sidecar")]
    pub(crate) fn flag(key: &'static Key, value: String) -> Self {
        Self {
            key,
            name: key.flag(),
            origin: "command line".into(),
            value,
        }
    }

    pub(super) fn parsed<T: FromStr>(&self, expected: &str) -> Result<T> {
        self.value.trim().parse().map_err(|_| self.refuse(expected))
    }

    pub(super) fn number<T>(&self, bounds: RangeInclusive<T>) -> Result<T>
    where
        T: FromStr + PartialOrd + Display,
    {
        let expected = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        let number = self.parsed(&expected)?;
        if bounds.contains(&number) {
            Ok(number)
        } else {
            Err(self.refuse(&expected))
        }
    }

    pub(super) fn switch(&self) -> Result<bool> {
        match self.value.trim() {
            "0" | "false" => Ok(false),
            "1" | "true" => Ok(true),
            _ => Err(self.refuse("0 or 1")),
        }
    }

    /// What is set to nothing is set by mistake: an unset variable of somebody's script.
    pub(super) fn text(&self) -> Result<String> {
        match self.value.trim() {
            "" => Err(self.refuse("something; leave it out to have none")),
            text => Ok(text.to_owned()),
        }
    }

    pub(super) fn path(&self) -> Result<PathBuf> {
        self.text().map(PathBuf::from)
    }

    pub(super) fn words(&self) -> Result<Vec<String>> {
        Ok(self.text()?.split_whitespace().map(str::to_owned).collect())
    }

    /// An error that says what would have been accepted.
    pub(crate) fn refuse(&self, expected: &str) -> Error {
        self.fault(format!("expected {expected}"))
    }

    pub(crate) fn fault(&self, problem: String) -> Error {
        let value = match self.key.is_secret() {
            true if self.value.is_empty() => String::new(),
            true => "…".to_owned(),
            // A connection string may have come to the wrong place.
            false => uri::masked(&self.value),
        };
        Error::Setting {
            name: self.name.clone(),
            origin: self.origin.clone(),
            value,
            expected: problem,
        }
    }
}
