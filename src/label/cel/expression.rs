//! One expression over an event.

use std::{
    sync::{Arc, LazyLock},
    thread,
};

use bson::Bson;
use cel::{
    Context, Env, ParseErrors, Value, common::value::CowVal, context::VariableResolver, parser,
};

use super::{scope, value};
use crate::row::Event;

/// The longest text, in bytes, and the most levels of nesting. Parser and evaluation recurse, and the stack of a
/// worker is small: the text is parsed on a stack of its own, and what is nested deeper is never evaluated.
const LONGEST: usize = 8192;
const DEEPEST: usize = 32;
const PARSERS_STACK: usize = 256 << 20;

/// The longest that is repeated of what went wrong: CEL shows whole values.
const TOLD: usize = 200;

/// The standard library of CEL.
pub(super) static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

pub(super) struct Expression(pub(super) parser::Expression);

impl Expression {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("expected at most {LONGEST} bytes"));
        }
        let thread = thread::Builder::new().stack_size(PARSERS_STACK);
        thread::scope(|scope| {
            let parsing = thread.spawn_scoped(scope, || Self::parse_on_this_stack(text));
            let parsing = parsing.map_err(|error| format!("no thread to read it: {error}"))?;
            let parsed = parsing.join();
            parsed
                .unwrap_or_else(|_| Err("the parser failed on it; write it in another way".into()))
        })
    }

    fn parse_on_this_stack(text: &str) -> Result<Self, String> {
        let parsed = STANDARD
            .parser()
            .parse(text)
            .map_err(|errors| told(&errors))?;
        let deep = scope::depth(&parsed);
        if deep > DEEPEST {
            return Err(format!(
                "expected at most {DEEPEST} levels, these are {deep}"
            ));
        }
        scope::check(&parsed)?;
        Ok(Self(parsed))
    }

    /// What it makes, if that does not depend on the event; none if it does.
    pub(super) fn constant(&self) -> Result<Option<Bson>, String> {
        if scope::mentions_event(&self.0) {
            return Ok(None);
        }
        let event = Event::created(bson::Document::new());
        self.evaluate(&event).map(Some)
    }

    pub(super) fn evaluate(&self, event: &Event) -> Result<Bson, String> {
        let variables = Variables(event);
        let mut context = Context::with_env(STANDARD.clone());
        context.set_variable_resolver(&variables);
        let made =
            Value::resolve_val(&self.0, &context).map_err(|error| short(&error.to_string()))?;
        value::to_bson(made.as_ref())
    }
}

/// The event, to CEL. It asks for the longest name first, `state.pot.size` before `state.pot` and `state`, so that only
/// what is mentioned is converted. A name that leads nowhere is left to CEL, which asks for a shorter one and finds
/// out what is missing.
struct Variables<'a>(&'a Event);

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, name: &str) -> Option<CowVal<'b, 'b>> {
        let mut parts = name.split('.');
        let found = Found::variable(self.0, parts.next()?)?;
        Some(CowVal::Owned(found.within(parts)?.to_cel()))
    }
}

/// Something in an event.
#[derive(Clone, Copy)]
pub(super) enum Found<'a> {
    Value(&'a Bson),
    /// A variable that is a document.
    Document(&'a bson::Document),
    Null,
}

impl<'a> Found<'a> {
    pub(super) fn variable(event: &'a Event, name: &str) -> Option<Self> {
        match name {
            "origin" => Some(event.origin.as_ref().map_or(Self::Null, Self::Document)),
            "state" => Some(Self::Document(&event.state)),
            "trailers" => Some(Self::Value(&event.trailers)),
            "input" => Some(Self::Value(&event.input)),
            _ => None,
        }
    }

    pub(super) fn within<'n>(self, path: impl IntoIterator<Item = &'n str>) -> Option<Self> {
        path.into_iter().try_fold(self, |found, field| match found {
            Self::Document(document) | Self::Value(Bson::Document(document)) => {
                document.get(field).map(Self::Value)
            }
            Self::Value(_) | Self::Null => None,
        })
    }

    pub(super) fn to_bson(self) -> Bson {
        match self {
            Self::Value(value) => value.clone(),
            Self::Document(document) => document.clone().into(),
            Self::Null => Bson::Null,
        }
    }

    fn to_cel(self) -> value::Boxed<'a> {
        match self {
            Self::Value(value) => value::of_bson(value),
            Self::Document(document) => value::of_document(document),
            Self::Null => value::of_bson(&Bson::Null),
        }
    }
}

/// The first complaint of the parser, on one line.
fn told(errors: &ParseErrors) -> String {
    match errors.errors.first() {
        Some(error) => {
            let (line, column) = error.pos;
            let said = short(&error.msg.replace('\n', " "));
            format!("expected a CEL expression; line {line}, column {column}: {said}")
        }
        None => "expected a CEL expression".to_owned(),
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(TOLD) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
