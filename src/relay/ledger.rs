//! What this process is writing, is sending, has sent and not yet marked, or knows it could not send.
//!
//! The ledger is what keeps the immediate path and the pump of one process from sending a row twice.
//! It is a memory, not a record: whatever it forgets, `pending` decides again.
//!
//! ```text
//!   hold ──► writing ──► sending ──► sent ──► (marked) ──► forgotten
//!                           ▲  │
//!                           │  ▼
//!                          unsent
//! ```
//!
//! **Marked rows linger.** A read that was requested before a mark was acknowledged may still bring the
//! row back as unpublished. Ids that were known when the read began are therefore kept until it ends.
//! Ids that came after need not be: the read itself found them and has passed them, or they were written
//! since, and then `pending` keeps them out of it. So what is kept is bounded by what was known at the
//! start, not by the length of the read. A row that the tail brought may be older than the read and lie before it
//! still: it is kept if it was due when the read began, by clocks that agree within [`SKEW`].
//!
//! **The tail** may bring a row as unpublished too, long after the pump has published it: what was swept is kept until
//! the tail has passed it, which a *fence* tells. What the tail itself has brought it will not bring again.
//!
//! **Swept rows** are those that are sent because this process owns their lane. They are counted apart, for when it
//! has to let go of the lane. A row of its own it may send for as long as `pending` keeps it from others.
//!
//! **Bounds.** At most `bound` ids are sent and unmarked: at that bound nothing more is taken up
//! ([`Ledger::has_room`]), and where as many marked ones are kept for the tail, nothing more is swept until it has
//! passed them ([`Ledger::room`]). At most `bound` ids are known unsent: beyond, a row is forgotten rather than
//! remembered, so that any number of rows that fail delay no other; the pump meets it again when it
//! is due.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{
    routes::RouteSet,
    row::{Row, RowId, now},
};

/// How far the clock of a writer may be from the server's before its rows are repeated by it, in milliseconds.
const SKEW: i64 = 5000;

pub(crate) struct Ledger {
    state: Mutex<State>,
    bound: usize,
    /// Told whenever a count falls.
    eased: Notify,
}

#[derive(Default)]
struct State {
    known: HashMap<RowId, Known>,
    /// How many are in each of these stages.
    sending: usize,
    sent: usize,
    unsent: usize,
    /// Those of the first two that were swept.
    swept: Swept,
    /// How many were marked, ever.
    marked: u64,
    /// How many reads there have been, the current one included.
    reads: u64,
    /// When the last one began, in milliseconds since the epoch.
    began: i64,
    /// Marked since the current read began, and to be kept until it ends; none between reads.
    lingering: Option<Vec<RowId>>,
    /// None while there is no tail.
    tailed: Option<Tailed>,
}

/// Marked ids that the tail may still bring.
#[derive(Default)]
struct Tailed {
    /// Marked since the last fence.
    fresh: Vec<RowId>,
    /// Marked before it.
    fenced: Vec<RowId>,
}

/// What was sent by the right to a lane and is not settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) in_flight: usize,
    pub(crate) unmarked: usize,
    /// Marks, of any row, of some of its routes only: the rest is still to be sent.
    pub(crate) partial: usize,
}

struct Known {
    stage: Stage,
    /// Whether this process wrote it.
    own: bool,
    /// Whether it was last sent by the right to its lane.
    swept: bool,
    /// Whether the tail has brought it already.
    tailed: bool,
    /// Which read was current when the id became known.
    since: u64,
    /// The routes that are done, whether marked or not.
    done: RouteSet,
    /// How often the destination has refused it.
    refusals: u32,
    lane: u8,
    pending: i64,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Writing,
    Sending,
    Sent,
    Marked,
    Unsent { due: Instant, is_behind: bool },
}

impl Stage {
    /// When it may be tried again, where it may.
    fn due(self) -> Option<Instant> {
        match self {
            Self::Unsent { due, .. } => Some(due),
            Self::Writing | Self::Sending | Self::Sent | Self::Marked => None,
        }
    }
}

/// What came of sending a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sent {
    /// Nothing is owed any more.
    Whole,
    /// Some route is still owed, and may be tried again after this long.
    Again { after: Duration },
}

/// A row known unsent that may be tried again.
pub(crate) struct Due {
    pub(crate) id: RowId,
    /// Whether this process wrote it, so that it may send it for as long as `pending` keeps it from others.
    pub(crate) own: bool,
    pub(crate) lane: u8,
    pub(crate) pending: i64,
}

