//! Waiting for a condition instead of for a time.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

const POLL: Duration = Duration::from_millis(20);

/// What a check may answer: `true` or `Some` ends the waiting.
pub trait Outcome {
    /// What the waiting yields.
    type Value;

    /// The value, if the condition holds.
    fn settled(self) -> Option<Self::Value>;
}

impl Outcome for bool {
    type Value = ();

    fn settled(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Outcome for Option<T> {
    type Value = T;

    fn settled(self) -> Option<T> {
        self
    }
}

/// Checks until the condition holds; panics, naming `what`, when it does not within `deadline`.
pub async fn eventually<O: Outcome>(
    deadline: Duration,
    what: &str,
    mut check: impl AsyncFnMut() -> O,
) -> O::Value {
    let end = Instant::now() + deadline;

    loop {
        // A check that hangs is one that does not hold.
        let answer = timeout_at(end, check()).await;
        if let Some(value) = answer.ok().and_then(Outcome::settled) {
            return value;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        sleep(POLL).await;
    }
}
