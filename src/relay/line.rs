//! The way of one component's rows, from its collection to the sink: its ledger, and its loops.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::{Claim, Ledger, Left, Swept},
    marker::Marker,
    publisher::{self, Publisher},
    pump::{self, Cycle, Pass, Pump},
};
use crate::{
    config::Settings,
    error::Result,
    metrics::Meters,
    report::Reports,
    routes::Routes,
    row::{Row, now},
    sinks::amqp::Amqp,
    slots::{Lanes, Ownership, Share},
    store::{Store, decode},
};

/// The longest a mark waits for company, however long the interval.
const LONGEST_LINGER: Duration = Duration::from_millis(500);

/// Ids remembered of a kind, for each row that may be in flight: all lines together as many as one alone, and each at
/// least as many as may be in flight.
const REMEMBERED: usize = 10;

/// How long before it is due a row may be taken from the tail, in milliseconds: clocks of writers differ a little.
const LEEWAY: i64 = 1000;

/// The handle of one component's loops.
pub(crate) struct Line {
    pub(crate) store: Store,
    pub(crate) routes: Arc<Routes>,
    pub(crate) ledger: Arc<Ledger>,
    pub(super) publisher: Publisher,
    /// What is owned, for whoever writes rows.
    pub(crate) lanes: Ownership,
    meters: Meters,
    cycle: Arc<tokio::sync::Mutex<Cycle>>,
    nudge: Arc<Notify>,
}

/// What a line is made of.
pub(super) struct Parts<'a> {
    pub(super) settings: &'a Settings,
    pub(super) store: Store,
    pub(super) routes: Arc<Routes>,
    pub(super) share: Share,
    pub(super) sink: &'a Amqp,
    pub(super) is_hurried: watch::Receiver<bool>,
    /// How many there are with this one.
    pub(super) lines: usize,
}

/// The line and its loops, each of which ends by itself some time after `stop`.
pub(super) fn line(
    parts: Parts<'_>,
    stop: &CancellationToken,
) -> (Line, [BoxFuture<'static, ()>; 3]) {
    let Parts {
        settings,
        store,
        routes,
        share,
        sink,
        is_hurried,
        lines,
    } = parts;
    let lanes = share.ownership;
    let ledger = Ledger::new(settings.inflight as usize * (REMEMBERED / lines).max(1));
    let nudge = Arc::new(Notify::new());
    let meters = routes.meters();
    let (marks, inbox) = mpsc::unbounded_channel();
    let (publisher, publishing) = publisher::publisher(publisher::Parts {
        ledger: ledger.clone(),
        lanes: lanes.clone(),
        sink: sink.clone(),
        interval: settings.interval,
        routes: routes.clone(),
        marks,
        nudge: nudge.clone(),
        meters: meters.clone(),
        early: (settings.inflight as usize / 10).max(1),
    });
    let cycle = Arc::new(tokio::sync::Mutex::new(Cycle {
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
    let marker = Marker {
        store: store.clone(),
        routes: routes.clone(),
        ledger: ledger.clone(),
        inbox,
        linger: (settings.interval / 10).min(LONGEST_LINGER),
        others: share.others,
        hurry: is_hurried,
        meters: meters.clone(),
    };
    let loops = [
        pump.run(stop.clone()).boxed(),
        publishing.run(stop.clone()).boxed(),
        marker.run().boxed(),
    ];
    let line = Line {
        store,
        routes,
        ledger,
        publisher,
        lanes,
        meters,
        cycle,
        nudge,
    };
    (line, loops)
}

impl Line {
    /// Makes a row known before its commit; see [`Ledger::hold`].
    pub(crate) fn hold(&self, row: &Row) -> Claim {
        self.ledger.hold(row)
    }

    pub(crate) fn publish(&self, row: Row, claim: Claim) {
        self.publisher.at_once(row, claim);
    }

    /// Starts a cycle at once. Calls coalesce.
    pub(crate) fn nudge(&self) {
        self.nudge.notify_one();
    }

    pub(crate) async fn pass(&self) -> Result<Pass> {
        pump::pass(&self.cycle).await
    }

    /// Takes up a row that the tail has brought, if it is due, ours by the right to `lanes`, and not known already;
    /// waits for its turn. What is not taken up is the pump's. Whether it was.
    pub(super) async fn take(&self, raw: &bson::RawDocument, lanes: &Lanes) -> bool {
        let Ok(row) = decode(raw) else { return false };
        let wait = row.pending.saturating_sub(now());
        if wait > LEEWAY || !self.may_send(&row, lanes) {
            return false;
        }
        if self.ledger.is_tailed(&row.id) {
            self.meters.avoided();
            return false;
        }
        let wait = u64::try_from(wait).unwrap_or(0);
        let due = Instant::now() + Duration::from_millis(wait);
        let Some(turn) = self.publisher.tail_turn(wait > 0).await else {
            return false;
        };
        // Taken only when its turn has come: what is taken has to be let go of with its lane.
        let Some(grant) = lanes.grant(row.lane) else {
            return false;
        };
        let Some(claim) = self.ledger.claim_tailed(&row) else {
            return false;
        };
        self.publisher.tail(row, claim, grant, turn, due);
        true
    }

    /// Where marks do not come through, the pump has to wait, and the tail goes on for the others.
    fn may_send(&self, row: &Row, lanes: &Lanes) -> bool {
        let grant = lanes.grant(row.lane);
        let owed = row.outstanding.as_deref();
        self.publisher.sink.is_up()
            && self.ledger.has_room()
            && grant.is_some_and(|grant| self.routes.concern(grant.routes, owed))
    }
}

/// All lines of a process, for those who care for the whole of it.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    lines: Vec<Arc<Line>>,
    /// Whether there is a tail.
    is_tailed: bool,
}

impl Lines {
    pub(super) fn add(&self, line: Arc<Line>) {
        let mut all = self.lock();
        if all.is_tailed {
            line.ledger.tail_opens();
        }
        all.lines.push(line);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Line>> {
        self.lock().lines.clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().lines.len()
    }

    /// A tail is about to open, or has ended, for those lines too that come later.
    pub(super) fn set_tailed(&self, is_tailed: bool) {
        let mut all = self.lock();
        all.is_tailed = is_tailed;
        for line in &all.lines {
            match is_tailed {
                true => line.ledger.tail_opens(),
                false => line.ledger.tail_ends(),
            }
        }
    }

    /// What is in memory now.
    pub(crate) fn left(&self) -> Left {
        let all = self.lock();
        let left = all.lines.iter().map(|line| line.ledger.left());
        left.fold(Left::default(), |sum, left| Left {
            in_flight: sum.in_flight + left.in_flight,
            unmarked: sum.unmarked + left.unmarked,
            unsent: sum.unsent + left.unsent,
        })
    }

    /// How many swept rows are in flight.
    pub(super) fn swept_in_flight(&self) -> usize {
        let all = self.lock();
        let swept = all.lines.iter().map(|line| line.ledger.swept());
        swept.map(|swept| swept.in_flight).sum()
    }

    /// How many rows were marked since the beginning, to see that it goes on.
    pub(super) fn marked_so_far(&self) -> u64 {
        let all = self.lock();
        all.lines
            .iter()
            .map(|line| line.ledger.marked_so_far())
            .sum()
    }

    /// Waits until the swept rows of each are as `expected`, while nothing is begun any more. Cancel safe.
    pub(super) async fn until_swept(&self, expected: impl Fn(Swept) -> bool) {
        for line in self.all() {
            line.ledger.until_swept(&expected).await;
        }
    }

    /// Nothing that panics is called under the lock, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
