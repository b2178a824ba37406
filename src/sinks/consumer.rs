//! Handlers in the service itself, under one name a sink.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};

use super::{Message, Sink, Unreachable, Verdict};
use crate::label::BoxError;

/// A handler, whatever its type.
pub(crate) type Handler =
    Box<dyn Fn(Message) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

/// The handlers of one name, each for labels of its own.
#[derive(Default)]
pub(crate) struct Consumer {
    handlers: Vec<Handling>,
    timeout: Duration,
}

struct Handling {
    pattern: String,
    /// The labels its pattern fits.
    labels: Vec<String>,
    handler: Handler,
}

impl Consumer {
    /// Of handlers that may take this long for one message.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            handlers: Vec::new(),
            timeout,
        }
    }

    /// How long a batch may take whose rows have so many labels: one after the other, each for as long as it may, and a second for
    /// all of them to be told that they were too late. Whoever gave up earlier would have handlers asked again that were done.
    pub(crate) fn patience(timeout: Duration, labels: usize) -> Duration {
        let labels = u32::try_from(labels).unwrap_or(u32::MAX);
        timeout
            .saturating_mul(labels)
            .saturating_add(Duration::from_secs(1))
    }

    pub(crate) fn add(&mut self, pattern: String, labels: Vec<String>, handler: Handler) {
        self.handlers.push(Handling {
            pattern,
            labels,
            handler,
        });
    }

    /// The pattern by which one of these labels is handled already.
    pub(crate) fn handles(&self, labels: &[String]) -> Option<&str> {
        let handles =
            |handling: &&Handling| labels.iter().any(|label| handling.labels.contains(label));
        let first = self.handlers.iter().find(handles);
        first.map(|handling| handling.pattern.as_str())
    }

    /// Each by itself: one that fails, panics or hangs has no other tried again.
    async fn handle(&self, message: &Message) -> Verdict {
        let label = message.label();
        let of_label =
            |handling: &&Handling| handling.labels.iter().any(|handled| handled == label);
        let Some(Handling { handler, .. }) = self.handlers.iter().find(of_label) else {
            return failed(format!("no handler of {label}"));
        };
        // The handler may panic before it returns a future, too.
        let message = message.clone();
        let handled = AssertUnwindSafe(async { handler(message).await }).catch_unwind();
        match tokio::time::timeout(self.timeout, handled).await {
            Ok(Ok(Ok(()))) => Verdict::Accepted,
            Ok(Ok(Err(error))) if error.is::<Unreachable>() => Verdict::Retry {
                reason: error.to_string(),
                after: Some(Duration::from_secs(1)),
            },
            Ok(Ok(Err(error))) => failed(error.to_string()),
            Ok(Err(_)) => failed("the handler panicked".into()),
            Err(_) => failed(format!(
                "no answer of the handler within {:?}",
                self.timeout
            )),
        }
    }
}

fn failed(reason: String) -> Verdict {
    Verdict::Retry {
        reason,
        after: None,
    }
}

impl Sink for Consumer {
    /// Rows at once, the labels of a row in their order.
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let rows = batch.chunk_by(|one, next| one.row() == next.row());
        let handled = rows.map(|row| async move {
            let mut verdicts = Vec::with_capacity(row.len());
            for message in row {
                verdicts.push(self.handle(message).await);
            }
            verdicts
        });
        Ok(join_all(handled).await.concat())
    }
}
