//! How long an answer of the broker may stay away.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// The most times the patience is doubled.
const DOUBLINGS: u32 = 6;

pub(super) struct Patience {
    /// For the first answer that stays away; each further one in a row is given twice as long.
    timeout: Duration,
    silences: AtomicU32,
    /// Since when the broker takes what is written; none while it has blocked the connection.
    flowing: watch::Sender<Option<Instant>>,
}

impl Patience {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            silences: AtomicU32::new(0),
            flowing: watch::Sender::new(Some(Instant::now())),
        }
    }

    /// Whether the broker takes what is written. While it does not, no time passes here.
    pub(super) fn flows(&self, flows: bool) {
        self.flowing.send_replace(flows.then(Instant::now));
    }

    /// An answer stayed away.
    pub(super) fn silent(&self) {
        self.silences.fetch_add(1, Relaxed);
    }

    /// An answer came.
    pub(super) fn answered(&self) {
        self.silences.store(0, Relaxed);
    }

    /// Resolves once an answer to what is asked now has stayed away for too long. Cancel safe.
    pub(super) async fn ends(&self) {
        let patience = self.timeout * (1 << self.silences.load(Relaxed).min(DOUBLINGS));
        let asked = Instant::now();
        let mut flowing = self.flowing.subscribe();
        loop {
            let since = *flowing.borrow_and_update();
            let Some(since) = since else {
                // The sender lives as long as this.
                let _ = flowing.changed().await;
                continue;
            };
            let until = since.max(asked) + patience;
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => return,
                _ = flowing.changed() => {}
            }
        }
    }
}
