//! A table of the file, read key by key.

use std::borrow::Cow;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    config::{
        given::Given,
        key::{Key, Kind, stranger},
        masked,
    },
    error::{Error, Result},
};

/// The text, and what it is called.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) path: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    fn origin(self, position: usize) -> Cow<'static, str> {
        let before = self.text.get(..position).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        format!("{} line {line}", self.path).into()
    }

    /// The line itself is not repeated: it may hold a password.
    pub(super) fn broken(self, error: &toml::de::Error) -> Error {
        Error::Setting {
            name: "the configuration".into(),
            origin: self.origin(error.span().map_or(0, |span| span.start)),
            value: "…".into(),
            expected: format!("this is not TOML: {}", error.message().replace('\n', ", ")),
        }
    }
}

/// A table of the file, read key by key; whatever is wrong with a value is told with its line.
pub(in crate::config) struct Section<'a> {
    source: Source<'a>,
    /// Put before the names of its keys in errors: `component tea.pots, `; empty for the file as a whole.
    pub(in crate::config) what: String,
    start: usize,
    table: &'a DeTable<'a>,
}

type Value<'a> = Spanned<DeValue<'a>>;

impl<'a> Section<'a> {
    pub(super) fn whole(source: Source<'a>, table: &'a DeTable<'a>) -> Self {
        Self {
            source,
            what: String::new(),
            start: 0,
            table,
        }
    }

    /// The same, with other words before the names of its keys.
    pub(in crate::config) fn about(&self, what: String) -> Self {
        Self { what, ..*self }
    }

    pub(in crate::config) fn refuse_strangers(
        &self,
        known: impl IntoIterator<Item = &'static str>,
    ) -> Result<()> {
        let known: Vec<String> = known.into_iter().map(str::to_owned).collect();
        let is_stranger = |name: &str| !known.iter().any(|known| known == name);
        let mut names = self.table.keys();
        match names.find(|name| is_stranger(name.get_ref())) {
            Some(name) => Err(Error::Setting {
                name: format!("{}{}", self.what, name.get_ref()),
                origin: self.source.origin(name.span().start),
                value: "…".into(),
                expected: stranger("setting", name.get_ref(), &known),
            }),
            None => Ok(()),
        }
    }

