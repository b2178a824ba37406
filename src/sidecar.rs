//! Publishes the rows of services that write them themselves, in any language.
//!
//! One sidecar follows all outbox collections of a database, or those that are declared: one change stream, one seat
//! among the sidecars of that database, one connection to the broker, and for each component loops of its own.

mod fitness;
mod own;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bson::Bson;
use futures::{StreamExt, stream};
use mongodb::Database;
use tokio::{sync::Notify, time::Instant};

use crate::{
    component::Component,
    config::{Settings, sinks},
    error::Result,
    health::{Health, Share},
    relay::{
        Relay,
        enrol::{Enrolled, enrol},
        ledger::Left,
    },
    report::Reports,
    routes::Routes,
    sinks::{Outlet, amqp::Amqp},
    slots::Seat,
    store::{
        Found, Store,
        deliveries::{self, Deliveries},
        found,
        registry::{Known, Registry},
        rights::{Right, Rights},
    },
};
use fitness::{check, may};
use own::Own;

/// How many collections are prepared at once.
const AT_ONCE: usize = 16;

/// The least time from one look for new collections to the next.
const PACE: Duration = Duration::from_secs(1);

/// What a sidecar is to do.
pub(crate) struct Declared {
    /// None: every outbox collection of the database is followed.
    pub(crate) components: Vec<Component>,
    pub(crate) settings: Settings,
    pub(crate) broker: Option<Amqp>,
    pub(crate) sinks: Vec<sinks::Declared>,
    /// Whether someone reads the metrics.
    pub(crate) is_watched: bool,
}

/// The same database, by connections that do not wait for each other: two hundred pumps that begin at once would otherwise keep a
/// sign of life waiting for one.
pub(crate) struct Connections {
    pub(crate) rows: Database,
    /// By which the group is kept.
    pub(crate) seats: Database,
    /// For the change streams of ordered sinks, one for each collection.
    pub(crate) streams: Database,
}

pub(crate) struct Sidecar {
    database: Database,
    streams: Database,
    settings: Settings,
    /// Whether every outbox collection is followed, and not only what was declared.
    all: bool,
    /// Whether someone reads the metrics.
    is_watched: bool,
    has_broker: bool,
    /// The sinks beside the broker.
    sinks: Vec<Own>,
    registry: Registry,
    relay: Relay,
    /// Told when a row comes of a collection that is not known.
    unknown: Arc<Notify>,
    /// What there is no more to be done about: collections that are followed, or of which nothing is consumed.
    settled: Mutex<HashMap<String, Option<Bson>>>,
}

impl Sidecar {
    /// Follows `declared` from now on or, where nothing is declared, every outbox collection of the database.
    ///
    /// # Errors
    ///
    /// [`Error::Component`] for what contradicts itself, [`Error::Store`] and [`Error::Unfit`] if MongoDB cannot be
    /// reached, refuses, or is of a kind that keeps no rows. A broker that cannot be reached is no error, nor is a
    /// collection that was not declared and cannot be followed.
    pub(crate) async fn open(connections: &Connections, declared: Declared) -> Result<Self> {
        let Connections {
            rows: database,
            seats,
            streams,
        } = connections;
        let Declared {
            components,
            settings,
            broker,
            sinks,
            is_watched,
        } = declared;
        settings.check("settings")?;
        let all = components.is_empty();
        check(database, &settings, all, !sinks.is_empty()).await?;
        let has_broker = broker.is_some();
        let mut outlets: Vec<Outlet> = broker.map(Outlet::Amqp).into_iter().collect();
        let mut enrolled = Vec::new();
        for sink in sinks {
            let (own, outlet) = Own::start(sink, &settings).await?;
            outlets.push(outlet);
            enrolled.push(own);
        }
        let seat = Seat::of_database(&settings, seats);
        let registry = Registry::new(database);
        let sidecar = Self {
            database: database.clone(),
            streams: streams.clone(),
            all,
            is_watched,
            has_broker,
            sinks: enrolled,
            relay: Relay::start(&settings, seat, outlets, registry.clone()),
            registry,
            unknown: Arc::default(),
            settled: Mutex::default(),
            settings,
        };
        match all {
            true => sidecar.begin().await?,
            false => sidecar.follow(components).await?,
        }
        match sidecar.settings.defer {
            true => tracing::info!("TOA_OUTBOX_DEFER: no tail, only the pump delivers"),
            false => sidecar.relay.follow(database, &sidecar.unknown, all),
        }
        Ok(sidecar)
    }

