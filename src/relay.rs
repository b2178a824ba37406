//! Assembles the loops of one process, holds what is in flight, and drains it at the end.
//!
//! ```text
//!   commit ──► at once ─┐
//!                       ├─► publishing ──► sink
//!   tail ───────────────┤       │
//!   pump ──► sweep ─────┘       └──► marker ──► published: true
//!     ▲
//!     └── every interval, when nudged, when the sink is back, when lanes come and go
//!
//!   seat ──► lanes, for pump, tail and publisher
//!    ▲ └───► orders to let go of them ──► handover
//!    └────── fitness: can this replica do the work at all
//! ```
//!
//! Pump and publishing are there once for each component and sink (`branch`), so that no sink waits for another; the marker
//! once for each component (`line`), so that a row which several sinks took is marked for all of them at once. All lines
//! share the sinks and the seat among the replicas. The library has one line and no tail: what it publishes at once, it
//! wrote itself.
//!
//! Every loop of the work ends by itself: the pump when it is told to stop, publishing when it is told and nothing
//! is in flight any more, the marker when publishing is gone and everything is marked. A shutdown is to
//! tell them, and to wait for at most the grace. Only then is the seat among the replicas given up: nobody
//! else sends what is still being sent here. A loop that dies takes the others with it in the same way.

