//! Tells how much waits: of every lane, since a row that nobody owns is the one that waits for ever.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::{metrics::BacklogMeters, report::Reports, store::Store};

/// Where the metrics are read; elsewhere it would be a query for nobody.
pub(crate) struct Watch {
    pub(crate) store: Store,
    pub(crate) meters: BacklogMeters,
    pub(crate) every: Duration,
    pub(crate) reports: Reports,
}

impl Watch {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
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

    /// When it cannot be known, the last that is known stands.
    async fn once(&mut self) {
        match self.store.waiting().await {
            Ok(waiting) => self.meters.waits(waiting.rows, waiting.age),
            Err(error) => self.reports.first(&error.to_string(), |times| {
                tracing::warn!(%error, times, "how much waits is not known");
            }),
        }
    }
}
