//! Marks rows published, many in one update, for the immediate path and the pump together.

mod failed;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{ledger::Ledger, owed::Owed, pump::Tally};
use crate::{
    error::Result,
    metrics::Meters,
    routes::{RouteSet, Routes},
    row::RowId,
    store::{
        Marking, Store,
        deliveries::Deliveries,
        marking::{self, LEAST_WAIT, Parts},
    },
};

pub(crate) use failed::Failed;

/// The most rows of one update: larger ones take fewer server cycles a row, and hold their document
/// locks longer; the gain past this is small.
const MOST: usize = 1000;

/// Some routes of a row are done.
pub(crate) struct Mark {
    pub(crate) id: RowId,
    /// By which branch of the line.
    pub(crate) branch: usize,
    pub(crate) done: RouteSet,
    /// Those that failed for themselves, none of which is done.
    pub(crate) failed: Vec<Failed>,
    /// Whether nothing else of it is sent from here, so that its mark is the last to wait for.
    pub(crate) is_last: bool,
    /// The pass that published it, if one waits for the mark.
    pub(crate) tally: Option<Tally>,
}

/// What the rows of one update have in common.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Alike {
    /// What is owed no more.
    gone: RouteSet,
    /// What is tried again at a time of its own.
    later: RouteSet,
}

impl Alike {
    fn of(mark: &Mark) -> Self {
        Self {
            gone: mark.gone(),
            later: mark.later(),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            gone: self.gone.union(other.gone),
            later: self.later.union(other.later),
        }
    }
}

/// The loop. It ends when nobody can send it anything more and everything is marked.
pub(crate) struct Marker {
    pub(crate) store: Store,
    pub(crate) deliveries: Deliveries,
    pub(crate) routes: Arc<Routes>,
    /// The branches of the line.
    pub(crate) branches: Vec<Booked>,
    pub(crate) inbox: mpsc::UnboundedReceiver<Mark>,
    /// How long a mark may wait for company: what a crash repeats against what an update costs.
    pub(crate) linger: Duration,
    /// What rows are owed to besides.
    pub(crate) others: Owed,
    /// Whether someone waits for the marks, so that none waits for company.
    pub(crate) hurry: watch::Receiver<bool>,
}

/// Where the marks of one branch are booked.
pub(crate) struct Booked {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) meters: Meters,
}

impl Marker {
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::with_capacity(MOST);
        while self.gather(&mut batch).await {
            self.once(&mut batch).await;
        }
    }

    /// Fills the batch until it is full or its first mark has waited long enough; whether there is one.
    async fn gather(&mut self, batch: &mut Vec<Mark>) -> bool {
        if self.inbox.recv_many(batch, MOST).await == 0 {
            return false;
        }
        let until = Instant::now() + self.linger;
        while batch.len() < MOST {
            tokio::select! {
                biased;
                more = self.inbox.recv_many(batch, MOST - batch.len()) => if more == 0 { break },
                () = tokio::time::sleep_until(until) => break,
                () = hurried(self.hurry.clone(), Duration::ZERO) => break,
            }
        }
        true
    }

    /// Marks the whole batch, for as long as it takes: a failed marking keeps its ids.
    async fn once(&self, batch: &mut Vec<Mark>) {
        self.note(batch).await;
        let mut refused = HashSet::new();
        for (alike, ids) in self.groups(batch) {
            refused.extend(self.mark(&ids, alike).await);
        }
        self.bury(batch, &refused).await;
        for (number, branch) in self.branches.iter().enumerate() {
            branch.book(batch.iter().filter(|mark| mark.branch == number), &refused);
        }
        for mark in batch.drain(..).filter(|mark| mark.is_last) {
            mark.tally.inspect(Tally::marked);
        }
    }

    /// The rows by what of them is done, by all branches together: one update for those that are alike.
    fn groups(&self, batch: &[Mark]) -> HashMap<Alike, Vec<RowId>> {
        let mut groups: HashMap<Alike, Vec<RowId>> = HashMap::new();
        let mut add = |id: &RowId, alike| groups.entry(alike).or_default().push(id.clone());
        match self.branches.len() {
            // In the order in which they were read, which is the server's.
            1 => batch.iter().for_each(|mark| add(&mark.id, Alike::of(mark))),
            _ => joined(batch)
                .into_iter()
                .for_each(|(id, alike)| add(id, alike)),
        }
        groups
    }

    /// Marks these rows. Where the server refuses for good, the batch is halved until the row it refuses is
    /// alone; which rows that were.
    async fn mark(&self, ids: &[RowId], alike: Alike) -> Vec<RowId> {
        let mut refused = Vec::new();
        let mut parts = Parts::of(ids);
        while let Some(part) = parts.next() {
            let Err(refusal) = self.acknowledged(part, alike).await else {
                continue;
            };
            if let Some(row) = parts.refused(part) {
                tracing::error!(%row, %refusal, "published, and cannot be marked: delete the row");
                refused.push(row.clone());
            }
        }
        refused
    }

    /// Repeats the update for as long as the fault is not that of the rows.
    async fn acknowledged(&self, ids: &[RowId], alike: Alike) -> Result<()> {
        let others = self.others.names();
        let mut all = self.routes.names(self.routes.whole());
        all.extend(others.iter().map(|route| &**route));
        let marking = Marking {
            done: &self.routes.names(alike.gone),
            later: &self.routes.names(alike.later),
            all: &all,
        };
        let mut waits = marking::waits();
        loop {
            match self.store.mark(ids, &marking).await {
                Ok(_) => break,
                Err(error) if error.is_refused_write() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, rows = ids.len(), "marking failed and is repeated");
                }
            }
            let wait = waits.next().unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = hurried(self.hurry.clone(), LEAST_WAIT) => {}
            }
        }
        tracing::debug!(rows = ids.len(), "marked");
        Ok(())
    }
}

/// What of each row is done, whoever did it.
fn joined(batch: &[Mark]) -> HashMap<&RowId, Alike> {
    let mut rows: HashMap<&RowId, Alike> = HashMap::with_capacity(batch.len());
    for mark in batch {
        let alike = rows.entry(&mark.id).or_default();
        *alike = alike.and(Alike::of(mark));
    }
    rows
}

impl Booked {
    /// What cannot be marked stays in the ledger, so that this process at least does not send it again.
    fn book<'a>(&self, marks: impl Iterator<Item = &'a Mark>, refused: &HashSet<RowId>) {
        let (last, partly): (Vec<&Mark>, Vec<&Mark>) = marks.partition(|mark| mark.is_last);
        let (lost, marked): (Vec<&RowId>, Vec<&RowId>) = last
            .into_iter()
            .map(|mark| &mark.id)
            .partition(|id| refused.contains(*id));
        self.meters.marked(marked.len());
        self.ledger.marked(marked);
        // A row of which some routes were marked may by now wait for the mark of the rest.
        self.ledger.partly_marked(partly.len());
        lost.into_iter().for_each(|id| self.ledger.refused(id));
    }
}

/// Resolves some time after someone waits for the marks.
async fn hurried(mut hurry: watch::Receiver<bool>, after: Duration) {
    let is_hurried = hurry.wait_for(|&hurry| hurry).await.is_ok();
    match is_hurried {
        true => tokio::time::sleep(after).await,
        // Without the sender there is nobody to wait.
        false => std::future::pending().await,
    }
}