    /// Takes up collections as they appear. Ends only by being dropped.
    pub(crate) async fn run(&self) {
        let mut reports = Reports::default();
        loop {
            let early = Instant::now() + PACE;
            // Where nothing is followed there is no tail either, to tell of the first.
            let late = match self.relay.lines().count() {
                0 => early,
                _ => early.max(Instant::now() + self.settings.interval),
            };
            tokio::select! {
                () = tokio::time::sleep_until(late) => {}
                () = self.told(early) => {}
            }
            for problem in self.once().await {
                reports.first(&problem, |times| tracing::error!(times, "{problem}"));
            }
        }
    }

    /// A row has come of a collection that is not known; not before this moment.
    async fn told(&self, early: Instant) {
        tokio::time::sleep_until(early).await;
        self.unknown.notified().await;
    }

    /// Follows what is new, and says what stands in the way.
    async fn once(&self) -> Vec<String> {
        if !self.all {
            return Vec::new();
        }
        match found(&self.database).await {
            Ok(found) => self.take_up(found).await,
            Err(error) => vec![error.to_string()],
        }
    }

    /// Tells how many lanes are owned, whenever that changes; until a loop died, whose end is that of all.
    pub(crate) async fn tell(&self, health: &Health) {
        let mut assigned = self.relay.assigned();
        loop {
            assigned.mark_unchanged();
            let lines = self.relay.lines().all();
            let lanes = lines
                .iter()
                .map(|line| line.lanes.lanes().list().len())
                .max();
            health.lanes(match lanes {
                Some(0) => {
                    Share::None("not agreed with the other replicas; the log says why".into())
                }
                Some(lanes) => Share::Owns(lanes),
                None => Share::None("there is no outbox collection yet".into()),
            });
            tokio::select! {
                Ok(()) = assigned.changed() => {}
                () = self.relay.dead.cancelled() => return health.died("a loop of the relay"),
            }
        }
    }

    /// See [`Outbox::shutdown`](crate::Outbox::shutdown).
    pub(crate) async fn shutdown(&self) -> Left {
        self.relay.shutdown().await
    }

    /// Follows all there is at the start, even if that is nothing.
    async fn begin(&self) -> Result<()> {
        let found = found(&self.database).await?;
        self.fits(found.iter().map(|found| &found.component))
            .await?;
        if found.is_empty() {
            tracing::info!("there is no outbox collection yet; they are followed as they appear");
            self.relay.take_up(Vec::new(), &Known::default()).await;
        }
        for problem in self.take_up(found).await {
            tracing::error!("{problem}");
        }
        Ok(())
    }

    /// Follows what was declared, all of it or nothing.
    async fn follow(&self, declared: Vec<Component>) -> Result<()> {
        self.fits(declared.iter()).await?;
        let known = self.registry.look_if_allowed().await?;
        let mut prepared = Vec::new();
        for component in &declared {
            prepared.extend(self.prepare(component).await?);
        }
        self.start(prepared, &known).await;
        Ok(())
    }

    /// Follows each that is not yet, and prepares again what was dropped and is back. One that cannot be followed is
    /// tried again by the next call, and keeps no other from it.
    async fn take_up(&self, found: Vec<Found>) -> Vec<String> {
        let (mut problems, mut prepared) = (Vec::new(), Vec::new());
        let new: Vec<_> = found
            .into_iter()
            .filter(|found| self.is_new(found))
            .collect();
        if new.is_empty() {
            return problems;
        }
        let known = match self.registry.look_if_allowed().await {
            Ok(known) => known,
            Err(error) => return vec![error.to_string()],
        };
        let prepare = |found: Found| async move {
            let outcome = self.prepare(&found.component).await;
            (found, outcome)
        };
        let outcomes: Vec<_> = stream::iter(new)
            .map(prepare)
            .buffered(AT_ONCE)
            .collect()
            .await;
        for (Found { component, uuid }, outcome) in outcomes {
            match outcome {
                Ok(new) => {
                    let before = self.settled().insert(component.rows(), uuid);
                    prepared.extend(new.filter(|_| before.is_none()));
                }
                Err(error) => problems.push(format!(
                    "{} is not followed: {error}; `toa-outbox check` tells more, it is tried again",
                    component.rows()
                )),
            }
        }
        self.start(prepared, &known).await;
        problems
    }

