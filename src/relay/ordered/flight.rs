//! Whether a batch is on its way, for who has to wait for its end.

use tokio::sync::watch;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Flight(watch::Sender<usize>);

impl Flight {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Until what is returned is dropped. Whoever ends the right to deliver first and then looks here misses none, where the
    /// right is asked for after this.
    pub(super) fn begin(&self) -> Flying {
        self.0.send_modify(|batches| *batches += 1);
        Flying(self.0.clone())
    }

    /// How many batches, of which there is one at most.
    pub(crate) fn batches(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until it is as `expected`. Cancel safe.
    pub(crate) async fn until(&self, expected: impl Fn(usize) -> bool) {
        // The sender is here.
        let _ = self.0.subscribe().wait_for(|&now| expected(now)).await;
    }
}

/// See [`Flight::begin`].
pub(super) struct Flying(watch::Sender<usize>);

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.send_modify(|batches| *batches -= 1);
    }
}
