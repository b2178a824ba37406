//! Which components a command is about.

use clap::Args;
use mongodb::Database;

use super::{argument::refuse, options::Configuration};
use crate::{Component, Error, Settings, routes::Routes, store::Store, store::components};

/// By default all of them: those that are configured or, where none is, those that have an outbox collection.
#[derive(Args)]
pub(super) struct Target {
    /// Only this component, such as tea.pots, or this outbox collection; repeat it for several
    #[arg(long = "component", value_name = "NS.NAME")]
    names: Vec<String>,
}

/// A component, its rows and what they owe.
pub(super) struct Aim {
    pub(super) component: Component,
    pub(super) store: Store,
    pub(super) routes: Routes,
}

impl Target {
    pub(super) async fn components(
        &self,
        configuration: &Configuration,
        database: &Database,
    ) -> Result<Vec<Component>, Error> {
        let all = match configuration.components.as_slice() {
            [] => components(database).await?,
            declared => declared.to_vec(),
        };
        let Some(stranger) = self.names.iter().find(|name| !all.iter().any(is(name))) else {
            let wanted = |component: &Component| self.names.iter().any(|name| is(name)(component));
            let all = all.into_iter();
            return Ok(all
                .filter(|one| self.names.is_empty() || wanted(one))
                .collect());
        };
        let known: Vec<String> = all.iter().map(Component::id).collect();
        let expected = match known.as_slice() {
            [] => format!(
                "there is no outbox collection in the database {}",
                database.name()
            ),
            known => format!("there is no such component; there are {}", known.join(", ")),
        };
        Err(refuse("--component", stranger, expected))
    }

    pub(super) async fn aims(
        &self,
        configuration: &Configuration,
        database: &Database,
    ) -> Result<Vec<Aim>, Error> {
        let components = self.components(configuration, database).await?;
        let aim = |component| Aim::at(component, database, &configuration.settings);
        components.into_iter().map(aim).collect()
    }

    /// Whether some are picked out.
    pub(super) fn is_narrowed(&self) -> bool {
        !self.names.is_empty()
    }
}

impl Aim {
    pub(super) fn at(
        component: Component,
        database: &Database,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let consumed = settings.events.get(&component.variable());
        Ok(Self {
            routes: component.routes(consumed.map(Vec::as_slice))?,
            store: Store::new(database, &component.rows())
                .wanting_digest(component.has_integrity()),
            component,
        })
    }
}

fn is(name: &str) -> impl Fn(&Component) -> bool {
    move |component| component.id() == name || component.rows() == name
}
