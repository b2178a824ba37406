//! Assembles the loops of one component, holds what is in flight, and drains it at the end.
//!
//! ```text
//!   commit ──► at once ─┐
//!                       ├─► publishing ──► sink
//!   pump ──► sweep ─────┘       │
//!     ▲                         └──► marker ──► published: true
//!     └── every interval, when nudged, when the sink is back, when lanes come and go
//!
//!   seat ──► lanes, for pump and publisher
//!    ▲ └───► orders to let go of them ──► handover
//!    └────── fitness: can this replica do the work at all
//! ```
//!
//! Every loop of the work ends by itself: the pump when it is told to stop, publishing when it is told and nothing
//! is in flight any more, the marker when publishing is gone and everything is marked. A shutdown is to
//! tell them, and to wait for at most the grace. Only then is the seat among the replicas given up: nobody
//! else sends what is still being sent here. A loop that dies takes the others with it in the same way.

#[cfg(feature = "sidecar")]
pub(crate) mod backlog;
mod fitness;
mod handover;
pub(crate) mod ledger;
mod lifetime;
mod marker;
mod publisher;
pub(crate) mod pump;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, Notify, OnceCell, mpsc, watch},
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    config::Settings,
    error::Result,
    report::Reports,
    routes::Routes,
    row::Row,
    sinks::amqp::Amqp,
    slots::{Ownership, Seat},
    store::Store,
};
use fitness::Fitness;
use handover::Handover;
use ledger::{Claim, Ledger, Left};
use lifetime::Lifetime;
use marker::Marker;
use publisher::{Parts, Publisher};
use pump::{Cycle, Pass, Pump};

/// The longest a mark waits for company, however long the interval.
const LONGEST_LINGER: Duration = Duration::from_millis(500);

/// Ids remembered of a kind, for each row that may be in flight.
const REMEMBERED: usize = 10;

/// How long nothing may be marked before the lanes are left to others: a few cycles, and longer than an election.
const LEAST_PATIENCE: Duration = Duration::from_secs(30);

/// The running loops of one component. Dropped, they are told to stop and drain by themselves.
pub(crate) struct Relay {
    ledger: Arc<Ledger>,
    publisher: Publisher,
    cycle: Arc<Mutex<Cycle>>,
    nudge: Arc<Notify>,
    stop: CancellationToken,
    _dropped: DropGuard,
    lanes: Ownership,
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

impl Relay {
    pub(crate) fn start(
        settings: &Settings,
        store: &Store,
        routes: &Arc<Routes>,
        seat: Seat,
        sink: &Amqp,
    ) -> Self {
        let lanes = seat.ownership.clone();
        let ledger = Ledger::new(settings.inflight as usize * REMEMBERED);
        let nudge = Arc::new(Notify::new());
        let meters = routes.meters();
        let (marks, inbox) = mpsc::unbounded_channel();
        let (publisher, publishing) = publisher::publisher(Parts {
            ledger: ledger.clone(),
            lanes: lanes.clone(),
            sink: sink.clone(),
            interval: settings.interval,
            routes: routes.clone(),
            marks,
            nudge: nudge.clone(),
            meters: meters.clone(),
        });
        let cycle = Arc::new(Mutex::new(Cycle {
            store: store.clone(),
            ledger: ledger.clone(),
            publisher: publisher.clone(),
            lanes: lanes.clone(),
            sink: sink.clone(),
            routes: routes.clone(),
            batch: settings.batch,
            malformed: Reports::default(),
            first: 0,
            meters: meters.clone(),
        }));
        let pump = Pump {
            cycle: cycle.clone(),
            interval: settings.interval,
            nudge: nudge.clone(),
            lanes: lanes.clone(),
            sink: sink.clone(),
        };
        let (hurry, is_hurried) = watch::channel(false);
        let marker = Marker {
            store: store.clone(),
            routes: routes.clone(),
            ledger: ledger.clone(),
            inbox,
            linger: (settings.interval / 10).min(LONGEST_LINGER),
            others: seat.others,
            hurry: is_hurried,
            meters,
        };
        let fitness = Fitness {
            ledger: ledger.clone(),
            sink: sink.clone(),
            beat: settings.beat,
            patience: (settings.interval * 5).max(LEAST_PATIENCE),
            fit: seat.fit,
        };
        let (stop, over) = (CancellationToken::new(), CancellationToken::new());
        let handover = Handover {
            store: store.clone(),
            ledger: ledger.clone(),
            sink: sink.clone(),
            orders: seat.orders,
            hurry,
            over: over.clone(),
        };
        let mut work = JoinSet::new();
        work.spawn(pump.run(stop.clone()));
        work.spawn(publishing.run(stop.clone()));
        work.spawn(marker.run());
        work.spawn(fitness.run(stop.clone()));
        let mut place = JoinSet::new();
        place.spawn(seat.keeping);
        place.spawn(handover.run());
        let lifetime = Lifetime {
            work,
            place,
            stop: stop.clone(),
            over,
            leave: seat.leave,
            ledger: ledger.clone(),
            sink: sink.clone(),
            grace: settings.grace,
        };
        Self {
            ledger,
            publisher,
            cycle,
            nudge,
            _dropped: stop.clone().drop_guard(),
            stop,
            lanes,
            all: Mutex::new(tokio::spawn(lifetime.run())),
            left: OnceCell::new(),
        }
    }

    /// What is owned, for whoever writes rows.
    pub(crate) fn lanes(&self) -> &Ownership {
        &self.lanes
    }

    /// Makes a row known before its commit; see [`Ledger::hold`].
    pub(crate) fn hold(&self, row: &Row) -> Claim {
        self.ledger.hold(row)
    }

    pub(crate) fn publish(&self, row: Row, claim: Claim) {
        self.publisher.at_once(row, claim);
    }

    pub(crate) fn nudge(&self) {
        self.nudge.notify_one();
    }

    pub(crate) async fn pass(&self) -> Result<Pass> {
        pump::pass(&self.cycle).await
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
