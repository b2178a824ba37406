//! What rows are owed to that this replica does not serve.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;

/// Routes of a component, besides its own.
#[derive(Clone)]
pub(crate) struct Owed {
    /// Those that other live replicas serve.
    pub(super) live: watch::Receiver<Arc<[Arc<str>]>>,
    /// Those that are registered, whether anybody serves them or not.
    pub(super) registered: watch::Receiver<Arc<[Arc<str>]>>,
}

impl Owed {
    /// Each once.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let (live, registered) = (self.live.borrow().clone(), self.registered.borrow().clone());
        let all: BTreeSet<_> = live.iter().chain(registered.iter()).cloned().collect();
        all.into_iter().collect()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.live.borrow().is_empty() && self.registered.borrow().is_empty()
    }
}