pub(crate) mod backlog;
mod branch;
mod debts;
pub(crate) mod enrol;
mod fitness;
mod handover;
pub(crate) mod ledger;
mod lifetime;
pub(crate) mod line;
mod marker;
mod ordered;
mod owed;
mod publisher;
pub(crate) mod pump;
pub(crate) mod registrar;
mod retries;
mod strand;
pub(crate) mod tail;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use mongodb::Database;
use tokio::{
    sync::{Mutex, Notify, OnceCell, mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    config::Settings,
    error::Result,
    metrics::BacklogMeters,
    report::Reports,
    routes::Routes,
    sinks::{Batched, Erased, Outlet, Terms, amqp::Amqp},
    slots::{Desk, Seat},
    store::{
        Store,
        registry::{Known, Registry},
    },
};
use backlog::Watch;
use debts::Debts;
use fitness::Fitness;
use handover::Handover;
use ledger::Left;
use lifetime::Lifetime;
use line::{Line, Lines};
use registrar::Registrar;
use tail::Tail;

/// How long nothing may be marked before the lanes are left to others: a few cycles, and longer than an election.
const LEAST_PATIENCE: Duration = Duration::from_secs(30);

/// The least time from one look at what waits to the next.
const LEAST_WATCH: Duration = Duration::from_secs(5);

/// The running loops of one process. Dropped, they are told to stop and drain by themselves.
pub(crate) struct Relay {
    settings: Settings,
    sinks: Arc<[Outlet]>,
    desk: Desk,
    lines: Lines,
    registry: Registry,
    /// Where loops are started.
    tasks: mpsc::UnboundedSender<BoxFuture<'static, ()>>,
    is_hurried: watch::Receiver<bool>,
    stop: CancellationToken,
    /// Cancelled when a loop died; the others stop then, in good order.
    pub(crate) dead: CancellationToken,
    _dropped: DropGuard,
    /// Everything that runs.
    all: Mutex<JoinHandle<Left>>,
    /// What the shutdown left.
    left: OnceCell<Left>,
}

impl Amqp {
    /// Connects to the brokers of the settings, in the background and for as long as a handle exists.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`](crate::Error::Setting) if there is no URI or one of them is none, and for a certificate
    /// or key that cannot be used. That a broker cannot be reached is no error: it is tried again.
    pub fn start(settings: &Settings) -> Result<Self> {
        settings.check("builder")?;
        let (amqp, run) = Self::new(settings)?;
        tokio::spawn(run);
        Ok(amqp)
    }
}

impl Batched {
    /// Feeds a sink of the application's own, in the background and for as long as a handle exists.
    pub(crate) fn start(
        name: &str,
        sink: Box<dyn Erased>,
        terms: Terms,
        settings: &Settings,
    ) -> Self {
        let (batched, run) = Self::new(name, sink, terms, settings);
        tokio::spawn(run);
        batched
    }
}

impl Relay {
    /// Keeps the seat from now on; nothing is pumped before a component is [taken up](Self::take_up).
    pub(crate) fn start(
        settings: &Settings,
        seat: Seat,
        sinks: Vec<Outlet>,
        registry: Registry,
    ) -> Self {
        let sinks: Arc<[Outlet]> = sinks.into();
        let lines = Lines::default();
        let (stop, over) = (CancellationToken::new(), CancellationToken::new());
        let dead = CancellationToken::new();
        let (hurry, is_hurried) = watch::channel(false);
        let (tasks, more) = mpsc::unbounded_channel();
        let fitness = Fitness {
            lines: lines.clone(),
            sinks: sinks.clone(),
            beat: settings.beat,
            patience: (settings.interval * 5).max(LEAST_PATIENCE),
            unfit: seat.unfit,
        };
        let handover = Handover {
            lines: lines.clone(),
            orders: seat.orders,
            hurry,
            over: over.clone(),
        };
        let registrar = Registrar {
            registry: registry.clone(),
            lines: lines.clone(),
            sinks: sinks.clone(),
            every: settings.interval.max(registrar::LEAST),
            grace: settings.consumer_grace,
            assigned: seat.desk.assigned(),
            reports: Reports::default(),
            renewed: Instant::now(),
        };
        let mut work = JoinSet::new();
        work.spawn(fitness.run(stop.clone()));
        work.spawn(registrar.run(stop.clone()));
        let mut place = JoinSet::new();
        place.spawn(seat.keeping);
        place.spawn(handover.run());
        let lifetime = Lifetime {
            work,
            more,
            place,
            stop: stop.clone(),
            dead: dead.clone(),
            over,
            leave: seat.leave,
            lines: lines.clone(),
            grace: settings.grace,
        };
        Self {
            settings: settings.clone(),
            sinks,
            desk: seat.desk,
            lines,
            registry,
            tasks,
            is_hurried,
            _dropped: stop.clone().drop_guard(),
            stop,
            dead,
            all: Mutex::new(tokio::spawn(lifetime.run())),
            left: OnceCell::new(),
        }
    }

    /// Starts the loops of these components, each in the share of the lanes it gets. What is `known` to be registered is
    /// owed from the beginning.
    pub(crate) async fn take_up(
        &self,
        components: Vec<(Store, Arc<Routes>)>,
        known: &Known,
    ) -> Vec<Arc<Line>> {
        let named = components
            .iter()
            .map(|(store, routes)| (store.collection(), &**routes));
        let (shares, application) = self.desk.apply(&named.collect::<Vec<_>>());
        let total = self.lines.count() + components.len();
        let mut lines = Vec::new();
        for ((store, routes), share) in components.into_iter().zip(shares) {
            let parts = line::Parts {
                settings: &self.settings,
                store,
                routes,
                share,
                sinks: &self.sinks,
                known,
                is_hurried: self.is_hurried.clone(),
                lines: total,
            };
            let (line, loops) = line::line(parts, &self.stop);
            let line = Arc::new(line);
            self.lines.add(line.clone());
            loops.into_iter().for_each(|task| self.run(task));
            if line.has_own_sinks() {
                self.watch_debts(&line);
            }
            lines.push(line);
        }
        // Whoever is told of lanes finds the lines that have them.
        application.hand_in().await;
        lines
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Starts a tail over all components, those too that are taken up later. `unknown` is told of rows of a collection
    /// that is not taken up, where `all` outbox collections are followed.
    pub(crate) fn follow(&self, database: &Database, unknown: &Arc<Notify>, all: bool) {
        let tail = Tail {
            database: database.clone(),
            lines: self.lines.clone(),
            assigned: self.desk.assigned(),
            unknown: unknown.clone(),
            all,
            reports: Reports::default(),
        };
        self.run(tail.run(self.stop.clone()).boxed());
    }

    /// Tells the metrics how much waits in the collection of this line, as long as it runs.
    pub(crate) fn watch(&self, line: &Arc<Line>) {
        let watch = Watch {
            store: line.store.clone(),
            meters: BacklogMeters::new(line.routes.component()),
            every: self.settings.interval.max(LEAST_WATCH),
            reports: Reports::default(),
            known: None,
        };
        self.run(watch.run(self.stop.clone()).boxed());
        if !line.has_own_sinks() {
            self.watch_debts(line);
        }
    }

    /// Tells the metrics what the sinks are owed that are registered for the collection of this line.
    fn watch_debts(&self, line: &Arc<Line>) {
        let debts = Debts {
            registry: self.registry.clone(),
            line: line.clone(),
            is_fixed: self.settings.slot.is_some(),
            every: self.settings.interval.max(LEAST_WATCH),
            reports: Reports::default(),
            meters: HashMap::new(),
        };
        self.run(debts.run(self.stop.clone()).boxed());
    }

    /// Runs a loop beside its own, until it ends by itself or the relay takes nothing more.
    pub(crate) fn run_beside(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let until_stopped = async move {
            // None where it was stopped.
            let _ = stop.run_until_cancelled(task).await;
        };
        self.run(until_stopped.boxed());
    }

    /// Told when lanes come or go.
    pub(crate) fn assigned(&self) -> watch::Receiver<u64> {
        self.desk.assigned()
    }

    fn run(&self, task: BoxFuture<'static, ()>) {
        // Refused only after the end of all.
        let _ = self.tasks.send(task);
    }

    /// Stops taking, drains and marks within the grace, leaves its lanes to others, and says what was left behind.
    /// Called again, it says the same at once. Cancel safe: the loops go on draining.
    pub(crate) async fn shutdown(&self) -> Left {
        let drain = async {
            self.stop.cancel();
            // It has no reason to die.
            (&mut *self.all.lock().await).await.unwrap_or_default()
        };
        *self.left.get_or_init(|| drain).await
    }
}
