//! What of an event is not to be stored, nor published.

use std::fmt;

use bson::{Bson, Document};
use ring::hmac;

use crate::{canonical, row::Event};

/// The parts of an event that may be redacted.
const PARTS: [&str; 4] = ["state", "origin", "input", "trailers"];

/// Decides which labels an event has.
const DELETED: &str = "_deleted";

/// The least of a key, in bytes: a shorter one can be guessed as well.
const LEAST_KEY: usize = 16;

/// A part of each event that is dropped, or replaced by its digest, before the row is written; see
/// [`Component::redact`](crate::Component::redact). The entity keeps it.
///
/// It is named by its path from the event: `state.email`, `input.card.number`, or `trailers` as a whole. A path leads through
/// documents, and through every element of an array: `state.cups.owner` is the owner of each cup. Where there is no such
/// field, nothing is done. A field whose own name has a dot cannot be named.
///
/// A path within `state` is one within `origin` too, which is the same entity a moment before, and the other way
/// round; [`only`](Self::only) says otherwise.
#[derive(Clone)]
pub struct Redact {
    path: String,
    how: How,
    is_only: bool,
}

#[derive(Clone)]
enum How {
    Drop,
    Digest,
    Keyed { key: hmac::Key, is_short: bool },
}

/// The key does not appear.
impl fmt::Debug for Redact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            How::Drop => "dropped",
            How::Digest => "digested",
            How::Keyed { .. } => "digested with a key",
        };
        write!(f, "{:?} {how}", self.path)
    }
}

impl Redact {
    /// What is left out. The whole of `input` or `trailers` becomes null.
    pub fn dropped(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            how: How::Drop,
            is_only: false,
        }
    }

    /// What is replaced by the text `sha256:<hex>`: equal values have equal digests, so that consumers can still
    /// tell whether it changed. The digest is that of the BSON document `{ value: <the value> }` with the keys of every document
    /// in ascending order.
    ///
    /// Whoever can list what the value may be, such as all telephone numbers, finds it out by trying; see [`key`](Self::key).
    pub fn digested(path: impl Into<String>) -> Self {
        Self {
            how: How::Digest,
            ..Self::dropped(path)
        }
    }

    /// With a secret of at least 16 bytes, without which the value cannot be guessed: `hmac-sha256:<hex>` of the same. All
    /// replicas need the same key: with another one, the same event under the same id is another event.
    pub fn key(self, secret: impl AsRef<[u8]>) -> Self {
        let secret = secret.as_ref();
        Self {
            how: How::Keyed {
                key: hmac::Key::new(hmac::HMAC_SHA256, secret),
                is_short: secret.len() < LEAST_KEY,
            },
            ..self
        }
    }

    /// In `state` alone, or in `origin` alone.
    pub fn only(self) -> Self {
        Self {
            is_only: true,
            ..self
        }
    }

    /// What is wrong with one of them, by its path.
    pub(crate) fn problem(all: &[Self]) -> Option<(&str, String)> {
        for (index, one) in all.iter().enumerate() {
            let problem = one.unusable().map(str::to_owned).or_else(|| {
                let before = all[..index].iter().find(|before| before.overlaps(one))?;
                Some(format!(
                    "it and {:?} name the same; keep one of the two",
                    before.path
                ))
            });
            if let Some(problem) = problem {
                return Some((&one.path, problem));
            }
        }
        None
    }

    fn unusable(&self) -> Option<&'static str> {
        let names: Vec<&str> = self.path.split('.').collect();
        let is_empty = |name: &&str| name.is_empty() || name.contains('\0');
        match names.as_slice() {
            [part, ..] if !PARTS.contains(part) => {
                Some("expected a path that starts with state, origin, input or trailers")
            }
            ["state" | "origin"] => Some("it cannot be redacted as a whole; name its fields"),
            ["state" | "origin", DELETED, ..] => {
                Some("which labels an event has depends on it, so it cannot be redacted")
            }
            names if names.iter().any(is_empty) => {
                Some("expected names between dots, such as state.email")
            }
            _ if matches!(self.how, How::Keyed { is_short: true, .. }) => {
                Some("its key is too short; expected at least 16 bytes")
            }
            _ => None,
        }
    }

    /// Whether one of them names what the other does, or something within it.
    fn overlaps(&self, other: &Self) -> bool {
        self.paths().iter().any(|one| {
            other
                .paths()
                .iter()
                .any(|other| one.iter().zip(other).all(|(one, other)| one == other))
        })
    }

    fn paths(&self) -> Vec<Vec<&str>> {
        let path: Vec<&str> = self.path.split('.').collect();
        let twin = match path[0] {
            "state" if !self.is_only => "origin",
            "origin" if !self.is_only => "state",
            _ => return vec![path],
        };
        let twin = [&[twin], &path[1..]].concat();
        vec![path, twin]
    }

    /// What is left of an event.
    ///
    /// # Errors
    ///
    /// What BSON cannot hold has no digest.
    pub(crate) fn all(all: &[Self], event: Event) -> Result<Event, bson::error::Error> {
        if all.is_empty() {
            return Ok(event);
        }
        let mut parts = Document::new();
        parts.extend(
            event
                .origin
                .map(|origin| ("origin".to_owned(), origin.into())),
        );
        for (part, value) in [("trailers", event.trailers), ("input", event.input)] {
            // What is not there has no digest either.
            parts.extend((value != Bson::Null).then(|| (part.to_owned(), value)));
        }
        parts.insert("state", event.state);
        for one in all {
            for path in one.paths() {
                one.how.redact(&mut parts, &path)?;
            }
        }
        let document = |part| match part {
            Some(Bson::Document(document)) => Some(document),
            // It was one before, and is not redacted as a whole.
            _ => None,
        };
        Ok(Event {
            origin: document(parts.remove("origin")),
            state: document(parts.remove("state")).unwrap_or_default(),
            trailers: parts.remove("trailers").unwrap_or(Bson::Null),
            input: parts.remove("input").unwrap_or(Bson::Null),
        })
    }
}

