//! The sinks of the file, beside the broker.

use std::borrow::Cow;

use super::Sidecar;
use crate::{
    component::Component,
    config::{Settings, sinks::Declared},
    error::{Error, Result},
    relay::enrol::Enrolled,
    sinks::{Batched, Kind, Outlet, Terms},
};

/// A sink beside the broker, as it was declared.
pub(super) struct Own {
    pub(super) enrolled: Enrolled,
    /// Which labels it wants.
    pub(super) patterns: Vec<String>,
    /// Its order in the words of the file, and where they are.
    order: &'static str,
    order_origin: Cow<'static, str>,
}

impl Own {
    /// What is delivered to it begins when rows are followed.
    pub(super) async fn start(declared: Declared, settings: &Settings) -> Result<(Self, Outlet)> {
        let sink = declared.destination.open().await?;
        let options = declared.options;
        let enrolled = Enrolled {
            name: declared.name.as_str().into(),
            kind: Kind::Sink,
            mode: options.mode,
            is_from_now: options.is_from_now,
        };
        let terms = Terms {
            safety: options.safety.unwrap_or_else(|| sink.safety()),
            policy: options.policy,
            mode: enrolled.mode,
            kind: enrolled.kind,
            timeout: None,
        };
        let batched = Batched::start(&enrolled.name, sink, terms, settings);
        let own = Self {
            enrolled,
            patterns: declared.patterns,
            order: declared.treatment.order,
            order_origin: declared.order_origin,
        };
        Ok((own, Outlet::Batched(batched)))
    }
}

impl Sidecar {
    /// Refuses a sink that is registered in another order, before anything is changed for its sake in another collection.
    pub(super) async fn fits<'a>(
        &self,
        components: impl Iterator<Item = &'a Component>,
    ) -> Result<()> {
        if self.sinks.is_empty() {
            return Ok(());
        }
        let known = self.registry.look_if_allowed().await?;
        for component in components {
            // Its own trouble is that of this collection alone.
            let Ok(routes) = self.routes(component) else {
                continue;
            };
            let is_owed = |own: &&Own| !routes.to(&own.enrolled.name).is_empty();
            for Own { enrolled, .. } in self.sinks.iter().filter(is_owed) {
                known
                    .fits(&component.rows(), &enrolled.name, enrolled.mode)
                    .map_err(|error| self.placed(error))?;
            }
        }
        Ok(())
    }

    /// What is wrong with how a sink is registered, as something the file says.
    pub(super) fn placed(&self, error: Error) -> Error {
        let Error::Setting {
            value, expected, ..
        } = &error
        else {
            return error;
        };
        let of = |own: &&Own| *own.enrolled.name == **value;
        match self.sinks.iter().find(of) {
            Some(own) => Error::Setting {
                name: format!("sink {value}, order"),
                origin: own.order_origin.clone(),
                value: own.order.into(),
                expected: expected.clone(),
            },
            None => error,
        }
    }
}
