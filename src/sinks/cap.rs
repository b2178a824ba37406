//! How much of one sink may be in flight.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counted in rows.
///
/// Sweeps get at most three quarters, so that a backlog leaves room for what is committed meanwhile.
#[derive(Clone)]
pub(crate) struct Cap {
    total: Arc<Semaphore>,
    swept: Arc<Semaphore>,
}

impl Cap {
    pub(crate) fn new(rows: u32) -> Self {
        let rows = rows as usize;
        Self {
            total: Arc::new(Semaphore::new(rows)),
            swept: Arc::new(Semaphore::new((rows * 3 / 4).max(1))),
        }
    }

    /// A place for a row of the immediate path, if there is one.
    pub(crate) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        self.total.clone().try_acquire_owned().ok()
    }

    /// A place for a row of the tail, when there is one. Cancel safe.
    pub(crate) async fn take(&self) -> Vec<OwnedSemaphorePermit> {
        // Never closed.
        self.total
            .clone()
            .acquire_owned()
            .await
            .into_iter()
            .collect()
    }

    /// As [`take`](Self::take), for a while at most. Cancel safe.
    pub(crate) async fn take_within(&self, wait: Duration) -> Option<OwnedSemaphorePermit> {
        let taken = tokio::time::timeout(wait, self.total.clone().acquire_owned()).await;
        // Never closed.
        taken.ok()?.ok()
    }

    /// A place for a row of a sweep. Cancel safe.
    pub(crate) async fn take_swept(&self) -> Vec<OwnedSemaphorePermit> {
        let swept = self.swept.clone().acquire_owned().await;
        let total = self.total.clone().acquire_owned().await;
        // Neither semaphore is ever closed.
        [swept, total].into_iter().flatten().collect()
    }
}