impl How {
    fn redact(&self, document: &mut Document, path: &[&str]) -> Result<(), bson::error::Error> {
        match path {
            [] => Ok(()),
            [name] => self.replace(document, name),
            [name, rest @ ..] => match document.get_mut(name) {
                Some(value) => self.redact_in(value, rest),
                None => Ok(()),
            },
        }
    }

    fn redact_in(&self, value: &mut Bson, path: &[&str]) -> Result<(), bson::error::Error> {
        match value {
            Bson::Document(document) => self.redact(document, path),
            Bson::Array(values) => values
                .iter_mut()
                .try_for_each(|value| self.redact_in(value, path)),
            _ => Ok(()),
        }
    }

    fn replace(&self, document: &mut Document, name: &str) -> Result<(), bson::error::Error> {
        match self {
            Self::Drop => drop(document.remove(name)),
            Self::Digest | Self::Keyed { .. } => {
                if let Some(value) = document.get_mut(name) {
                    *value = self.digest(&canonical::value(value)?).into();
                }
            }
        }
        Ok(())
    }

    fn digest(&self, bytes: &[u8]) -> String {
        match self {
            Self::Keyed { key, .. } => hex("hmac-sha256:", hmac::sign(key, bytes).as_ref()),
            Self::Drop | Self::Digest => hex("sha256:", &canonical::digest(bytes)),
        }
    }
}