    fn is_new(&self, found: &Found) -> bool {
        self.settled().get(&found.component.rows()) != Some(&found.uuid)
    }

    async fn start(&self, prepared: Vec<(Store, Arc<Routes>)>, known: &Known) {
        if prepared.is_empty() {
            return;
        }
        let names: Vec<&str> = prepared
            .iter()
            .map(|(store, _)| store.collection())
            .collect();
        let (count, names) = (names.len(), names.join(" "));
        tracing::info!(count, "follows outbox collections: {names}");
        self.compare(&prepared);
        let lines = self.relay.take_up(prepared, known).await;
        if self.is_watched {
            lines.iter().for_each(|line| self.relay.watch(line));
        }
    }

    /// Says where two collections go by one name.
    fn compare(&self, prepared: &[(Store, Arc<Routes>)]) {
        let lines = self.relay.lines().all();
        let mut names: HashSet<&str> = lines.iter().map(|line| line.routes.component()).collect();
        for (store, routes) in prepared {
            let component = routes.component();
            if !names.insert(component) {
                tracing::warn!(
                    collection = store.collection(),
                    component,
                    "another collection is of this component too, and their messages go to the same exchanges; declare them \
                     as [[component]] to give each a name"
                );
            }
        }
    }

    /// Creates what is missing; none where nothing of it is consumed.
    async fn prepare(&self, component: &Component) -> Result<Option<(Store, Arc<Routes>)>> {
        let mut routes = self.routes(component)?;
        if routes.all.is_empty() {
            tracing::warn!(
                component = component.id(),
                "no label of it is consumed: its rows are left as they are"
            );
            return Ok(None);
        }
        let store = Store::new(&self.database, &component.rows())
            .followed_by(&self.streams)
            .wanting_digest(component.has_integrity());
        if self.settings.ensure {
            let is_shared = self.sinks.len() + usize::from(self.has_broker) > 1;
            store.ensure(self.settings.retention, is_shared).await?;
        }
        if !self.sinks.is_empty() {
            Deliveries::new(&store).ready(self.settings.ensure).await?;
        }
        let had = Rights::ask(&self.database).await?;
        let failed = store.deliveries();
        let retry = Right::all(&failed, deliveries::ACTIONS).filter(|_| !self.sinks.is_empty());
        may(
            &self.database,
            had.as_ref(),
            Right::to_publish(&component.rows()).chain(retry),
        )?;
        let enrolled: Vec<Enrolled> = self.sinks.iter().map(|own| own.enrolled.clone()).collect();
        enrol(&self.registry, &store, &mut routes, &enrolled)
            .await
            .map_err(|error| self.placed(error))?;
        Ok(Some((store, Arc::new(routes))))
    }

    /// To the broker first, if there is one, then to each sink.
    fn routes(&self, component: &Component) -> Result<Routes> {
        let nothing = Vec::new();
        let consumed = match self.has_broker {
            true => self.settings.events.get(&component.variable()),
            false => Some(&nothing),
        };
        let mut routes = component.routes(consumed.map(Vec::as_slice))?;
        for own in &self.sinks {
            let wanted = component.wanted_by(&own.enrolled.name, &own.patterns);
            routes.all.extend(wanted);
        }
        routes.bounded(component.id())
    }

    /// Nothing that panics is called under the lock, so a poisoned one is as good as any.
    fn settled(&self) -> MutexGuard<'_, HashMap<String, Option<Bson>>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
