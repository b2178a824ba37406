//! Which slot is mine, or none.
//!
//! A replica pumps only the lanes it owns, so that no two replicas read, publish and mark the same
//! rows. When in doubt, own nothing: a pause is recoverable, uncoordinated publication is a
//! different guarantee. A replica that owns nothing still writes, publishes its own rows and marks
//! them; only reading waits.
//!
//! Today there is one way to be given a slot, [`fixed`]: the operator says which. It is trusted as it
//! is; two processes told the same slot both own it.

mod fixed;
// How replicas will agree on their slots, checked by a model. Nothing drives it yet, so it is built for its
// tests only, and what the driver will use of it nobody uses.
#[cfg(test)]
#[allow(dead_code, unused_imports)]
mod protocol;

use rand::seq::IteratorRandom;
use tokio::sync::watch;

use crate::lane::{LANES, Slot};

pub(crate) use fixed::fixed;

/// What this replica owns at the moment, as the pump, the publisher and the writer see it.
#[derive(Clone)]
pub(crate) struct Ownership {
    slot: watch::Receiver<Option<Slot>>,
}

impl Ownership {
    /// The slot owned right now.
    pub(crate) fn slot(&self) -> Option<Slot> {
        *self.slot.borrow()
    }

    /// Whether `lane` is owned right now. Asked again before every hand-over, never remembered.
    pub(crate) fn owns(&self, lane: u8) -> bool {
        self.slot().is_some_and(|slot| slot.owns(lane))
    }

    /// A lane for a new row: one that is owned, so that what this replica reads back is its own; any
    /// lane when it owns none.
    pub(crate) fn pick(&self) -> u8 {
        let mut rng = rand::rng();
        match self.slot() {
            Some(slot) => slot.lanes().choose(&mut rng),
            None => (0..LANES).choose(&mut rng),
        }
        .unwrap_or(0)
    }

    /// Resolves when the assignment changed since the last call. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if self.slot.changed().await.is_err() {
            std::future::pending().await
        }
    }
}
