//! Tells how much waits: of every lane, since a row that nobody owns is the one that waits for ever.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::every,
    metrics::BacklogMeters,
    report::Reports,
    store::{Store, Waiting},
};

/// Less than what one is alerted on: while nobody answers, the age still has to go on.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the metrics are read; elsewhere it would be a query for nobody.
pub(crate) struct Watch {
    pub(crate) store: Store,
    pub(crate) meters: BacklogMeters,
    pub(crate) every: Duration,
    pub(crate) reports: Reports,
    /// What was known last, and when.
    pub(crate) known: Option<(Waiting, Instant)>,
}

impl Watch {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut tick = every(self.every);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.once() => {}
            }
        }
    }

    /// When it cannot be known, what is known goes on: what waited then waits longer.
    async fn once(&mut self) {
        match timeout(PATIENCE, self.store.waiting()).await {
            Ok(Ok(waiting)) => self.known = Some((waiting, Instant::now())),
            Ok(Err(error)) => self.unknown(&error.to_string()),
            Err(_) => self.unknown("no answer in time"),
        }
        if let Some((waiting, at)) = self.known {
            self.meters.waits(waiting.rows, waiting.age(at.elapsed()));
        }
    }

    fn unknown(&mut self, reason: &str) {
        self.reports.first(reason, |times| {
            tracing::warn!(
                collection = self.store.name(),
                reason,
                times,
                "how much waits is not known"
            );
        });
    }
}
