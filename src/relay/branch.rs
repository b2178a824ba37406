//! What a line has for one sink: its ledger, and the loops that send. Nothing of it waits for another sink's.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::{Claim, Ledger},
    marker::Mark,
    owed::Owed,
    publisher::{self, Publisher},
    pump::{self, Cycle, Pass, Pump},
    retries::{FEW, LOOK, Retries},
};
use crate::{
    config::Settings,
    error::Result,
    metrics::Meters,
    report::Reports,
    routes::{RouteSet, Routes},
    row::{Row, now},
    sinks::Outlet,
    slots::{Lanes, Ownership},
    store::{Store, deliveries::Deliveries},
};

/// How long before it is due a row may be taken from the tail, in milliseconds: clocks of writers differ a little.
const LEEWAY: i64 = 1000;

pub(crate) struct Branch {
    pub(super) ledger: Arc<Ledger>,
    pub(super) meters: Meters,
    publisher: Publisher,
    routes: Arc<Routes>,
    /// Those of them that go to its sink.
    own: RouteSet,
    cycle: Arc<Mutex<Cycle>>,
    nudge: Arc<Notify>,
    sink: Outlet,
}

/// What a branch is made of.
pub(super) struct Parts<'a> {
    pub(super) settings: &'a Settings,
    pub(super) store: &'a Store,
    pub(super) routes: &'a Arc<Routes>,
    /// What is owned, for whichever sink.
    pub(super) lanes: &'a Ownership,
    pub(super) sink: &'a Outlet,
    /// What rows are owed to besides.
    pub(super) others: &'a Owed,
    pub(super) marks: &'a mpsc::UnboundedSender<Mark>,
    /// Which one of its line it is.
    pub(super) number: usize,
    /// How many lines there are with its own.
    pub(super) lines: usize,
    /// How many ids of a kind it may remember.
    pub(super) remembered: usize,
}

/// The branch and its loops, each of which ends by itself some time after `stop`.
pub(super) fn branch(
    parts: &Parts<'_>,
    stop: &CancellationToken,
) -> (Branch, Vec<BoxFuture<'static, ()>>) {
    let Parts { settings, sink, .. } = parts;
    let own = parts.routes.to(sink.name());
    let lanes = parts.lanes.only(own);
    let ledger = Ledger::new(parts.remembered);
    let nudge = Arc::new(Notify::new());
    let meters = parts.routes.meters(sink.name());
    let (publisher, publishing) = publisher::publisher(publisher::Parts {
        ledger: ledger.clone(),
        lanes: lanes.clone(),
        sink: (*sink).clone(),
        interval: settings.interval,
        routes: parts.routes.clone(),
        marks: parts.marks.clone(),
        number: parts.number,
        nudge: nudge.clone(),
        meters: meters.clone(),
        early: (settings.inflight as usize / 10).max(1),
        is_shared: parts.routes.whole() != own,
    });
    let cycle = Arc::new(Mutex::new(Cycle {
        store: parts.store.clone(),
        ledger: ledger.clone(),
        publisher: publisher.clone(),
        lanes: lanes.clone(),
        sink: (*sink).clone(),
        routes: parts.routes.clone(),
        batch: settings.batch,
        malformed: Reports::default(),
        own,
        others: parts.others.clone(),
        first: [0; 2],
        owing_first: true,
        meters: meters.clone(),
    }));
    let pump = Pump {
        cycle: cycle.clone(),
        interval: settings.interval,
        nudge: nudge.clone(),
        lanes,
        sink: (*sink).clone(),
    };
    let mut loops = vec![
        pump.run(stop.clone()).boxed(),
        publishing.run(stop.clone()).boxed(),
    ];
    let policy = sink.policy();
    // Whatever its policy is: an earlier version's may have been another.
    if sink.kind().is_some() {
        let retries = Retries {
            store: parts.store.clone(),
            deliveries: Deliveries::new(parts.store),
            routes: parts.routes.clone(),
            own,
            owed: parts.others.clone(),
            sink: (*sink).clone(),
            policy,
            look: LOOK * u32::try_from(parts.lines / FEW).unwrap_or(1).max(1),
            meters: meters.clone(),
            reports: Reports::default(),
            owner: None,
        };
        loops.push(retries.run(stop.clone()).boxed());
    }
    let branch = Branch {
        ledger,
        meters,
        publisher,
        routes: parts.routes.clone(),
        own,
        cycle,
        nudge,
        sink: (*sink).clone(),
    };
    (branch, loops)
}

impl Branch {
    pub(super) fn publish(&self, row: Row, claim: Claim) {
        self.publisher.at_once(row, claim);
    }

    pub(super) fn nudge(&self) {
        self.nudge.notify_one();
    }

    pub(super) async fn pass(&self) -> Result<Pass> {
        pump::pass(&self.cycle).await
    }

    pub(super) fn sink(&self) -> &Outlet {
        &self.sink
    }

    /// The names of its routes.
    pub(super) fn names(&self) -> Vec<&str> {
        self.routes.names(self.own)
    }

    /// Ends what is under way to its sink.
    pub(super) fn cut(&self) {
        self.sink.cut();
    }

    /// Takes up a row that the tail has brought, if it is due, ours by the right to `lanes`, and not known already;
    /// waits for its turn. What is not taken up is the pump's. Whether it was.
    pub(super) async fn take(&self, row: Row, lanes: &Lanes) -> bool {
        let lanes = lanes.only(self.own);
        let wait = row.pending.saturating_sub(now());
        if wait > LEEWAY || !self.may_send(&row, &lanes) {
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
        self.sink.is_up()
            && self.ledger.has_room()
            && grant.is_some_and(|grant| self.routes.concern(grant.routes, owed))
    }
}
