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

use super::line::{Line, Lines};
use crate::{
    error::{Error, Result},
    metrics::{self, TailMeters},
    report::Reports,
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

/// Why the stream has to be opened anew, besides an error.
enum Ended {
    /// Lanes or collections are others than before.
    Rescoped,
    /// It fell behind further than is remembered.
    Late,
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
        match self.follow(&scope).await {
            Ok(Ended::Rescoped) => return,
            Ok(Ended::Late) => tracing::info!(
                "the tail fell too far behind and is opened anew; what it has not passed is pumped"
            ),
            Err(error) => self.report(&error),
        }
        metrics::tail_reopened();
        tokio::time::sleep_until(again).await;
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

    async fn follow(&mut self, scope: &Scope) -> Result<Ended> {
        // Before the stream is opened: what is marked from here on it may bring.
        let _tailed = Tailed::new(&self.lines);
        let mut feed = Feed::open(&self.database, scope).await?;
        tracing::debug!(lanes = scope.lanes.len(), "the tail is open");
        let mut lines = Known::new(&self.lines);
        // What was committed before it was open.
        lines.all.iter().for_each(|line| line.nudge());
        let mut fences = Fences::default();
        loop {
            fences.set(&self.database, &lines).await?;
            let Some(fed) = self.next(&mut feed, scope).await? else {
                return Ok(Ended::Rescoped);
            };
            fences.meet(fed.as_ref(), &lines);
            if let Some(inserted) = fed {
                self.take(&inserted, &mut lines).await;
            }
            if lines.all.iter().any(|line| line.ledger.is_tail_late()) {
                return Ok(Ended::Late);
            }
        }
    }

    /// What the stream brings next; none once its scope is another.
    async fn next(&mut self, feed: &mut Feed, scope: &Scope) -> Result<Option<Option<Inserted>>> {
        // One future to its end: dropped on the way, the stream could not be used any more.
        let mut next = std::pin::pin!(feed.next());
        loop {
            tokio::select! {
                fed = &mut next => return fed.map(Some),
                Ok(()) = self.assigned.changed() => {
                    if self.scope() != *scope {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn take(&self, inserted: &Inserted, lines: &mut Known) {
        let (Some(collection), Some(row)) = (inserted.collection(), inserted.row()) else {
            return;
        };
        match lines.find(collection, &self.lines) {
            Some((line, meters)) => {
                if line.take(row).await {
                    meters.taken();
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

/// The lines by their collections.
struct Known {
    all: Vec<Arc<Line>>,
    by_name: HashMap<String, (Arc<Line>, TailMeters)>,
}

impl Known {
    fn new(lines: &Lines) -> Self {
        let all = lines.all();
        let named = all.iter().map(|line| {
            let meters = TailMeters::new(line.routes.component());
            (line.store.collection().to_owned(), (line.clone(), meters))
        });
        let by_name = named.collect();
        Self { all, by_name }
    }

    /// Looks again where it does not know: there may be more by now.
    fn find(&mut self, collection: &str, lines: &Lines) -> Option<&(Arc<Line>, TailMeters)> {
        if !self.by_name.contains_key(collection) && lines.count() > self.all.len() {
            *self = Self::new(lines);
        }
        self.by_name.get(collection)
    }
}

/// Where the ledgers were parted last, for as long as the tail has not passed it.
#[derive(Default)]
struct Fences {
    standing: Option<Timestamp>,
    set: Option<Instant>,
}

impl Fences {
    /// Sets one where something is marked and none stands.
    async fn set(&mut self, database: &Database, lines: &Known) -> Result<()> {
        let is_soon = self.set.is_some_and(|set| set.elapsed() < BETWEEN_FENCES);
        if self.standing.is_some() || is_soon {
            return Ok(());
        }
        let mut any = false;
        lines.all.iter().for_each(|line| any |= line.ledger.fence());
        if any {
            // Asked after the ledgers were parted, so that it comes after all of the one side.
            self.standing = Some(fence(database).await?);
            self.set = Some(Instant::now());
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
            lines.all.iter().for_each(|line| line.ledger.passed());
        }
    }
}
