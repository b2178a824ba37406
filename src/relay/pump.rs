//! Sweeps the lanes this replica owns for whatever did not leave.

use std::{
    collections::{HashMap, HashSet},
    ops::AddAssign,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::{Mutex, Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::{Claim, Ledger},
    owed::Owed,
    publisher::Publisher,
};
use crate::{
    clock::every,
    error::Result,
    metrics::Meters,
    report::Reports,
    routes::{RouteSet, Routes},
    row::{Row, RowId},
    sinks::Outlet,
    slots::{Grant, Lanes, Ownership},
    store::{Store, Which},
};

/// How many ids one read by id asks for: above 200 the server sorts.
const IDS: usize = 200;

/// What one pass did. A row that is owed to several sinks counts for each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pass {
    /// Rows that were due and that this process was not at already.
    pub found: u64,
    /// Rows that owe nothing any more.
    pub published: u64,
    /// Rows that still owe something, and will be tried again.
    pub unsent: u64,
    /// Rows, of those published, whose mark is acknowledged.
    pub marked: u64,
    /// Rows that no pump can publish; each is reported with its id.
    pub malformed: u64,
}

impl AddAssign for Pass {
    fn add_assign(&mut self, other: Self) {
        self.found += other.found;
        self.published += other.published;
        self.unsent += other.unsent;
        self.marked += other.marked;
        self.malformed += other.malformed;
    }
}

/// Counts a pass while its rows are on their way. The pass is over when every clone is dropped.
#[derive(Clone)]
pub(crate) struct Tally {
    counts: Arc<Counts>,
    _open: mpsc::Sender<()>,
}

#[derive(Default)]
struct Counts {
    found: AtomicU64,
    published: AtomicU64,
    unsent: AtomicU64,
    marked: AtomicU64,
    malformed: AtomicU64,
}

impl Tally {
    pub(crate) fn published(&self) {
        self.counts.published.fetch_add(1, Relaxed);
    }

    pub(crate) fn unsent(&self) {
        self.counts.unsent.fetch_add(1, Relaxed);
    }

    pub(crate) fn marked(&self) {
        self.counts.marked.fetch_add(1, Relaxed);
    }
}

impl Counts {
    fn pass(&self) -> Pass {
        Pass {
            found: self.found.load(Relaxed),
            published: self.published.load(Relaxed),
            unsent: self.unsent.load(Relaxed),
            marked: self.marked.load(Relaxed),
            malformed: self.malformed.load(Relaxed),
        }
    }
}

/// The loop. Cycles never overlap: an overrun delays the next, and nudges coalesce.
pub(crate) struct Pump {
    pub(crate) cycle: Arc<Mutex<Cycle>>,
    pub(crate) interval: Duration,
    pub(crate) nudge: Arc<Notify>,
    pub(crate) lanes: Ownership,
    pub(crate) sink: Outlet,
}

impl Pump {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut tick = every(self.interval);
        let mut returned = self.sink.returns();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
                () = self.nudge.notified() => {}
                () = self.lanes.changed() => {}
                () = returned.next() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = cycle(&self.cycle) => {}
            }
        }
    }
}

async fn cycle(cycle: &Mutex<Cycle>) {
    let begun = Instant::now();
    match cycle.lock().await.once(None).await {
        Ok(0) => {}
        Ok(rows) => tracing::debug!(rows, took = ?begun.elapsed(), "pumped"),
        Err(error) => tracing::warn!(%error, "a cycle failed, the next one goes on"),
    }
}

/// Runs one cycle and waits for everything it published to be settled and marked.
pub(crate) async fn pass(cycle: &Mutex<Cycle>) -> Result<Pass> {
    let counts = Arc::new(Counts::default());
    let (open, mut over) = mpsc::channel(1);
    let tally = Tally {
        counts: counts.clone(),
        _open: open,
    };
    cycle.lock().await.once(Some(tally)).await?;
    // Nothing is ever sent: this resolves when the last clone of the tally is dropped.
    over.recv().await;
    Ok(counts.pass())
}

