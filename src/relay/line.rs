//! The way of one component's rows, from its collection to the sinks: a branch for each sink, and what marks for all.

use std::{
    collections::BTreeSet,
    iter::repeat_n,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    branch::{self, Branch},
    ledger::{Claim, Ledger, Left, Swept},
    marker::{Booked, Marker},
    owed::Owed,
    pump::Pass,
    strand::{self, Strand},
};
use crate::{
    config::Settings,
    error::Result,
    routes::Routes,
    row::Row,
    sinks::{Kind, Mode, Outlet},
    slots::{Lanes, Ownership, Share},
    store::{
        Store,
        deliveries::Deliveries,
        registry::{Known, Registry},
    },
};

/// The longest a mark waits for company, however long the interval.
const LONGEST_LINGER: Duration = Duration::from_millis(500);

/// Ids remembered of a kind, for each row that may be in flight: all lines together as many as one alone, and each at
/// least as many as may be in flight.
const REMEMBERED: usize = 10;

/// The handle of one component's loops.
pub(crate) struct Line {
    pub(crate) store: Store,
    pub(crate) routes: Arc<Routes>,
    /// What is owned, for whichever sink.
    pub(crate) lanes: Ownership,
    /// What rows are owed to besides.
    pub(super) owed: Owed,
    registered: watch::Sender<Arc<[Arc<str>]>>,
    branches: Vec<Branch>,
    /// Of those sinks to which the order of the commits is kept.
    strands: Vec<Strand>,
}

/// What a line is made of.
pub(super) struct Parts<'a> {
    pub(super) settings: &'a Settings,
    pub(super) store: Store,
    pub(super) routes: Arc<Routes>,
    pub(super) share: Share,
    pub(super) sinks: &'a [Outlet],
    /// What is registered before it begins.
    pub(super) known: &'a Known,
    pub(super) is_hurried: watch::Receiver<bool>,
    /// How many there are with this one.
    pub(super) lines: usize,
}

/// The line and its loops, each of which ends by itself some time after `stop`.
pub(super) fn line(
    parts: Parts<'_>,
    stop: &CancellationToken,
) -> (Line, Vec<BoxFuture<'static, ()>>) {
    let Parts {
        settings,
        store,
        routes,
        share,
        sinks,
        known,
        is_hurried,
        lines,
    } = parts;
    let (registered, is_registered) = watch::channel(strange(known, &store, &routes));
    let owed = Owed {
        live: share.others,
        registered: is_registered,
    };
    let (marks, inbox) = mpsc::unbounded_channel();
    let (mut branches, mut strands, mut loops) = (Vec::new(), Vec::new(), Vec::new());
    for sink in sinks
        .iter()
        .filter(|sink| !routes.to(sink.name()).is_empty())
    {
        if let (Outlet::Batched(sink), Mode::Ordered(order)) = (sink, sink.mode()) {
            let parts = strand::Parts {
                store: &store,
                routes: &routes,
                lanes: &share.ownership,
                sink,
                order,
                others: &owed,
            };
            let (strand, more) = strand::strand(&parts, stop);
            strands.push(strand);
            loops.extend(more);
            continue;
        }
        let parts = branch::Parts {
            settings,
            store: &store,
            routes: &routes,
            lanes: &share.ownership,
            sink,
            others: &owed,
            marks: &marks,
            number: branches.len(),
            lines,
            remembered: settings.inflight as usize * (REMEMBERED / lines).max(1),
        };
        let (branch, more) = branch::branch(&parts, stop);
        branches.push(branch);
        loops.extend(more);
    }
    let booked = branches.iter().map(|branch| Booked {
        ledger: branch.ledger.clone(),
        meters: branch.meters.clone(),
    });
    let marker = Marker {
        deliveries: Deliveries::new(&store),
        store: store.clone(),
        routes: routes.clone(),
        branches: booked.collect(),
        inbox,
        linger: (settings.interval / 10).min(LONGEST_LINGER),
        others: owed.clone(),
        hurry: is_hurried,
    };
    loops.push(marker.run().boxed());
    let line = Line {
        store,
        routes,
        lanes: share.ownership,
        owed,
        registered,
        branches,
        strands,
    };
    (line, loops)
}