fn hex(algorithm: &str, bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    [algorithm.to_owned()].into_iter().chain(digits).collect()
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    const KEY: &str = "a key of sixteen";

    fn redacted(all: &[Redact], event: Event) -> Event {
        assert_eq!(Redact::problem(all), None);
        Redact::all(all, event).unwrap()
    }

    fn problem(all: &[Redact]) -> (&str, String) {
        Redact::problem(all).unwrap()
    }

    #[test]
    fn what_is_named_is_dropped_wherever_it_is() {
        let cups = |owner: Option<&str>| {
            let owner = || owner.map(|owner| ("owner".to_owned(), owner.into()));
            let cup = |size: i32| -> Document {
                let mut cup = doc! { "size": size };
                cup.extend(owner());
                cup
            };
            doc! { "material": "clay", "cups": [cup(1), 7, [cup(2)]] }
        };
        let event = Event::changed(cups(Some("me")), cups(Some("you"))).input(cups(Some("he")));
        let dropped = redacted(&[Redact::dropped("state.cups.owner")], event);
        let expected = Event::changed(cups(None), cups(None)).input(cups(Some("he")));
        assert_eq!(dropped, expected);
    }

    #[test]
    fn state_and_origin_are_alike_unless_said_otherwise() {
        let event = || Event::changed(doc! { "a": 1 }, doc! { "a": 2 });
        let of = |path: &str| Redact::dropped(path);
        let both = Event::changed(doc! {}, doc! {});
        assert_eq!(redacted(&[of("state.a")], event()), both);
        assert_eq!(redacted(&[of("origin.a")], event()), both);
        let state = Event::changed(doc! { "a": 1 }, doc! {});
        assert_eq!(redacted(&[of("state.a").only()], event()), state);
        let origin = Event::changed(doc! {}, doc! { "a": 2 });
        assert_eq!(redacted(&[of("origin.a").only()], event()), origin);
    }

    #[test]
    fn a_digest_tells_whether_it_is_the_same_and_no_more() {
        let digest = |how: &Redact, value: Bson| {
            let event = redacted(
                std::slice::from_ref(how),
                Event::created(doc! { "a": value }),
            );
            event.state.get_str("a").unwrap().to_owned()
        };
        let plain = Redact::digested("state.a");
        let (one, other) = (doc! { "x": 1, "y": 2 }, doc! { "y": 2, "x": 1 });
        assert_eq!(digest(&plain, one.into()), digest(&plain, other.into()));
        assert_ne!(digest(&plain, 1.into()), digest(&plain, 1_i64.into()));
        assert_eq!(digest(&plain, "me@example.com".into()), GOLDEN);
        let keyed = plain.clone().key(KEY);
        assert_eq!(digest(&keyed, "me@example.com".into()), GOLDEN_KEYED);
        assert!(!format!("{keyed:?}").contains(KEY), "{keyed:?}");
    }

    const GOLDEN: &str = "sha256:7dee436e44b24e121582800b0432568a40c713f8ce2c8d151b80f614d85e565a";
    const GOLDEN_KEYED: &str =
        "hmac-sha256:eed3305f19222681241004c2a83a1f938bd69f5495f297b6d084d2718ebc21d6";

    #[test]
    fn input_and_trailers_may_go_as_a_whole() {
        let event = || Event::created(doc! {}).input(1).trailers(2);
        let dropped = [Redact::dropped("input"), Redact::dropped("trailers")];
        assert_eq!(redacted(&dropped, event()), Event::created(doc! {}));
        let digested = [Redact::digested("input")];
        let input = redacted(&digested, event()).input;
        assert!(input.as_str().unwrap().starts_with("sha256:"), "{input}");
        let none = Event::created(doc! {});
        assert_eq!(redacted(&digested, none.clone()), none);
    }

    #[test]
    fn what_cannot_be_redacted_is_told_by_its_path() {
        for path in [
            "",
            "email",
            "entity.email",
            "state",
            "origin",
            "state._deleted",
            "state.",
            "state..a",
            "input.a\0",
        ] {
            assert_eq!(problem(&[Redact::dropped(path)]).0, path);
        }
        let short = Redact::digested("state.a").key("short");
        assert!(problem(&[short]).1.contains("16 bytes"));
        let within = [Redact::dropped("state.a"), Redact::digested("origin.a.b")];
        assert!(problem(&within).1.contains("\"state.a\""));
        let apart = [
            Redact::dropped("state.a").only(),
            Redact::digested("origin.a").only(),
            Redact::dropped("state.ab"),
        ];
        assert_eq!(Redact::problem(&apart), None);
    }
}
