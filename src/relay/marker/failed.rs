//! What failed for itself: noted before its row is marked, so that it is never in neither place.

use std::collections::HashSet;

use super::{Mark, Marker};
use crate::{
    routes::RouteSet,
    row::RowId,
    sinks::Next,
    store::{deliveries::Failure, marking},
};

/// A route whose message failed for itself.
pub(crate) struct Failed {
    /// Its number.
    pub(crate) route: usize,
    pub(crate) reason: String,
    pub(crate) next: Next,
}

impl Mark {
    /// What of it failed and is tried again, or is given up.
    fn failed(&self, is_dead: bool) -> RouteSet {
        let mut set = RouteSet::default();
        for failed in &self.failed {
            if matches!(failed.next, Next::Dead(_)) == is_dead {
                set.insert(failed.route);
            }
        }
        set
    }

    /// What its row owes no more.
    pub(super) fn gone(&self) -> RouteSet {
        self.done.union(self.failed(true))
    }

    /// What is tried again at a time of its own.
    pub(super) fn later(&self) -> RouteSet {
        self.failed(false)
    }
}

impl Marker {
    /// Notes what failed, for as long as it takes. Where that is refused for good, nothing of it is marked: it stays owed, and is
    /// tried with the next cycle.
    pub(super) async fn note(&self, batch: &mut [Mark]) {
        let failures: Vec<Failure> = batch.iter().flat_map(|mark| self.failures(mark)).collect();
        if failures.is_empty() {
            return;
        }
        let mut waits = marking::waits();
        while let Err(error) = self.deliveries.failed(&failures).await {
            if !error.again() {
                tracing::error!(
                    %error,
                    "what a sink did not take cannot be noted, so it is never given up and tried with each cycle"
                );
                return batch.iter_mut().for_each(|mark| mark.failed.clear());
            }
            tracing::warn!(%error, "noting what a sink did not take failed and is repeated");
            tokio::time::sleep(waits.next().unwrap_or_default()).await;
        }
        for failure in failures.iter().filter(|failure| failure.is_dead()) {
            failure.say(1);
        }
    }

    fn failures<'a>(&'a self, mark: &'a Mark) -> impl Iterator<Item = Failure> + 'a {
        mark.failed.iter().filter_map(|failed| {
            let route = self.routes.all.get(failed.route)?;
            let reason = failed.reason.clone();
            let failure = Failure::new(&mark.id, &route.name, &route.sink, reason, failed.next);
            Some(failure)
        })
    }

    /// Says of what is dead that its row knows. Where that fails, it is found again and finished by whoever tries again what is
    /// due.
    pub(super) async fn bury(&self, batch: &[Mark], refused: &HashSet<RowId>) {
        let mut dead = Vec::new();
        for mark in batch.iter().filter(|mark| !refused.contains(&mark.id)) {
            let names = self.routes.names(mark.failed(true));
            dead.extend(
                names
                    .into_iter()
                    .map(|route| (mark.id.clone(), route.to_owned())),
            );
        }
        if dead.is_empty() {
            return;
        }
        if let Err(error) = self.deliveries.buried(&dead).await {
            tracing::warn!(%error, "finished later");
        }
    }
}