/// One cycle: read what is due and hand it over.
pub(crate) struct Cycle {
    pub(crate) store: Store,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) publisher: Publisher,
    pub(crate) lanes: Ownership,
    pub(crate) sink: Outlet,
    pub(crate) routes: Arc<Routes>,
    pub(crate) batch: u32,
    pub(crate) malformed: Reports,
    /// The routes of the sink.
    pub(crate) own: RouteSet,
    /// What rows are owed to besides.
    pub(crate) others: Owed,
    /// The lanes the next cycle begins with, of rows of which nothing is done and of those of which something is.
    pub(crate) first: [u8; 2],
    /// Which of them the last one began with.
    pub(crate) owing_first: bool,
    pub(crate) meters: Meters,
}

impl Cycle {
    /// Hands over everything that is due, in the order the index has it, and says how many rows that
    /// was. Reads nothing while the sink takes nothing or no lane is owned.
    pub(crate) async fn once(&mut self, tally: Option<Tally>) -> Result<u64> {
        let _timed = self.meters.cycle();
        // What becomes unsent from here on is left to the next cycle, however much that is.
        let begun = Instant::now();
        let mut rows = self.known(begun, false, tally.as_ref()).await?;
        rows += self.owned(tally.as_ref()).await?;
        // What the destination had something against goes behind all others, or it could starve them.
        rows += self.known(begun, true, tally.as_ref()).await?;
        Ok(rows)
    }

    /// Sweeps the lanes that are owned.
    async fn owned(&mut self, tally: Option<&Tally>) -> Result<u64> {
        let owned = self.lanes.lanes();
        self.meters.lanes(owned.list().len());
        if owned.list().is_empty() {
            self.meters.unassigned();
            return Ok(0);
        }
        if self.is_alone() {
            return self.sweeps(&owned, false, &Which::All, tally).await;
        }
        let routes = self.routes.clone();
        let own = routes.names(self.own);
        let mut rows = 0;
        // By turns, so that neither keeps the other from its turn.
        self.owing_first = !self.owing_first;
        for is_owing in [self.owing_first, !self.owing_first] {
            let which = match is_owing {
                true => Which::Owing(&own),
                false => Which::Whole,
            };
            rows += self.sweeps(&owned, is_owing, &which, tally).await?;
        }
        Ok(rows)
    }

    /// Whether no row is ever owed to any other sink: then one query brings all there is.
    fn is_alone(&self) -> bool {
        self.routes.whole() == self.own && self.others.is_empty()
    }

    /// Beginning where the last one of the kind was cut short, so that no lane starves.
    async fn sweeps(
        &mut self,
        owned: &Lanes,
        is_owing: bool,
        which: &Which<'_>,
        tally: Option<&Tally>,
    ) -> Result<u64> {
        let first = std::mem::take(&mut self.first[usize::from(is_owing)]);
        let (before, from): (Vec<u8>, Vec<u8>) =
            owned.list().into_iter().partition(|&lane| lane < first);
        let mut rows = 0;
        for lanes in [from, before] {
            if lanes.is_empty() || !self.open() {
                continue;
            }
            let (swept, cut) = self.sweep(&lanes, owned, which, tally).await?;
            rows += swept;
            if let Some(lane) = cut {
                self.first[usize::from(is_owing)] = lane;
                break;
            }
        }
        Ok(rows)
    }

    fn open(&self) -> bool {
        self.sink.takes_backlog()
    }

    /// Tries again what this process knew it could not send when the cycle began.
    async fn known(
        &mut self,
        begun: Instant,
        is_behind: bool,
        tally: Option<&Tally>,
    ) -> Result<u64> {
        let mut rows = 0;
        // What fails again at once is left to the next cycle.
        let mut passed = HashSet::new();
        while self.open() {
            let due = self.ledger.due(begun, IDS, &passed, is_behind);
            if due.is_empty() {
                break;
            }
            let owned = self.lanes.lanes();
            let mut ours = HashMap::new();
            for due in due {
                let grant = match due.own {
                    true => self.publisher.grant(&owned, due.lane, due.pending),
                    false => owned.grant(due.lane),
                };
                match grant {
                    Some(grant) => drop(ours.insert(due.id, grant)),
                    None => self.ledger.forget(&due.id),
                }
            }
            rows += self.again(&ours, tally).await?;
            passed.extend(ours.into_keys());
        }
        Ok(rows)
    }