    /// Where the section starts, or one of its keys if it has it.
    pub(in crate::config) fn origin(&self, key: &str) -> Cow<'static, str> {
        let span = self.table.get(key).map(Spanned::span);
        self.source
            .origin(span.map_or(self.start, |span| span.start))
    }

    pub(in crate::config) fn text(&self, key: &str) -> Result<Option<String>> {
        self.of(key, "a text in quotes", |value| match value {
            DeValue::String(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// Of a text that has to be there.
    pub(in crate::config) fn required(&self, key: &str) -> Result<String> {
        match self.text(key)? {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(self.fault(key, "", "expected a text, which must not be missing".into())),
        }
    }

    pub(in crate::config) fn switch(&self, key: &str) -> Result<Option<bool>> {
        self.of(key, "true or false", |value| value.as_bool())
    }

    pub(in crate::config) fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        self.of(key, "a list of texts, such as [\"created\"]", words)
    }

    pub(in crate::config) fn number(&self, key: &str) -> Result<Option<u64>> {
        let expected = "a whole number, at least 1";
        let number = self.of(key, expected, |value| match value {
            DeValue::Integer(number) => Some(number),
            _ => None,
        })?;
        let Some(number) = number else {
            return Ok(None);
        };
        match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(positive @ 1..) => Ok(Some(positive)),
            // A number is no secret in the wrong place.
            _ => Err(self.fault(key, number.as_str(), format!("expected {expected}"))),
        }
    }

    /// What was refused by whoever uses it, with the line of the key.
    pub(in crate::config) fn placed(&self, error: Error) -> Error {
        match error {
            Error::Setting {
                name,
                value,
                expected,
                ..
            } => Error::Setting {
                origin: self.origin(&name),
                name: format!("{}{name}", self.what),
                value,
                expected,
            },
            other => other,
        }
    }

    /// A table of texts.
    pub(in crate::config) fn pairs(&self, key: &str) -> Result<Vec<(String, String)>> {
        let pair = |(name, value): (&Spanned<Cow<'_, str>>, &Value<'_>)| {
            Some((
                name.get_ref().to_string(),
                value.get_ref().as_str()?.to_owned(),
            ))
        };
        let pairs = self.of(
            key,
            "a table of texts, such as { tenant = \"t1\" }",
            |value| value.as_table()?.iter().map(pair).collect(),
        );
        Ok(pairs?.unwrap_or_default())
    }

    /// An array of tables.
    pub(in crate::config) fn sections(&self, key: &str) -> Result<Vec<Section<'a>>> {
        let Some(value) = self.table.get(key) else {
            return Ok(Vec::new());
        };
        let section = |value: &'a Value<'a>| {
            Some(Section {
                source: self.source,
                what: self.what.clone(),
                start: value.span().start,
                table: value.get_ref().as_table()?,
            })
        };
        let sections = match value.get_ref() {
            DeValue::Array(values) => values.iter().map(section).collect(),
            _ => None,
        };
        let double = if self.what.is_empty() {
            key.to_owned()
        } else {
            format!("component.{key}")
        };
        sections.ok_or_else(|| {
            let shown = kind(value.get_ref());
            self.fault(
                key,
                shown,
                format!("expected tables, each under [[{double}]]"),
            )
        })
    }

    /// An error about one of the keys.
    pub(in crate::config) fn fault(&self, key: &str, value: &str, expected: String) -> Error {
        Error::Setting {
            name: format!("{}{key}", self.what),
            origin: self.origin(key),
            value: masked(value),
            expected,
        }
    }

    fn of<'s, T>(
        &'s self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'s DeValue<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        match read(value.get_ref()) {
            Some(read) => Ok(Some(read)),
            None => Err(self.fault(key, kind(value.get_ref()), format!("expected {expected}"))),
        }
    }

    /// One of the settings of the file as a whole.
    pub(super) fn given(&self, key: &'static Key) -> Result<Option<Given>> {
        let Some(value) = self.table.get(key.name) else {
            return Ok(None);
        };
        let text = match (key.kind, value.get_ref()) {
            (
                Kind::Uri | Kind::Uris | Kind::Text | Kind::Address | Kind::Amount,
                DeValue::String(text),
            ) => text.to_string(),
            (Kind::Uris, list @ DeValue::Array(_)) => words(list)
                .map(|words| words.join(" "))
                .ok_or_else(|| self.mistyped(key, list))?,
            (Kind::Number | Kind::Address | Kind::Amount, DeValue::Integer(number))
                if number.radix() == 10 =>
            {
                number.as_str().to_owned()
            }
            (Kind::Switch, DeValue::Boolean(value)) => value.to_string(),
            (_, value) => return Err(self.mistyped(key, value)),
        };
        Ok(Some(Given {
            key,
            name: key.name.to_owned(),
            origin: self.origin(key.name),
            value: text,
        }))
    }

    fn mistyped(&self, key: &Key, value: &DeValue<'_>) -> Error {
        let expected = match key.kind {
            Kind::Uri | Kind::Text => "a text in quotes",
            Kind::Uris => "a text, or a list of texts",
            Kind::Number => "a whole number, without quotes and in decimal",
            Kind::Switch => "true or false",
            Kind::Amount => "a whole number, or a text such as \"64MiB\"",
            Kind::Address => "a text such as \"127.0.0.1:9090\", or a port",
        };
        self.fault(key.name, kind(value), format!("expected {expected}"))
    }
}

fn words(value: &DeValue<'_>) -> Option<Vec<String>> {
    let text = |value: &Value<'_>| value.get_ref().as_str().map(str::to_owned);
    value.as_array()?.iter().map(text).collect()
}

/// What stands where something else was expected. Not the value itself: it may be a secret in the wrong
/// place.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
