//! How much may be written before some of it has to be published.
//!
//! The server counts what it holds, and this process adds what it has written since. So the way of a row waits for no
//! count while there is room: a loop beside it counts again once the last count is old, or half of what may be added
//! to it is. Only a row that comes when all of that is used up waits for a new count, and one that is about to be refused.
//!
//! A count does not see what other processes write meanwhile. That is why each adds but a part of the room it saw: the
//! nearer the ceiling, the more often all of them count, and the less they can go over it together.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::book::{Book, Verdict};
use crate::{
    ceiling::Ceiling,
    error::{Error, Result},
    relay::Relay,
    store::Store,
};

/// How long a row waits for a count. One that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the rows of an outbox pass before they are written.
pub(super) struct Gate {
    ceiling: Ceiling,
    store: Store,
    book: Mutex<Book>,
    /// Held by whoever counts: those who come meanwhile use what he has counted.
    counting: tokio::sync::Mutex<()>,
    /// Told when it is time to count.
    stale: Notify,
}

/// A row that was let through and may not be there yet for the server to count.
pub(super) struct Admission {
    gate: Arc<Gate>,
    weight: u64,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.gate.book().close(self.weight);
    }
}

impl Gate {
    /// Counts beside the loops of the relay, for as long as they run.
    pub(super) fn start(ceiling: Ceiling, store: Store, relay: &Relay) -> Arc<Self> {
        let gate = Arc::new(Self {
            ceiling,
            store,
            book: Mutex::new(Book::new(ceiling.most())),
            counting: tokio::sync::Mutex::default(),
            stale: Notify::new(),
        });
        relay.run_beside(gate.clone().run());
        // So that the first row need not wait for it.
        gate.stale.notify_one();
        gate
    }

    /// Lets a row of so many bytes through, if there is room for it.
    ///
    /// # Errors
    ///
    /// [`Error::Ceiling`] if there is none.
    pub(super) async fn admit(self: &Arc<Self>, size: usize) -> Result<Admission> {
        let weight = self.ceiling.weight(size);
        if let Some(admitted) = self.decided(weight) {
            return admitted;
        }
        let _counting = self.counting.lock().await;
        if let Some(admitted) = self.decided(weight) {
            return admitted;
        }
        self.count().await;
        let mut book = self.book();
        match book.has_room(weight) {
            true => Ok(self.let_through(&mut book, weight)),
            false => Err(self.refusal()),
        }
    }

    /// None if that takes a count.
    fn decided(self: &Arc<Self>, weight: u64) -> Option<Result<Admission>> {
        let mut book = self.book();
        match book.judge(weight, Instant::now()) {
            Verdict::Room => Some(Ok(self.let_through(&mut book, weight))),
            Verdict::Full => Some(Err(self.refusal())),
            Verdict::Unknown => None,
        }
    }

    fn let_through(self: &Arc<Self>, book: &mut Book, weight: u64) -> Admission {
        book.open(weight);
        if book.is_stale(Instant::now()) {
            self.stale.notify_one();
        }
        Admission {
            gate: self.clone(),
            weight,
        }
    }

    fn refusal(&self) -> Error {
        let ceiling = self.ceiling;
        Error::Ceiling { ceiling }
    }

    async fn run(self: Arc<Self>) {
        loop {
            self.stale.notified().await;
            let _counting = self.counting.lock().await;
            // Somebody may have been faster.
            if self.book().is_stale(Instant::now()) {
                self.count().await;
            }
        }
    }

    /// Cancel safe: what is not counted to the end has not been counted.
    async fn count(&self) {
        let (begun, before) = (Instant::now(), self.book().closed());
        let counted = tokio::time::timeout(PATIENCE, self.store.held(self.ceiling)).await;
        let took = begun.elapsed();
        let problem = match counted {
            Ok(Ok(held)) => return self.book().counted(held, before, Instant::now(), took),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        if self.book().failed(Instant::now()) {
            tracing::warn!(
                collection = self.store.name(),
                ceiling = self.ceiling.to_string(),
                "the backlog cannot be counted, so nothing is refused until it can: {problem}; the user has to be allowed to \
                 find in {}, and `toa-outbox init {}` makes the index that it is counted by",
                self.store.deliveries(),
                self.store.collection(),
            );
        }
    }

    /// Nothing that panics is called under the lock, so a poisoned one is as good as any.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