    /// By the right each of them had before it was read. What is left to others meanwhile is not known unsent any
    /// more, and not taken up again.
    async fn again(&mut self, ours: &HashMap<RowId, Grant>, tally: Option<&Tally>) -> Result<u64> {
        let mut rows = 0;
        let mut gone: HashSet<&RowId> = ours.keys().collect();
        let ledger = self.ledger.clone();
        let _reading = ledger.read();
        let ids: Vec<RowId> = ours.keys().cloned().collect();
        let mut cursor = self.store.unpublished(&ids, self.batch).await?;
        while self.store.advance(&mut cursor).await? {
            let Some(row) = self.read(cursor.current(), tally) else {
                continue;
            };
            gone.remove(&row.id);
            let Some(grant) = ours.get(&row.id) else {
                continue;
            };
            let by_lane = grant.is_by_lane();
            let claim = |row: &Row| self.ledger.reclaim(&row.id, by_lane, Instant::now());
            rows += u64::from(self.hand_over(row, grant.clone(), true, claim, tally).await);
        }
        gone.into_iter().for_each(|id| self.ledger.forget(id));
        Ok(rows)
    }

    /// What was read by the right to `owned` leaves by it or not at all: after it has ended, others may have
    /// published it since. How many rows it handed over, and in which lane it was cut short.
    async fn sweep(
        &mut self,
        lanes: &[u8],
        owned: &Lanes,
        which: &Which<'_>,
        tally: Option<&Tally>,
    ) -> Result<(u64, Option<u8>)> {
        let mut rows = 0;
        let ledger = self.ledger.clone();
        let _reading = ledger.read();
        let mut cursor = self.store.due(lanes, which, self.batch).await?;
        while self.store.advance(&mut cursor).await? {
            let Some(row) = self.read(cursor.current(), tally) else {
                continue;
            };
            let grant = owned.grant(row.lane).filter(|_| self.open());
            let Some(grant) = grant else {
                return Ok((rows, Some(row.lane)));
            };
            let claim = |row: &Row| self.ledger.claim(row, Instant::now());
            rows += u64::from(self.hand_over(row, grant, false, claim, tally).await);
        }
        Ok((rows, None))
    }

    fn read(&mut self, raw: &bson::RawDocument, tally: Option<&Tally>) -> Option<Row> {
        match self.store.decode(raw) {
            Ok(row) => Some(row),
            Err(malformed) => {
                self.meters.malformed();
                if let Some(tally) = tally {
                    tally.counts.malformed.fetch_add(1, Relaxed);
                }
                self.malformed.first(&malformed.id, |seen| {
                    tracing::error!(
                        collection = self.store.name(),
                        seen,
                        "{malformed}; mend or delete it, it delays no other"
                    );
                });
                None
            }
        }
    }

    /// Whether the row went on its way: not if it owes nothing to us, or this process is at it already, or it has to wait
    /// until it is tried after the others.
    async fn hand_over(
        &self,
        row: Row,
        grant: Grant,
        with_behind: bool,
        claim: impl FnOnce(&Row) -> Option<Claim>,
        tally: Option<&Tally>,
    ) -> bool {
        let owed = row.outstanding.as_deref();
        if !self.routes.concern(grant.routes, owed) {
            return false;
        }
        if !self.ledger.is_free(&row.id, Instant::now(), with_behind) {
            self.meters.avoided();
            return false;
        }
        // Taken only when its turn has come: what is taken has to be let go of with its lane.
        let turn = self.publisher.turn().await;
        let Some(claim) = claim(&row) else {
            self.meters.avoided();
            return false;
        };
        if let Some(tally) = tally {
            tally.counts.found.fetch_add(1, Relaxed);
        }
        self.publisher
            .sweep(row, claim, grant, turn, tally.cloned());
        true
    }
}