impl Ledger {
    /// A ledger that remembers at most `bound` ids of a kind.
    pub(crate) fn new(bound: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            bound,
            eased: Notify::new(),
        })
    }

    /// Makes a row known before it is committed. Dropping the hold forgets it. None if it is known: someone else in this process
    /// writes it under the same id, or has.
    pub(crate) fn hold(self: &Arc<Self>, row: &Row) -> Option<Claim> {
        let mut state = self.state();
        if state.known.contains_key(&row.id) {
            return None;
        }
        let known = Known::new(Stage::Writing, true, state.reads, row);
        state.known.insert(row.id.clone(), known);
        Some(self.taken(row.id.clone(), RouteSet::default(), 0))
    }

    /// Takes a row that a sweep brought, to send it by the right to its lane; none if this process is at it
    /// already, or knows that it is too early to try again.
    pub(crate) fn claim(self: &Arc<Self>, row: &Row, now: Instant) -> Option<Claim> {
        let mut state = self.state();
        if !state.known.contains_key(&row.id) {
            let known = Known::new(Stage::Sending, false, state.reads, row);
            state.known.insert(
                row.id.clone(),
                Known {
                    swept: true,
                    ..known
                },
            );
            state.sending += 1;
            state.swept.in_flight += 1;
            return Some(self.taken(row.id.clone(), RouteSet::default(), 0));
        }
        drop(state);
        self.reclaim(&row.id, true, now)
    }

    /// Takes a row that the tail brought; none if this process has it already, which is then noted.
    pub(crate) fn claim_tailed(self: &Arc<Self>, row: &Row) -> Option<Claim> {
        if self.is_tailed(&row.id) {
            return None;
        }
        let claim = self.claim(row, Instant::now());
        self.is_tailed(&row.id);
        claim
    }

    /// Notes that the tail has brought a row, if it is known; whether it is.
    pub(crate) fn is_tailed(&self, id: &RowId) -> bool {
        let mut state = self.state();
        let known = state.known.get_mut(id);
        known.map(|known| known.tailed = true).is_some()
    }

    /// A tail is about to open: what is marked from here on it may bring.
    pub(crate) fn tail_opens(&self) {
        self.state().tailed.get_or_insert_default();
    }

    /// There is no tail any more.
    pub(crate) fn tail_ends(&self) {
        let mut state = self.state();
        let tailed = state.tailed.take().unwrap_or_default();
        state.forget_marked(tailed.fenced.into_iter().chain(tailed.fresh));
        drop(state);
        self.eased.notify_waiters();
    }

    /// Parts what is marked by now from what will be; whether there is anything.
    pub(crate) fn fence(&self) -> bool {
        let mut state = self.state();
        let Some(tailed) = &mut state.tailed else {
            return false;
        };
        tailed.fenced.append(&mut tailed.fresh);
        !tailed.fenced.is_empty()
    }

    /// The tail has passed everything that was committed before the last fence.
    pub(crate) fn passed(&self) {
        let mut state = self.state();
        let fenced = state
            .tailed
            .as_mut()
            .map(|tailed| std::mem::take(&mut tailed.fenced));
        state.forget_marked(fenced.into_iter().flatten());
        drop(state);
        self.eased.notify_waiters();
    }

    /// Takes an id that is known unsent, to try again; none if it is not, or it is too early. What was left to
    /// others in the meantime is not known any more.
    pub(crate) fn reclaim(
        self: &Arc<Self>,
        id: &RowId,
        by_lane: bool,
        now: Instant,
    ) -> Option<Claim> {
        let mut state = self.state();
        let known = state.known.get(id).filter(|known| known.is_due(now))?;
        let (done, refusals) = (known.done, known.refusals);
        state.enter(id, Stage::Sending, by_lane);
        Some(self.taken(id.clone(), done, refusals))
    }

    /// Whether a row that was read can be taken, so that nobody waits for its turn in vain; of those that are tried after
    /// the others only where it is their turn.
    pub(crate) fn is_free(&self, id: &RowId, now: Instant, with_behind: bool) -> bool {
        let is_free = |known: &Known| known.is_due(now) && (with_behind || !known.is_behind());
        self.state().known.get(id).is_none_or(is_free)
    }

    /// Whether a row is being written or sent, or is sent and not marked.
    pub(crate) fn is_at(&self, id: &RowId) -> bool {
        let state = self.state();
        let stage = state.known.get(id).map(|known| known.stage);
        matches!(stage, Some(Stage::Writing | Stage::Sending | Stage::Sent))
    }

    fn taken(self: &Arc<Self>, id: RowId, done: RouteSet, refusals: u32) -> Claim {
        Claim {
            ledger: self.clone(),
            id: Some(id),
            done,
            refusals,
        }
    }

    /// Whether more may be sent: the ids that wait for their mark are below the bound.
    pub(crate) fn has_room(&self) -> bool {
        self.state().sent < self.bound
    }

    /// Waits until more may be swept: as [`has_room`](Self::has_room), and the tail is not too far behind. Cancel safe.
    pub(crate) async fn room(&self) {
        let is_open = |state: &State| state.sent < self.bound && state.kept() < self.bound;
        self.until(is_open).await;
    }

    async fn until(&self, expected: impl Fn(&State) -> bool) {
        loop {
            let mut eased = std::pin::pin!(self.eased.notified());
            // From here on, none is missed.
            eased.as_mut().enable();
            if expected(&self.state()) {
                return;
            }
            eased.await;
        }
    }

    /// The ids known unsent that may be tried again, at most `limit`, skipping what `passed` says: those with which the
    /// destination had nothing wrong, or those that it had something against, in the order in which they were tried.
    pub(crate) fn due(
        &self,
        now: Instant,
        limit: usize,
        passed: &HashSet<RowId>,
        is_behind: bool,
    ) -> Vec<Due> {
        let state = self.state();
        let is_due = |id: &RowId, known: &Known| {
            known.is_due(now) && known.is_behind() == is_behind && !passed.contains(id)
        };
        let mut due: Vec<_> = state
            .known
            .iter()
            .filter(|(id, known)| is_due(id, known))
            .collect();
        if is_behind {
            due.sort_unstable_by_key(|(_, known)| known.stage.due());
        }
        due.into_iter()
            .take(limit)
            .map(|(id, known)| Due {
                id: id.clone(),
                own: known.own,
                lane: known.lane,
                pending: known.pending,
            })
            .collect()
    }

    /// Forgets an id known unsent: it is published, or someone else's now.
    pub(crate) fn forget(&self, id: &RowId) {
        let mut state = self.state();
        if matches!(state.known.get(id), Some(known) if matches!(known.stage, Stage::Unsent { .. }))
        {
            state.remove(id);
        }
    }

    /// Books a marking that was acknowledged.
    pub(crate) fn marked<'a>(&self, ids: impl IntoIterator<Item = &'a RowId>) {
        let mut state = self.state();
        for id in ids {
            state.marked += 1;
            state.mark(id);
        }
        drop(state);
        self.eased.notify_waiters();
    }

    /// Books a marking that the server will never accept: the row stays known, so that it is not sent
    /// again, and no longer counts among those that wait.
    pub(crate) fn refused(&self, id: &RowId) {
        self.state().advance(id, Stage::Marked);
        self.eased.notify_waiters();
    }

    /// Opens a read: until it is dropped, what was known when it began is not forgotten.
    pub(crate) fn read(&self) -> Reading<'_> {
        let mut state = self.state();
        state.reads += 1;
        state.began = now();
        state.lingering = Some(Vec::new());
        Reading(self)
    }

    /// Some routes of a row are being marked, and it stays known unsent.
    pub(crate) fn partly(&self) {
        self.state().swept.partial += 1;
    }

    /// So many of those are marked, or never will be.
    pub(crate) fn partly_marked(&self, count: usize) {
        self.state().swept.partial -= count;
        self.eased.notify_waiters();
    }

    /// How many rows were marked since the beginning, to see that it goes on.
    pub(crate) fn marked_so_far(&self) -> u64 {
        self.state().marked
    }

    /// The swept rows that are not settled.
    pub(crate) fn swept(&self) -> Swept {
        self.state().swept
    }

    /// Waits until the swept rows are as `expected`. Cancel safe.
    pub(crate) async fn until_swept(&self, expected: impl Fn(Swept) -> bool) {
        self.until(|state| expected(state.swept)).await;
    }

    /// Forgets all ids known unsent, and says which they were.
    pub(crate) fn forget_unsent(&self) -> Vec<RowId> {
        let mut state = self.state();
        let unsent = |(id, known): (&RowId, &Known)| {
            matches!(known.stage, Stage::Unsent { .. }).then(|| id.clone())
        };
        let unsent: Vec<RowId> = state.known.iter().filter_map(unsent).collect();
        unsent.iter().for_each(|id| state.remove(id));
        unsent
    }

    /// What is in memory now.
    pub(crate) fn left(&self) -> Left {
        let state = self.state();
        Left {
            in_flight: state.sending,
            unmarked: state.sent,
            unsent: state.unsent,
        }
    }

    /// Nothing that panics is called under the lock, so a poisoned one is as good as any.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a shutdown left to the next start, or to other replicas. Nothing of it is lost: the rows are in
