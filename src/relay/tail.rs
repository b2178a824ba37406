//! Follows the rows of other writers as they are committed.
//!
//! The rows are the truth; the change stream only makes them early. So nothing is remembered of where it was: it is opened
//! from now, and then the pump sweeps what was committed before. Whatever ends it, a lost history, an event
//! over 16 MB, an election, silence, it is opened anew, at most once a second, and the sweep covers the gap.
//!
//! What keeps tail and pump from sending a row twice is the ledger. For it to know when it may forget a row that the pump
//! has published, the tail sets fences: a point in the order of all commits. Once an event after it comes by,
//! or nothing at all when asked after, the tail has passed all that was committed before.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bson::Timestamp;
use mongodb::Database;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::Ledger,
    line::{Line, Lines},
};
use crate::{
    error::{Error, Result},
    metrics::{self, TailMeters},
    report::Reports,
    slots::Lanes,
    store::feed::{Collections, Feed, Inserted, Scope, fence},
};

/// The least time from one opening to the next.
const PACE: Duration = Duration::from_secs(1);

/// The least time from one fence to the next.
const BETWEEN_FENCES: Duration = Duration::from_millis(100);

pub(crate) struct Tail {
    pub(crate) database: Database,
    pub(crate) lines: Lines,
    /// Told when lanes come or go.
    pub(crate) assigned: watch::Receiver<u64>,
    /// Told when a row comes of a collection that is not known.
    pub(crate) unknown: Arc<Notify>,
    /// Whether every outbox collection is followed, known or not.
    pub(crate) all: bool,
    pub(crate) reports: Reports,
}

impl Tail {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.once() => {}
            }
        }
    }

    /// The life of one stream.
    async fn once(&mut self) {
        self.assigned.mark_unchanged();
        let scope = self.scope();
        if scope.lanes.is_empty() {
            // The sender lives as long as the seat is kept; without it nothing is ever owned again.
            if self.assigned.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            return;
        }
        let again = Instant::now() + PACE;
        if let Err(error) = self.follow(&scope).await {
            self.report(&error);
            metrics::tail_reopened();
            tokio::time::sleep_until(again).await;
        }
    }

    fn report(&mut self, error: &Error) {
        self.reports.first(&error.to_string(), |times| {
            tracing::warn!(
                %error,
                times,
                "the tail ended and is opened anew; what it has not passed is pumped"
            );
        });
    }

    /// The lanes that any component has.
    fn scope(&self) -> Scope {
        let lines = self.lines.all();
        let mut lanes: Vec<u8> = Vec::new();
        lines
            .iter()
            .for_each(|line| lanes.extend(line.lanes.lanes().list()));
        lanes.sort_unstable();
        lanes.dedup();
        let names = lines.iter().map(|line| line.store.collection().to_owned());
        let collections = match self.all {
            true => Collections::All,
            false => Collections::These(names.collect()),
        };
        Scope { lanes, collections }
    }

    /// Until the lanes are others than when it began, or an error.
    async fn follow(&mut self, scope: &Scope) -> Result<()> {
        // Before the stream is opened: what is marked from here on it may bring.
        let _tailed = Tailed::new(&self.lines);
        let mut lines = Known::new(&self.lines);
        let mut feed = Feed::open(&self.database, scope).await?;
        tracing::debug!(lanes = scope.lanes.len(), "the tail is open");
        // What was committed before it was open.
        lines.all.iter().for_each(|line| line.nudge());
        let mut fences = Fences::default();
        loop {
            lines.refresh(&self.lines);
            fences.set(&self.database, &lines).await?;
            let Some(fed) = self.next(&mut feed).await? else {
                return Ok(());
            };
            fences.meet(fed.as_ref(), &lines);
            if let Some(inserted) = fed {
                self.take(&inserted, &lines).await;
            }
        }
    }

    /// What the stream brings next; none once lanes have come or gone.
    async fn next(&mut self, feed: &mut Feed) -> Result<Option<Option<Inserted>>> {
        tokio::select! {
            biased;
            // Without a sender nothing is owned.
            _ = self.assigned.changed() => Ok(None),
            fed = feed.next() => fed.map(Some),
        }
    }

    async fn take(&self, inserted: &Inserted, lines: &Known) {
        let (Some(collection), Some(row)) = (inserted.collection(), inserted.row()) else {
            return;
        };
        match lines.by_name.get(collection) {
            Some(followed) => {
                if followed.line.take(row, &followed.lanes).await {
                    followed.meters.taken();
                }
            }
            None => self.unknown.notify_one(),
        }
    }
}

/// While it exists, the ledgers keep what the tail may still bring.
struct Tailed(Lines);

impl Tailed {
    fn new(lines: &Lines) -> Self {
        lines.set_tailed(true);
        Self(lines.clone())
    }
}

impl Drop for Tailed {
    fn drop(&mut self) {
        self.0.set_tailed(false);
    }
}

/// The lines, as they were when the stream was opened.
struct Known {
    all: Vec<Arc<Line>>,
    by_name: HashMap<String, Followed>,
}

struct Followed {
    line: Arc<Line>,
    /// What it owned then. A row leaves by this right or not at all: in between, others may have published it.
    lanes: Lanes,
    meters: TailMeters,
}

impl Known {
    fn new(lines: &Lines) -> Self {
        let all = lines.all();
        let followed = all.iter().map(|line| {
            let followed = Followed {
                line: line.clone(),
                lanes: line.lanes.lanes(),
                meters: TailMeters::new(line.routes.component()),
            };
            (line.store.collection().to_owned(), followed)
        });
        let by_name = followed.collect();
        Self { all, by_name }
    }

    fn ledgers(&self) -> impl Iterator<Item = &Arc<Ledger>> {
        self.all.iter().flat_map(|line| line.ledgers())
    }

    /// Those that have come since own nothing yet, but what they sweep has to be fenced.
    fn refresh(&mut self, lines: &Lines) {
        if lines.count() > self.all.len() {
            self.all = lines.all();
        }
    }
}

/// Where the ledgers were parted last, for as long as the tail has not passed it.
#[derive(Default)]
struct Fences {
    standing: Option<Timestamp>,
    /// When it was last looked whether there is reason for one.
    looked: Option<Instant>,
}

impl Fences {
    /// Sets one where something is marked and none stands. It is not looked for with every row: that takes the lock of
    /// each ledger.
    async fn set(&mut self, database: &Database, lines: &Known) -> Result<()> {
        let is_soon = self
            .looked
            .is_some_and(|looked| looked.elapsed() < BETWEEN_FENCES);
        if self.standing.is_some() || is_soon {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let mut any = false;
        lines.ledgers().for_each(|ledger| any |= ledger.fence());
        if any {
            // Asked after the ledgers were parted, so that it comes after all of the one side.
            self.standing = Some(fence(database).await?);
        }
        Ok(())
    }

    /// Takes the fence down once what the stream brought came after it.
    fn meet(&mut self, fed: Option<&Inserted>, lines: &Known) {
        let Some(standing) = self.standing else {
            return;
        };
        let is_passed = match fed {
            Some(inserted) => inserted.at().is_some_and(|at| at > standing),
            None => true,
        };
        if is_passed {
            self.standing = None;
            lines.ledgers().for_each(|ledger| ledger.passed());
        }
    }
}
