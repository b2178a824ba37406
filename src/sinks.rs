//! What a sink is: a named destination that takes messages and answers for each of them.
//!
//! Sinks know messages, never MongoDB. A sink is asked for one message at a time and is asked for many
//! at once; it answers each exactly when it knows, and [`Verdict::Accepted`] means that the
//! destination has taken responsibility for it.

pub(crate) mod amqp;

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::Term;

/// What a route renders from an event. Its identity is `row` and `label` together.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The id of the row, as text.
    pub(crate) row: String,
    /// When the row was made, seconds since the epoch; none if nobody knows.
    pub(crate) time: Option<u64>,
    /// The encoded payload.
    pub(crate) body: Vec<u8>,
    /// Everything that is the same for each message of this route.
    pub(crate) route: Arc<Route>,
    /// Within which it may be handed over. To be asked right before, whatever was waited for until then.
    pub(crate) term: Term,
}

/// Where the messages of one label go, the same for all of them.
#[derive(Debug)]
pub(crate) struct Route {
    /// `<namespace>.<name>`.
    pub(crate) component: String,
    /// The label.
    pub(crate) label: String,
    /// The name of the exchange.
    pub(crate) exchange: String,
    /// The content type, exactly.
    pub(crate) content_type: &'static str,
    /// Whether a message no queue takes counts as not sent.
    pub(crate) mandatory: bool,
    /// Headers of the user's own.
    pub(crate) headers: BTreeMap<String, String>,
}

/// A sink's answer for one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The destination has it.
    Accepted,
    /// Not now; nothing says that the destination has it, and it may all the same.
    Retry {
        /// Why, in one line.
        reason: String,
        /// When to try again.
        pace: Pace,
    },
}

/// When a message that was not accepted is tried again, the most hurried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pace {
    /// As soon as the sink takes messages: the fault was not the message's.
    AtOnce,
    /// With the next cycle.
    NextCycle,
    /// After a cycle, then two, four and so on, up to five minutes.
    Growing,
}

impl Verdict {
    pub(crate) fn retry(pace: Pace, reason: impl Into<String>) -> Self {
        Self::Retry {
            reason: reason.into(),
            pace,
        }
    }
}

/// How much of one sink may be in flight, counted in rows.
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

    /// A place for a row of a sweep. Cancel safe.
    pub(crate) async fn take_swept(&self) -> Vec<OwnedSemaphorePermit> {
        let swept = self.swept.clone().acquire_owned().await;
        let total = self.total.clone().acquire_owned().await;
        // Neither semaphore is ever closed.
        [swept, total].into_iter().flatten().collect()
    }
}
