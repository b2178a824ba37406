//! Publishes the rows of services that write them themselves, in any language.
//!
//! One sidecar follows all outbox collections of a database, or those that are declared: one change stream, one seat
//! among the sidecars of that database, one connection to the broker, and for each component loops of its own.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use mongodb::Database;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    component::Component,
    config::Settings,
    error::{Error, Result, UNAUTHORIZED, code},
    health::{Health, Share},
    relay::{Relay, ledger::Left},
    report::Reports,
    routes::Routes,
    sinks::amqp::Amqp,
    slots::Seat,
    store::{
        Store, components,
        feed::{Collections, Feed, Scope},
        server::Hello,
    },
};

/// How many collections are prepared at once.
const AT_ONCE: usize = 16;

/// The least time from one look for new collections to the next.
const PACE: Duration = Duration::from_secs(1);

pub(crate) struct Sidecar {
    database: Database,
    settings: Settings,
    /// Whether every outbox collection is followed, and not only what was declared.
    all: bool,
    /// Whether someone reads the metrics.
    is_watched: bool,
    relay: Relay,
    /// Told when a row comes of a collection that is not known.
    unknown: Arc<Notify>,
}

impl Sidecar {
    /// Follows `declared` from now on or, where nothing is declared, every outbox collection of the database. The group
    /// is kept by way of `seats`, the same database by connections of its own: two hundred pumps that begin at once would
    /// otherwise keep a sign of life waiting for one.
    ///
    /// # Errors
    ///
    /// [`Error::Component`] for what contradicts itself, [`Error::Store`] and [`Error::Unfit`] if MongoDB cannot be
    /// reached, refuses, or is of a kind that keeps no rows. A broker that cannot be reached is no error.
    pub(crate) async fn open(
        database: &Database,
        seats: &Database,
        declared: Vec<Component>,
        settings: Settings,
        sink: &Amqp,
        is_watched: bool,
    ) -> Result<Self> {
        settings.check("settings")?;
        check(database, &settings).await?;
        let all = declared.is_empty();
        let seat = Seat::of_database(&settings, seats);
        let sidecar = Self {
            database: database.clone(),
            all,
            is_watched,
            relay: Relay::start(&settings, seat, sink),
            unknown: Arc::default(),
            settings,
        };
        let first = match all {
            true => components(database).await?,
            false => declared,
        };
        if first.is_empty() {
            tracing::info!("there is no outbox collection yet; they are followed as they appear");
        }
        sidecar.take_up(first).await?;
        match sidecar.settings.defer {
            true => tracing::info!("TOA_OUTBOX_DEFER: no tail, only the pump delivers"),
            false => sidecar.relay.follow(database, &sidecar.unknown, all),
        }
        Ok(sidecar)
    }

    /// Takes up collections as they appear, until it is stopped.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        let mut reports = Reports::default();
        let mut tick = tokio::time::interval(self.settings.interval.max(PACE));
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
                () = self.unknown.notified() => tick.reset(),
            }
            if let Err(error) = self.once().await {
                reports.first(&error.to_string(), |times| {
                    tracing::warn!(%error, times, "cannot look for new outbox collections");
                });
            }
        }
    }

    async fn once(&self) -> Result<()> {
        if !self.all {
            return Ok(());
        }
        let lines = self.relay.lines().all();
        let known: HashSet<&str> = lines.iter().map(|line| line.store.collection()).collect();
        let mut new = components(&self.database).await?;
        new.retain(|component| !known.contains(component.rows().as_str()));
        match new.is_empty() {
            true => Ok(()),
            false => self.take_up(new).await,
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

    async fn take_up(&self, new: Vec<Component>) -> Result<()> {
        let mut prepared = Vec::new();
        for component in &new {
            let consumed = self.settings.events.get(&component.variable());
            let routes = component.routes(consumed.map(Vec::as_slice))?;
            match routes.all.is_empty() {
                true => tracing::warn!(
                    component = component.id(),
                    "no label of it is consumed: its rows are left as they are"
                ),
                false => prepared.push((component, Arc::new(routes))),
            }
        }
        let followed =
            stream::iter(prepared).map(|(component, routes)| self.prepare(component, routes));
        let followed: Vec<_> = followed.buffered(AT_ONCE).try_collect().await?;
        let names: Vec<&str> = followed
            .iter()
            .map(|(store, _)| store.collection())
            .collect();
        if !names.is_empty() {
            let (count, names) = (names.len(), names.join(" "));
            tracing::info!(count, "follows outbox collections: {names}");
        }
        let lines = self.relay.take_up(followed).await;
        if self.is_watched {
            lines.iter().for_each(|line| self.relay.watch(line));
        }
        Ok(())
    }

    async fn prepare(
        &self,
        component: &Component,
        routes: Arc<Routes>,
    ) -> Result<(Store, Arc<Routes>)> {
        let store = Store::new(&self.database, &component.rows());
        if self.settings.ensure {
            store.ensure(self.settings.retention).await?;
        }
        Ok((store, routes))
    }
}

/// Finds out at the start what would fail later.
async fn check(database: &Database, settings: &Settings) -> Result<()> {
    if !Hello::ask(database).await?.is_transactional() {
        return Err(Error::Unfit {
            database: database.name().to_owned(),
            problem: "a standalone server has no transactions and no change streams; run MongoDB as a replica set, one                       member is enough"
                .into(),
        });
    }
    if settings.defer {
        return Ok(());
    }
    let nothing = Scope {
        lanes: Vec::new(),
        collections: Collections::All,
    };
    match Feed::open(database, &nothing).await {
        Ok(_) => Ok(()),
        Err(Error::Store { source, .. }) if code(&source) == Some(UNAUTHORIZED) => {
            Err(Error::Unfit {
                database: database.name().to_owned(),
                problem: format!(
                    "the user lacks the privileges changeStream and find on the database, which the tail needs ({source}); grant                      them, or set TOA_OUTBOX_DEFER=1 to do with the pump alone"
                ),
            })
        }
        Err(error) => Err(error),
    }
}
