//! From what is declared to an outbox that runs.

use std::{collections::HashSet, sync::Arc};

use mongodb::Database;

use super::{Inner, Mode, Outbox, subscription::Hub};
use crate::{
    component::Component,
    config::Settings,
    error::{Error, Result},
    relay::Relay,
    routes::{MOST, Routes},
    sinks::{
        AMQP, Batched, Erased, Kind, Outlet, Sink, SinkOptions, Terms, amqp::Amqp, unusable_name,
    },
    slots::Seat,
    store::{Store, deliveries::Deliveries, registry::Registry, server::Hello},
};

/// What an outbox is made of; see [`Outbox::builder`]. Once it is open, its sinks are what they are.
pub struct Builder {
    database: Database,
    component: Component,
    settings: Settings,
    amqp: Option<Amqp>,
    sinks: Vec<Own>,
}

/// A sink of the application's own, not started yet.
struct Own {
    name: Arc<str>,
    patterns: Vec<String>,
    sink: Box<dyn Erased>,
    options: SinkOptions,
    kind: Kind,
}

impl Builder {
    pub(super) fn new(database: &Database, component: Component, settings: Settings) -> Self {
        Self {
            database: database.clone(),
            component,
            settings,
            amqp: None,
            sinks: Vec::new(),
        }
    }

    /// With a connection to the broker that may be shared by several outboxes. Without, the outbox has one of its own;
    /// or none, where there are other sinks and no broker in its settings.
    pub fn amqp(mut self, amqp: &Amqp) -> Self {
        self.amqp = Some(amqp.clone());
        self
    }

    /// With a sink of the application's own under a name of 1 to 100 letters, digits or `. _ - @`, and what it is given: the
    /// messages of those labels that fit one of the patterns, which are as in [`Outbox::subscribe`]. Whether the broker's
    /// consumers want a label too ([`Settings::events`]) is of no meaning here.
    ///
    /// What a row owes to a sink is remembered under its name: under another name it is another sink. A row is owed to it
    /// while at least one live replica of the component has it; what is committed while none has, it misses. It is delivered to by
    /// all replicas at once, each in its lanes, in no order. At most [`Settings::inflight`] rows are on
    /// their way to it, whatever the other sinks do.
    pub fn sink(
        self,
        name: impl Into<String>,
        patterns: impl IntoIterator<Item = impl Into<String>>,
        sink: impl Sink,
    ) -> Self {
        self.sink_with(name, patterns, sink, SinkOptions::default())
    }

    /// As [`sink`](Self::sink), to be treated in another way than usual.
    pub fn sink_with(
        mut self,
        name: impl Into<String>,
        patterns: impl IntoIterator<Item = impl Into<String>>,
        sink: impl Sink,
        options: SinkOptions,
    ) -> Self {
        self.sinks.push(Own {
            name: name.into().into(),
            patterns: patterns.into_iter().map(Into::into).collect(),
            sink: Box::new(sink),
            options,
            kind: Kind::Sink,
        });
        self
    }

    /// Opens the outbox: creates the collection of its rows and the indexes where they are missing, and starts the relay. A
    /// broker that cannot be reached is no error. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Component`] and [`Error::Setting`] for what cannot be used, names and patterns of sinks included,
    /// [`Error::Unfit`] where there are sinks and what they fail to take could not be kept, for want of a collection or of rights,
    /// [`Error::Store`] if MongoDB cannot be reached or refuses.
    pub async fn open(mut self) -> Result<Outbox> {
        self.settings.check("builder")?;
        let routes = Arc::new(self.routes()?);
        if routes.all.is_empty() {
            tracing::info!(
                component = self.component.id(),
                "no label is consumed: no rows are written"
            );
            return Ok(self.outbox(routes, Mode::Nothing));
        }
        let mode = match Hello::ask(&self.database).await?.is_transactional() {
            true => self.relayed(&routes).await?,
            false => self.inline(&routes)?,
        };
        Ok(self.outbox(routes, mode))
    }

    fn store(&self) -> Store {
        Store::new(&self.database, &self.component.rows())
    }

    /// To the broker first, if there is one, then to each sink.
    fn routes(&self) -> Result<Routes> {
        self.check()?;
        let has_broker = self.amqp.is_some() || !self.settings.amqp.is_empty();
        let consumed = match has_broker || self.sinks.is_empty() {
            true => self.settings.events.get(&self.component.variable()),
            false => Some(&Vec::new()),
        };
        let mut routes = self.component.routes(consumed.map(Vec::as_slice))?;
        for sink in &self.sinks {
            let own = self.component.routes_to(&sink.name, &sink.patterns)?;
            routes.all.extend(own);
        }
        match routes.all.len() {
            0..=MOST => Ok(routes),
            count => Err(Error::Component {
                component: self.component.id(),
                problem: format!(
                    "{count} labels to sinks, each counted once a sink; at most {MOST}"
                ),
            }),
        }
    }

