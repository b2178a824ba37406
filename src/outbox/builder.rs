//! From what is declared to an outbox that runs.

use std::{collections::HashSet, sync::Arc};

use futures::FutureExt;
use mongodb::Database;

use super::{Inner, Mode, Outbox, gate::Gate, subscription::Hub};
use crate::{
    component::Component,
    config::Settings,
    error::{Error, Result},
    label::BoxError,
    relay::{
        Relay,
        enrol::{Enrolled, enrol},
    },
    routes::Routes,
    sinks::{
        AMQP, Batched, Consumer, Erased, Handler, Kind, Message, Outlet, Sink, SinkOptions, Terms,
        amqp::Amqp, unusable_name,
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
    handlers: Vec<Handled>,
}

/// A sink of the application's own, not started yet.
struct Own {
    name: Arc<str>,
    patterns: Vec<String>,
    sink: Box<dyn Erased>,
    options: SinkOptions,
    kind: Kind,
}

/// A handler in the service, not started yet.
struct Handled {
    name: Arc<str>,
    pattern: String,
    handler: Handler,
}

impl Builder {
    pub(super) fn new(database: &Database, component: Component, settings: Settings) -> Self {
        Self {
            database: database.clone(),
            component,
            settings,
            amqp: None,
            sinks: Vec::new(),
            handlers: Vec::new(),
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
    /// What a row owes to a sink is remembered under its name: under another name it is another sink. Opening registers it: rows
    /// are owed to it from when every live replica has seen that, within an [interval](Settings::interval), whether any replica has it
    /// at the moment or not. It is delivered to by all replicas at once, each in its lanes, in no order. At most [`Settings::inflight`] rows are on
    /// their way to it, whatever the other sinks do.
    pub fn sink(
        self,
        name: impl Into<String>,
        patterns: impl IntoIterator<Item = impl Into<String>>,
        sink: impl Sink,
    ) -> Self {
        self.sink_with(name, patterns, sink, SinkOptions::default())
    }

    /// As [`sink`](Self::sink), to be treated in another way than usual: with another policy, or
    /// [in the order of the commits](SinkOptions::ordered).
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

    /// With a handler in this service, for the messages of those labels that fit the pattern: a sink under that name, with
    /// [`Policy::backoff`](crate::Policy::backoff). Several handlers may have one name, for labels of their own.
    ///
    /// Handlers are isolated from each other: one that fails, panics or takes longer than [`Settings::sink_timeout`] has that
    /// message tried again, and is dead after 10 attempts; all others go on. A message may come again, so a handler that must not
    /// do a thing twice remembers what it has done by its own name, [`label`](crate::Message::label) and [`row`](crate::Message::row). It must not block its
    /// thread.
    ///
    /// A consumer whose code is gone must not keep rows for ever: when no replica has had it for
    /// [`Settings::consumer_grace`], it is owed nothing more, and what it was owed is *abandoned*: copies are kept in
    /// `<collection>_outbox_deliveries`. One that comes back is given what is committed from then on; what was
    /// abandoned it gets by a replay alone.
    ///
    /// ```no_run
    /// # use toa_outbox::{Component, Label, Outbox, Result, Settings};
    /// # async fn bill(_: &str) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn example(database: mongodb::Database) -> Result<()> {
    /// let pots = Component::new("tea", "pots").labels(Label::system());
    /// let pots = Outbox::builder(&database, pots, Settings::from_env()?)
    ///     .consume("billing", "tea_pots.created", async |message| {
    ///         bill(message.row()).await?;
    ///         Ok(())
    ///     })
    ///     .open()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn consume<F>(
        mut self,
        name: impl Into<String>,
        pattern: impl Into<String>,
        handler: impl Fn(Message) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.handlers.push(Handled {
            name: name.into().into(),
            pattern: pattern.into(),
            handler: Box::new(move |message| handler(message).boxed()),
        });
        self
    }

    /// Opens the outbox: creates the collection of its rows and the indexes where they are missing, and starts the relay. A
    /// broker that cannot be reached is no error. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Component`] and [`Error::Setting`] for what cannot be used, names and patterns of sinks included,
    /// [`Error::Unfit`] for an [ordered](SinkOptions::ordered) sink on a standalone server,
    /// [`Error::Unfit`] where there are sinks and what they fail to take could not be kept, for want of a collection or of rights,
    /// [`Error::Store`] if MongoDB cannot be reached or refuses.
    pub async fn open(mut self) -> Result<Outbox> {
        self.settings.check("builder")?;
        self.gather()?;
        let mut routes = self.routes()?;
        if routes.all.is_empty() {
            tracing::info!(
                component = self.component.id(),
                "no label is consumed: no rows are written"
            );
            return Ok(self.outbox(Arc::new(routes), Mode::Nothing));
        }
        let is_transactional = Hello::ask(&self.database).await?.is_transactional();
        if is_transactional {
            self.prepare(&mut routes).await?;
        }
        let routes = Arc::new(routes);
        let mode = match is_transactional {
            true => self.relayed(&routes).await?,
            false => self.inline(&routes)?,
        };
        Ok(self.outbox(routes, mode))
    }

    /// The handlers of one name become one sink.
    fn gather(&mut self) -> Result<()> {
        let mut consumers: Vec<(Arc<str>, Vec<String>, Consumer)> = Vec::new();
        for Handled {
            name,
            pattern,
            handler,
        } in self.handlers.drain(..)
        {
            let patterns = [pattern.clone()];
            let routes = self.component.routes_to(&name, &patterns)?;
            let labels: Vec<String> = routes
                .iter()
                .map(|route| route.label.name().to_owned())
                .collect();
            let place = consumers.iter().position(|(known, ..)| *known == name);
            let place = place.unwrap_or_else(|| {
                let consumer = Consumer::new(self.settings.sink_timeout);
                consumers.push((name.clone(), Vec::new(), consumer));
                consumers.len() - 1
            });
            let (_, all, consumer) = &mut consumers[place];
            if let Some(before) = consumer.handles(&labels) {
                return Err(Error::Setting {
                    name: format!("consumer {name:?}"),
                    origin: "builder".into(),
                    value: pattern,
                    expected: format!(
                        "expected a pattern of other labels than {before:?}, which has a handler under this name"
                    ),
                });
            }
            all.push(pattern.clone());
            consumer.add(pattern, labels, handler);
        }
        for (name, patterns, consumer) in consumers {
            self.sinks.push(Own {
                name,
                patterns,
                sink: Box::new(consumer),
                options: SinkOptions::default(),
                kind: Kind::Consumer,
            });
        }
        Ok(())
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
        routes.bounded(self.component.id())
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

    /// Those sinks that are owed something.
    fn start(&mut self, routes: &Routes) -> Result<Vec<Outlet>> {
        let mut sinks = Vec::new();
        if !routes.to(AMQP).is_empty() {
            let amqp = match &self.amqp {
                Some(amqp) => amqp.clone(),
                None => Amqp::start(&self.settings)?,
            };
            sinks.push(Outlet::Amqp(amqp));
        }
        for own in self.sinks.drain(..) {
            let its_own = || own.sink.safety();
            let labels = routes.names(routes.to(&own.name)).len();
            let of_handlers = || Consumer::patience(self.settings.sink_timeout, labels);
            let terms = Terms {
                safety: own.options.safety.unwrap_or_else(its_own),
                policy: own.options.policy,
                mode: own.options.mode,
                kind: own.kind,
                timeout: (own.kind == Kind::Consumer).then(of_handlers),
            };
            let started = Batched::start(&own.name, own.sink, terms, &self.settings);
            sinks.push(Outlet::Batched(started));
        }
        Ok(sinks)
    }

    /// Makes what is missing, and registers what is served here.
    async fn prepare(&self, routes: &mut Routes) -> Result<()> {
        let store = self.store();
        if self.settings.ensure {
            let is_shared = self.sinks.len() > usize::from(routes.to(AMQP).is_empty());
            store.ensure(self.settings.retention, is_shared).await?;
        }
        if !self.sinks.is_empty() {
            let deliveries = Deliveries::new(&store);
            deliveries.ready(self.settings.ensure).await?;
        }
        let enrolled = self.sinks.iter().map(|own| Enrolled {
            name: own.name.clone(),
            kind: own.kind,
            mode: own.options.mode,
            is_from_now: own.options.is_from_now,
        });
        let enrolled: Vec<_> = enrolled.collect();
        let registry = Registry::new(&self.database);
        enrol(&registry, &store, routes, &enrolled).await
    }

    async fn relayed(&mut self, routes: &Arc<Routes>) -> Result<Mode> {
        let registry = Registry::new(&self.database);
        // After it is registered itself, so that whoever has registered meanwhile is known too.
        let known = registry.look_if_allowed().await?;
        let sinks = self.start(routes)?;
        if self.settings.defer {
            tracing::info!(
                component = self.component.id(),
                "TOA_OUTBOX_DEFER: only the pump delivers"
            );
        }
        let seat = Seat::of_component(&self.settings, &self.database, &self.component.rows());
        let relay = Relay::start(&self.settings, seat, sinks, registry);
        let mut lines = relay
            .take_up(vec![(self.store(), routes.clone())], &known)
            .await;
        // One component, one line.
        Ok(Mode::Rows(Box::new(relay), lines.swap_remove(0)))
    }

    fn inline(&mut self, routes: &Routes) -> Result<Mode> {
        if let Some(own) = self
            .sinks
            .iter()
            .find(|own| own.options.mode.order().is_some())
        {
            return Err(Error::Unfit {
                database: self.database.name().into(),
                problem: format!(
                    "a standalone server has no change stream, which sink {:?} needs for its order; run MongoDB as a replica set, \
                     one member is enough",
                    own.name
                ),
            });
        }
        tracing::warn!(
            component = self.component.id(),
            "a standalone server has no transactions: events are published by the operation itself \
             and are lost if it dies in between; run MongoDB as a replica set, one member is enough"
        );
        Ok(Mode::Inline(self.start(routes)?))
    }

    fn outbox(self, routes: Arc<Routes>, mode: Mode) -> Outbox {
        let gate = match (&mode, self.settings.ceiling) {
            (Mode::Rows(relay, _), Some(ceiling)) => {
                Some(Gate::start(ceiling, self.store(), relay))
            }
            _ => None,
        };
        let inner = Inner {
            component: self.component.id(),
            has_integrity: self.component.has_integrity(),
            redact: self.component.redacted().to_vec(),
            gate,
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
