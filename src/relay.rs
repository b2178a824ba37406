//! Assembles the loops of one component, holds what is in flight, and drains it at the end.
//!
//! ```text
//!   commit ──► at once ─┐
//!                       ├─► publishing ──► sink
//!   pump ──► sweep ─────┘       │
//!     ▲                         └──► marker ──► published: true
//!     └── every interval, when nudged, when the sink is back
//! ```
//!
//! Every loop ends by itself: the pump when it is told to stop, publishing when it is told and nothing
//! is in flight any more, the marker when publishing is gone and everything is marked. A shutdown is to
//! tell them, and to wait for at most the grace.

pub(crate) mod ledger;
mod marker;
mod publisher;
pub(crate) mod pump;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, Notify, OnceCell, mpsc},
    task::JoinSet,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    config::Settings, error::Result, report::Reports, routes::Routes, row::Row, sinks::amqp::Amqp,
    slots::Ownership, store::Store,
};
use ledger::{Claim, Ledger, Left};
use marker::Marker;
use publisher::{Parts, Publisher};
use pump::{Cycle, Pass, Pump};

/// The longest a mark waits for company, however long the interval.
const LONGEST_LINGER: Duration = Duration::from_millis(500);

/// Ids remembered of a kind, for each row that may be in flight.
const REMEMBERED: usize = 10;

/// The running loops of one component. Dropped, they are told to stop and drain by themselves.
pub(crate) struct Relay {
    ledger: Arc<Ledger>,
    publisher: Publisher,
    cycle: Arc<Mutex<Cycle>>,
    nudge: Arc<Notify>,
    sink: Amqp,
    grace: Duration,
    stop: CancellationToken,
    _dropped: DropGuard,
    loops: Mutex<JoinSet<()>>,
    /// What the shutdown left.
    left: OnceCell<Left>,
}

impl Amqp {
    /// Connects to the brokers of the settings, in the background and for as long as a handle exists.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`](crate::Error::Setting) if there is no URI or one of them is none. That a
    /// broker cannot be reached is no error: it is tried again.
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
        lanes: &Ownership,
        sink: &Amqp,
    ) -> Self {
        let ledger = Ledger::new(settings.inflight as usize * REMEMBERED);
        let nudge = Arc::new(Notify::new());
        let (marks, inbox) = mpsc::unbounded_channel();
        let (publisher, publishing) = publisher::publisher(Parts {
            ledger: ledger.clone(),
            lanes: lanes.clone(),
            sink: sink.clone(),
            interval: settings.interval,
            routes: routes.clone(),
            marks,
            nudge: nudge.clone(),
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
        }));
        let pump = Pump {
            cycle: cycle.clone(),
            interval: settings.interval,
            nudge: nudge.clone(),
            lanes: lanes.clone(),
            sink: sink.clone(),
        };
        let marker = Marker {
            store: store.clone(),
            routes: routes.clone(),
            ledger: ledger.clone(),
            inbox,
            linger: (settings.interval / 10).min(LONGEST_LINGER),
        };
        let stop = CancellationToken::new();
        let mut loops = JoinSet::new();
        loops.spawn(pump.run(stop.clone()));
        loops.spawn(publishing.run(stop.clone()));
        loops.spawn(marker.run());
        Self {
            ledger,
            publisher,
            cycle,
            nudge,
            sink: sink.clone(),
            grace: settings.grace,
            _dropped: stop.clone().drop_guard(),
            stop,
            loops: Mutex::new(loops),
            left: OnceCell::new(),
        }
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

    /// Stops taking, drains and marks within the grace, and says what was left behind. Called again, it
    /// says the same at once. Cancel safe: the loops go on draining.
    pub(crate) async fn shutdown(&self) -> Left {
        *self.left.get_or_init(|| self.drain()).await
    }

    async fn drain(&self) -> Left {
        self.stop.cancel();
        // Where the caller gives up waiting, the loops stay here, and go on draining.
        let mut loops = self.loops.lock().await;
        let drained = tokio::time::timeout(self.grace, ended(&mut loops)).await;
        // Counted before the loops are ended: they forget what is in flight.
        let left = self.ledger.left();
        if drained.is_err() {
            // What is in flight must not leave after everyone was told that it may not have.
            if left.in_flight > 0 {
                self.sink.cut();
            }
            loops.shutdown().await;
        }
        tracing::info!(
            in_flight = left.in_flight,
            unmarked = left.unmarked,
            unsent = left.unsent,
            "stopped; what is left stays in the outbox"
        );
        left
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.loops.get_mut().detach_all();
    }
}

async fn ended(loops: &mut JoinSet<()>) {
    while let Some(result) = loops.join_next().await {
        if let Err(error) = result {
            tracing::error!(%error, "a loop of the relay died");
        }
    }
}