/// the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// Rows whose publication had no answer yet; they may or may not have left.
    pub in_flight: usize,
    /// Rows that left and are not marked; they will be published again.
    pub unmarked: usize,
    /// Rows that are known not to have left.
    pub unsent: usize,
}

impl Known {
    fn new(stage: Stage, own: bool, since: u64, row: &Row) -> Self {
        Self {
            stage,
            own,
            swept: false,
            tailed: false,
            since,
            done: RouteSet::default(),
            refusals: 0,
            lane: row.lane,
            pending: row.pending,
        }
    }
}

impl Known {
    fn is_due(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Unsent { due, .. } if due <= now)
    }

    /// Whether the destination had something against it, so that it is tried after all others.
    fn is_behind(&self) -> bool {
        matches!(
            self.stage,
            Stage::Unsent {
                is_behind: true,
                ..
            }
        )
    }
}

impl State {
    /// Counts an id in a stage, or no longer.
    fn count(&mut self, stage: Stage, swept: bool, change: impl Fn(&mut usize)) {
        let (all, of_swept) = match stage {
            Stage::Sending => (&mut self.sending, Some(&mut self.swept.in_flight)),
            Stage::Sent => (&mut self.sent, Some(&mut self.swept.unmarked)),
            Stage::Unsent { .. } => (&mut self.unsent, None),
            Stage::Writing | Stage::Marked => return,
        };
        change(all);
        if let Some(of_swept) = of_swept.filter(|_| swept) {
            change(of_swept);
        }
    }