/// What is registered of a collection and not served here.
fn strange(known: &Known, store: &Store, routes: &Routes) -> Arc<[Arc<str>]> {
    let own = routes.names(routes.whole());
    let names = known.routes_of(store.collection());
    names
        .filter(|route| !own.contains(route))
        .map(Arc::from)
        .collect()
}

impl Line {
    /// Makes a row known before its commit, to each branch; see [`Ledger::hold`].
    pub(crate) fn hold(&self, row: &Row) -> Vec<Option<Claim>> {
        self.ledgers().map(|ledger| ledger.hold(row)).collect()
    }

    /// Publishes a row with the claims that [`hold`](Self::hold) gave. What someone else held is held now if it is free: he has
    /// failed where this has committed.
    pub(crate) fn publish(&self, row: Row, claims: Vec<Option<Claim>>) {
        let rows = repeat_n(row, self.branches.len());
        for ((branch, claim), row) in self.branches.iter().zip(claims).zip(rows) {
            if let Some(claim) = claim.or_else(|| branch.ledger.hold(&row)) {
                branch.publish(row, claim);
            }
        }
    }

    /// Starts a cycle at once, of each branch. Calls coalesce.
    pub(crate) fn nudge(&self) {
        self.branches.iter().for_each(Branch::nudge);
    }

    /// A pass of one branch after the other, counted together.
    pub(crate) async fn pass(&self) -> Result<Pass> {
        let mut sum = Pass::default();
        for branch in &self.branches {
            sum += branch.pass().await?;
        }
        Ok(sum)
    }

    /// Takes up a row that the tail has brought; whether any branch did.
    pub(super) async fn take(&self, raw: &bson::RawDocument, lanes: &Lanes) -> bool {
        let Ok(row) = self.store.decode(raw) else {
            return false;
        };
        let mut is_taken = false;
        for (branch, row) in self.branches.iter().zip(repeat_n(row, self.branches.len())) {
            is_taken |= branch.take(row, lanes).await;
        }
        is_taken
    }

    /// Takes in what is registered, and keeps those too that lived when it was asked for.
    pub(super) fn learn(&self, known: &Known, live: &[Arc<str>]) {
        let names = strange(known, &self.store, &self.routes);
        let names: BTreeSet<_> = names.iter().chain(live).cloned().collect();
        let names: Arc<[Arc<str>]> = names.into_iter().collect();
        self.registered
            .send_if_modified(|before| std::mem::replace(before, names.clone()) != names);
    }

    /// Has rows owe what is served here, whether it is or not; where the broker alone is served, that goes without saying.
    pub(super) async fn register(&self, registry: &Registry) -> Result<()> {
        if !self.has_own_sinks() {
            return Ok(());
        }
        let branches = self.branches.iter().map(|branch| {
            let sink = branch.sink();
            (sink.name(), sink.kind(), sink.mode(), branch.names())
        });
        let strands = self.strands.iter().map(|strand| {
            let terms = strand.sink.terms();
            let (kind, mode) = (terms.kind, terms.mode);
            (strand.sink.name(), Some(kind), mode, strand.names())
        });
        let sinks: Vec<_> = branches.chain(strands).collect();
        for (name, kind, mode, routes) in sinks {
            let (rows, kind) = (self.store.collection(), kind.unwrap_or(Kind::Sink));
            registry.register(rows, name, kind, mode, &routes).await?;
        }
        Ok(())
    }

    /// Takes a route of a sink that nobody serves off every row that owes it.
    pub(super) async fn release(&self, sink: &str, route: &str, is_abandoned: bool) -> Result<()> {
        let deliveries = Deliveries::new(&self.store);
        let released = deliveries.release(sink, route, is_abandoned, |_| {});
        let rows = released.await?;
        if rows > 0 {
            let collection = self.store.name();
            tracing::warn!(
                collection,
                route,
                rows,
                is_abandoned,
                "released what nobody serves"
            );
        }
        Ok(())
    }

