//! Defaults, file, environment and command line, one over the other.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    fmt,
};

use super::{
    Settings,
    component::{Declared, Source},
    environment::{self, Environment},
    file::{self, File},
    given::Given,
    secret,
    sidecar::Sidecar,
    sinks,
};
use crate::{
    component::Component,
    error::{Error, Result},
};

/// All that is set, and who said so.
pub(crate) struct Layers {
    pub(crate) settings: Settings,
    pub(crate) sidecar: Sidecar,
    pub(crate) components: Vec<Component>,
    /// How each of them is written.
    pub(crate) sources: Vec<Source>,
    pub(crate) sinks: Vec<sinks::Declared>,
    /// The file that was read, if there was one.
    pub(crate) file: Option<String>,
    /// By name of the setting; whatever is not here has its default.
    pub(crate) origins: Origins,
}

pub(crate) type Origins = BTreeMap<&'static str, Origin>;

/// Who set something.
pub(crate) struct Origin {
    /// The setting, as it is spelled there.
    pub(crate) name: String,
    pub(crate) place: Cow<'static, str>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.name)
    }
}

/// Reads file and environment, under what the command line says.
pub(crate) fn layers(flags: Vec<Given>) -> Result<Layers> {
    let flags = secret::opened(flags)?;
    stack(flags, environment::own()?)
}

fn stack(flags: Vec<Given>, environment: Environment) -> Result<Layers> {
    let names_file = |given: &&Given| given.key.name == "config";
    let mut above = flags.iter().chain(&environment.given);
    let File {
        path,
        given,
        components,
        sinks,
    } = file::read(above.find(names_file))?;
    let mut layers = Layers {
        settings: Settings {
            events: environment.events,
            ..Settings::default()
        },
        sidecar: Sidecar::default(),
        components: Vec::new(),
        sources: Vec::new(),
        sinks: distinct(sinks)?,
        file: path,
        origins: Origins::new(),
    };
    for given in given.iter().chain(&environment.given).chain(&flags) {
        layers.take(given)?;
    }
    (layers.components, layers.sources) = checked(components, &layers.settings)?;
    Ok(layers)
}

impl Layers {
    fn take(&mut self, given: &Given) -> Result<()> {
        if !self.settings.set(given)? {
            self.sidecar.set(given)?;
        }
        let origin = Origin {
            name: given.name.clone(),
            place: given.origin.clone(),
        };
        self.origins.insert(given.key.name, origin);
        Ok(())
    }
}

/// Each under a name of its own.
fn distinct(sinks: Vec<sinks::Declared>) -> Result<Vec<sinks::Declared>> {
    let mut names = HashSet::new();
    match sinks.iter().find(|sink| !names.insert(&sink.name)) {
        Some(again) => Err(Error::Setting {
            name: format!("sink {}, name", again.name),
            origin: again.origin.clone(),
            value: again.name.clone(),
            expected: "there is another of that name; what is owed to a sink goes by its name"
                .into(),
        }),
        None => Ok(sinks),
    }
}

/// Each by itself, and beside the others.
fn checked(declared: Vec<Declared>, settings: &Settings) -> Result<(Vec<Component>, Vec<Source>)> {
    let mut ids = HashSet::new();
    let mut collections = HashSet::new();
    for Declared { component, source } in &declared {
        let refuse = |problem: String| Error::Component {
            component: component.id(),
            problem: format!("{problem} ({})", source.origin),
        };
        if !ids.insert(component.id()) {
            return Err(refuse("it is declared twice; keep one of the two".into()));
        }
        if !collections.insert(component.rows()) {
            return Err(refuse(format!(
                "another component has its rows in {} too; give each its own outbox",
                component.rows()
            )));
        }
        let consumed = settings.events.get(&component.variable());
        match component.routes(consumed.map(Vec::as_slice)) {
            Err(Error::Component { problem, .. }) => return Err(refuse(problem)),
            routes => routes?,
        };
    }
    let parts = |declared: Declared| (declared.component, declared.source);
    Ok(declared.into_iter().map(parts).unzip())
}
