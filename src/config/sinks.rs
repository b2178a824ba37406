//! Sinks as the file declares them.

mod treatment;

use std::{borrow::Cow, fmt, path::PathBuf, time::Duration};

use super::{file::Section, key::stranger};
use crate::{
    JsonLines, Safety, SinkOptions, Stdout,
    error::Result,
    sinks::{Erased, http::Http, unusable_name},
};

pub(crate) use treatment::Treatment;

/// A sink that is not open yet.
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) patterns: Vec<String>,
    pub(crate) options: SinkOptions,
    pub(crate) destination: Destination,
    /// What the options are, in the words of the file.
    pub(crate) treatment: Treatment,
    pub(crate) origin: Cow<'static, str>,
    /// Where its order is said, if it is.
    pub(crate) order_origin: Cow<'static, str>,
}

pub(crate) enum Destination {
    Http(Box<Http>),
    File {
        path: PathBuf,
        /// How large it may get, and how many old ones are kept.
        rotation: Option<(u64, usize)>,
    },
    Stdout,
}

const KINDS: [&str; 3] = ["http", "file", "stdout"];
/// How much of a backlog is sent at a time: all of them, or none.
const FIGURES: [&str; 3] = ["batch_bytes", "window_requests", "window_bytes"];

/// How many old files are kept where the file does not say.
const KEPT: u64 = 5;

/// Where it is, as far as that may be shown.
impl fmt::Display for Destination {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(http) => to.write_str(&http.address()),
            Self::File { path, .. } => path.display().fmt(to),
            Self::Stdout => to.write_str("standard output"),
        }
    }
}

impl Destination {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Http(_) => KINDS[0],
            Self::File { .. } => KINDS[1],
            Self::Stdout => KINDS[2],
        }
    }

    pub(crate) async fn open(self) -> Result<Box<dyn Erased>> {
        Ok(match self {
            Self::Http(http) => http,
            Self::Stdout => Box::new(Stdout::new()),
            Self::File { path, rotation } => {
                let file = JsonLines::open(path).await?;
                match rotation {
                    Some((bytes, files)) => Box::new(file.rotated(bytes, files)),
                    None => Box::new(file),
                }
            }
        })
    }
}

/// Reads one `[[sink]]`.
pub(super) fn sink(section: &Section<'_>) -> Result<Declared> {
    let name = section.required("name")?;
    let section = &section.about(format!("sink {name}, "));
    if let Some(problem) = unusable_name(&name) {
        return Err(section.fault("name", &name, problem.into()));
    }
    let kind = word(section, "kind", &KINDS)?;
    let own: &[&str] = match kind {
        Some("file") => &["path", "rotate", "keep"],
        Some("stdout") => &[],
        _ => &[
            "url",
            "secret",
            "secret_file",
            "ca",
            "timeout",
            "single",
            "cloud_events",
        ],
    };
    let common = ["name", "kind", "labels", "safety"];
    let common = common.into_iter().chain(treatment::KEYS).chain(FIGURES);
    section.refuse_strangers(common.chain(own.iter().copied()))?;
    let destination = match kind {
        Some("file") => file(section)?,
        Some("stdout") => Destination::Stdout,
        Some(_) => Destination::Http(Box::new(http(section)?)),
        None => {
            let expected = format!("expected one of {}", KINDS.join(", "));
            return Err(section.fault("kind", "", expected));
        }
    };
    let (treatment, options) = treatment::treatment(section)?;
    Ok(Declared {
        patterns: patterns(section)?,
        options,
        destination,
        treatment,
        origin: section.origin("name"),
        order_origin: section.origin("order"),
        name,
    })
}

fn patterns(section: &Section<'_>) -> Result<Vec<String>> {
    let patterns = section.texts("labels")?.unwrap_or_default();
    match patterns.is_empty() {
        true => Err(section.fault(
            "labels",
            "",
            "expected a list of patterns, such as [\"tea_pots.created\"] or [\"*\"]".into(),
        )),
        false => Ok(patterns),
    }
}

/// None where the file leaves that to the sink.
fn safety(section: &Section<'_>) -> Result<Option<Option<Safety>>> {
    let figures = FIGURES.map(|key| section.number(key));
    let [bytes, requests, window] = figures;
    match (section.switch("safety")?, bytes?, requests?, window?) {
        (Some(false), None, None, None) => Ok(Some(None)),
        (Some(true), None, None, None) => Ok(Some(Some(Safety::default()))),
        (None, None, None, None) => Ok(None),
        (None | Some(true), Some(bytes), Some(requests), Some(window)) => {
            let safety = Safety::new(bytes, requests, window, 1);
            Ok(Some(Some(safety.map_err(|error| section.placed(error))?)))
        }
        _ => {
            let expected = format!(
                "expected all of {}, or none of them and true or false",
                FIGURES.join(", ")
            );
            Err(section.fault("safety", "", expected))
        }
    }
}

fn http(section: &Section<'_>) -> Result<Http> {
    let mut http = Http::builder(section.required("url")?);
    if let Some(secret) = section.text("secret")? {
        http = http.secret(secret);
    }
    if let Some(path) = section.text("secret_file")? {
        http = http.secret_file(path);
    }
    if let Some(path) = section.text("ca")? {
        http = http.ca(path);
    }
    if let Some(millis) = section.number("timeout")? {
        http = http.timeout(Duration::from_millis(millis));
    }
    if section.switch("single")?.unwrap_or_default() {
        http = http.single();
    }
    if section.switch("cloud_events")?.unwrap_or_default() {
        http = http.cloud_events();
    }
    http.build().map_err(|error| section.placed(error))
}

fn file(section: &Section<'_>) -> Result<Destination> {
    let rotate = section.number("rotate")?;
    let kept = section.number("keep")?.unwrap_or(KEPT);
    Ok(Destination::File {
        path: section.required("path")?.into(),
        rotation: rotate.map(|bytes| (bytes, usize::try_from(kept).unwrap_or(usize::MAX))),
    })
}

/// One of a few words, if it is there.
fn word(section: &Section<'_>, key: &str, known: &[&'static str]) -> Result<Option<&'static str>> {
    let Some(text) = section.text(key)? else {
        return Ok(None);
    };
    match known.iter().find(|known| **known == text) {
        Some(word) => Ok(Some(word)),
        None => {
            let known: Vec<String> = known.iter().map(|known| (*known).to_owned()).collect();
            Err(section.fault(key, &text, stranger(key, &text, &known)))
        }
    }
}