    /// Whether a route is served, here or by a live replica.
    pub(super) fn has(&self, route: &str) -> bool {
        let is_it = |name: &Arc<str>| **name == *route;
        let own = self.routes.names(self.routes.whole());
        own.contains(&route) || self.owed.live.borrow().iter().any(is_it)
    }

    /// Whether a live replica serves what is not known to be registered.
    pub(super) fn has_strangers(&self) -> bool {
        let registered = self.registered.borrow();
        let live = self.owed.live.borrow();
        live.iter().any(|route| !registered.contains(route))
    }

    /// Whether it has any but the broker.
    pub(super) fn has_own_sinks(&self) -> bool {
        let is_own = |branch: &Branch| branch.sink().kind().is_some();
        !self.strands.is_empty() || self.branches.iter().any(is_own)
    }

    pub(super) fn serves(&self, sink: &str) -> bool {
        let branches = self.branches.iter().map(|branch| branch.sink().name());
        let mut all = branches.chain(self.strands.iter().map(|strand| strand.sink.name()));
        all.any(|name| name == sink)
    }

    pub(super) fn ledgers(&self) -> impl Iterator<Item = &Arc<Ledger>> {
        self.branches.iter().map(|branch| &branch.ledger)
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

impl All {
    fn ledgers(&self) -> impl Iterator<Item = &Arc<Ledger>> {
        self.lines.iter().flat_map(|line| line.ledgers())
    }

    fn strands(&self) -> impl Iterator<Item = &Strand> {
        self.lines.iter().flat_map(|line| &line.strands)
    }
}

impl Lines {
    pub(super) fn add(&self, line: Arc<Line>) {
        let mut all = self.lock();
        if all.is_tailed {
            line.ledgers().for_each(|ledger| ledger.tail_opens());
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
        for ledger in all.ledgers() {
            match is_tailed {
                true => ledger.tail_opens(),
                false => ledger.tail_ends(),
            }
        }
    }

    /// What is in memory now.
    pub(crate) fn left(&self) -> Left {
        let all = self.lock();
        let strands = all.strands().map(|strand| Left {
            in_flight: strand.flight.batches(),
            ..Left::default()
        });
        let left = all.ledgers().map(|ledger| ledger.left()).chain(strands);
        left.fold(Left::default(), |sum, left| Left {
            in_flight: sum.in_flight + left.in_flight,
            unmarked: sum.unmarked + left.unmarked,
            unsent: sum.unsent + left.unsent,
        })
    }

    /// Cuts those sinks to which something is `in_flight`; how many rows that is, each counted once a sink, and a batch in order as
    /// one.
    pub(super) fn cut(&self, in_flight: impl Fn(&Ledger) -> usize) -> usize {
        let mut rows = 0;
        let all = self.lock();
        for strand in all.strands().filter(|strand| strand.flight.batches() > 0) {
            rows += strand.flight.batches();
            strand.sink.cut();
        }
        for branch in all.lines.iter().flat_map(|line| &line.branches) {
            let flying = in_flight(&branch.ledger);
            rows += flying;
            if flying > 0 {
                branch.cut();
            }
        }
        rows
    }

    /// How many rows were marked since the beginning, to see that it goes on.
    pub(super) fn marked_so_far(&self) -> u64 {
        let all = self.lock();
        all.ledgers().map(|ledger| ledger.marked_so_far()).sum()
    }

    /// Waits until the swept rows of each are as `expected`, while nothing is begun any more. Cancel safe.
    pub(super) async fn until_swept(&self, expected: impl Fn(Swept) -> bool) {
        for line in self.all() {
            for ledger in line.ledgers() {
                ledger.until_swept(&expected).await;
            }
            for strand in &line.strands {
                let swept = |in_flight| Swept {
                    in_flight,
                    ..Swept::default()
                };
                strand
                    .flight
                    .until(|batches| expected(swept(batches)))
                    .await;
            }
        }
    }

    /// Nothing that panics is called under the lock, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