    fn check(&self) -> Result<()> {
        let mut names = HashSet::new();
        for Own { name, patterns, .. } in &self.sinks {
            let problem = match unusable_name(name) {
                Some(problem) => problem,
                None if !names.insert(name) => "there is another of that name",
                None if patterns.is_empty() => "expected at least one pattern of labels",
                None => continue,
            };
            return Err(Error::Setting {
                name: "sink".into(),
                origin: "builder".into(),
                value: name.to_string(),
                expected: problem.into(),
            });
        }
        Ok(())
    }

    /// Those sinks that are owed something, and since when each of the application's own has been registered.
    fn start(&mut self, routes: &Routes, since: &[i64]) -> Result<Vec<Outlet>> {
        let mut sinks = Vec::new();
        if !routes.to(AMQP).is_empty() {
            let amqp = match &self.amqp {
                Some(amqp) => amqp.clone(),
                None => Amqp::start(&self.settings)?,
            };
            sinks.push(Outlet::Amqp(amqp));
        }
        for (own, since) in self.sinks.drain(..).zip(since) {
            let terms = Terms {
                policy: own.options.policy,
                kind: own.kind,
                from: own.options.is_from_now.then_some(*since),
            };
            let started = Batched::start(&own.name, own.sink, terms, &self.settings);
            sinks.push(Outlet::Batched(started));
        }
        Ok(sinks)
    }

    async fn relayed(&mut self, routes: &Arc<Routes>) -> Result<Mode> {
        let store = self.store();
        if self.settings.ensure {
            let is_shared = self.sinks.len() > usize::from(routes.to(AMQP).is_empty());
            store.ensure(self.settings.retention, is_shared).await?;
        }
        if !self.sinks.is_empty() {
            let deliveries = Deliveries::new(&store);
            deliveries.ready(self.settings.ensure).await?;
        }
        let registry = Registry::new(&self.database);
        let since = self.register(&registry, &store, routes).await?;
        // After that, so that whoever has registered meanwhile is known too.
        let known = registry.look_if_allowed().await?;
        let sinks = self.start(routes, &since)?;
        if self.settings.defer {
            tracing::info!(
                component = self.component.id(),
                "TOA_OUTBOX_DEFER: only the pump delivers"
            );
        }
        let seat = Seat::of_component(&self.settings, &self.database, &self.component.rows());
        let relay = Relay::start(&self.settings, seat, sinks, registry);
        let mut lines = relay.take_up(vec![(store, routes.clone())], &known).await;
        // One component, one line.
        Ok(Mode::Rows(Box::new(relay), lines.swap_remove(0)))
    }

    /// Has rows owe what is served here, whether it is or not. When each sink of the application's own was registered first.
    async fn register(
        &self,
        registry: &Registry,
        store: &Store,
        routes: &Routes,
    ) -> Result<Vec<i64>> {
        let mut since = Vec::new();
        if self.sinks.is_empty() {
            return Ok(since);
        }
        let rows = store.collection();
        let to_broker = routes.names(routes.to(AMQP));
        if !to_broker.is_empty() {
            registry
                .register(rows, AMQP, Kind::Sink, &to_broker)
                .await?;
        }
        for own in &self.sinks {
            let names = routes.names(routes.to(&own.name));
            let registered = registry.register(rows, &own.name, own.kind, &names).await?;
            since.push(registered.timestamp_millis());
        }
        Ok(since)
    }

    fn inline(&mut self, routes: &Routes) -> Result<Mode> {
        tracing::warn!(
            component = self.component.id(),
            "a standalone server has no transactions: events are published by the operation itself \
             and are lost if it dies in between; run MongoDB as a replica set, one member is enough"
        );
        let since = vec![0; self.sinks.len()];
        Ok(Mode::Inline(self.start(routes, &since)?))
    }

    fn outbox(self, routes: Arc<Routes>, mode: Mode) -> Outbox {
        let inner = Inner {
            component: self.component.id(),
            entities: self.database.collection(&self.component.entities()),
            store: self.store(),
            database: self.database,
            routes,
            settings: self.settings,
            mode,
            hub: Hub::default(),
        };
        Outbox {
            inner: Arc::new(inner),
        }
    }
}