    fn remove(&mut self, id: &RowId) {
        if let Some(known) = self.known.remove(id) {
            self.count(known.stage, known.swept, |count| *count -= 1);
        }
    }

    /// What is on its way by another right than before counts anew.
    fn enter(&mut self, id: &RowId, stage: Stage, swept: bool) {
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        let before = std::mem::replace(&mut known.stage, stage);
        let was_swept = std::mem::replace(&mut known.swept, swept);
        self.count(before, was_swept, |count| *count -= 1);
        self.count(stage, swept, |count| *count += 1);
    }

    /// By the right it was sent by.
    fn advance(&mut self, id: &RowId, stage: Stage) {
        let swept = self.known.get(id).is_some_and(|known| known.swept);
        self.enter(id, stage, swept);
    }

    fn mark(&mut self, id: &RowId) {
        let Some(known) = self.known.get(id) else {
            return;
        };
        if known.stage != Stage::Sent {
            return;
        }
        match &mut self.lingering {
            Some(lingering)
                if known.since < self.reads
                    || known.tailed && known.pending <= self.began.saturating_add(SKEW) =>
            {
                lingering.push(id.clone());
                self.advance(id, Stage::Marked);
            }
            _ => self.leave(id),
        }
    }

    /// How many marked ids are kept for the tail.
    fn kept(&self) -> usize {
        let tailed = self.tailed.as_ref();
        tailed.map_or(0, |tailed| tailed.fresh.len() + tailed.fenced.len())
    }

    /// Nothing but the tail can bring a marked row any more.
    fn leave(&mut self, id: &RowId) {
        let Some(known) = self.known.get(id) else {
            return;
        };
        match &mut self.tailed {
            Some(tailed) if !known.tailed => {
                tailed.fresh.push(id.clone());
                self.advance(id, Stage::Marked);
            }
            _ => self.remove(id),
        }
    }

    fn forget_marked(&mut self, ids: impl Iterator<Item = RowId>) {
        for id in ids {
            let known = self.known.get(&id);
            if known.is_some_and(|known| known.stage == Stage::Marked) {
                self.remove(&id);
            }
        }
    }
}

/// A read in progress.
pub(crate) struct Reading<'a>(&'a Ledger);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        for id in state.lingering.take().into_iter().flatten() {
            state.leave(&id);
        }
    }
}

/// The right to send one row. Dropped before it is settled, the row is forgotten.
pub(crate) struct Claim {
    ledger: Arc<Ledger>,
    id: Option<RowId>,
    /// The routes this process knows to be done, whatever the row says.
    pub(crate) done: RouteSet,
    /// How often the destination has refused it.
    pub(crate) refusals: u32,
}

impl Claim {
    /// The row goes on its way, by the right to its lane or by that of its writer.
    pub(crate) fn sending(&self, by_lane: bool) {
        if let Some(id) = &self.id {
            self.ledger.state().enter(id, Stage::Sending, by_lane);
        }
    }

    /// Books what came of it.
    pub(crate) fn settle(mut self, sent: Sent, done: RouteSet) {
        let Some(id) = self.id.take() else { return };
        let mut state = self.ledger.state();
        if let Some(known) = state.known.get_mut(&id) {
            known.done = done;
        }
        match sent {
            Sent::Whole => state.advance(&id, Stage::Sent),
            Sent::Again { .. } if state.unsent >= self.ledger.bound => state.remove(&id),
            Sent::Again { after } => {
                if let Some(known) = state.known.get_mut(&id) {
                    known.refusals = self.refusals;
                }
                let unsent = Stage::Unsent {
                    due: Instant::now() + after,
                    is_behind: !after.is_zero(),
                };
                state.advance(&id, unsent);
            }
        }
        drop(state);
        self.ledger.eased.notify_waiters();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.ledger.state().remove(&id);
            self.ledger.eased.notify_waiters();
        }
    }
}
