//! What becomes of a message that a sink does not take.

use std::time::Duration;

use super::safety::Safety;

use super::{Mode, Order};

/// The shortest and the longest wait of [`Policy::backoff`], and after how many attempts it gives up.
const LEAST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
const ATTEMPTS: u32 = 10;

/// After how many attempts [`SinkOptions::ordered`] asks whether a row or the destination is to blame.
const DOUBTED: u32 = 5;

/// What [`Policy::webhook`] waits between attempts, and for how long it keeps what is dead.
const WEBHOOK: [Duration; 7] = [
    minutes(1),
    minutes(5),
    minutes(30),
    minutes(2 * 60),
    minutes(6 * 60),
    minutes(12 * 60),
    minutes(24 * 60),
];
const WEBHOOK_KEEPS: Duration = minutes(90 * 24 * 60);

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

/// What becomes of a message that a sink does not take: whether it is given up, after how many attempts, and how long is waited
/// between them.
///
/// An attempt is counted where a message failed alone, for itself; not where a whole batch failed, nor where the
/// destination was [not there](crate::Unreachable). What is [rejected](crate::Verdict::Rejected) is given up at once. What is given
/// up is *dead*: its row owes it no more, and a copy of the row is kept in `<collection>_outbox_deliveries`, to be replayed or
/// discarded.
///
/// ```
/// use std::time::Duration;
/// use toa_outbox::Policy;
///
/// let thrice = Policy::backoff().attempts(3).keep(Duration::from_secs(86_400));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    waits: Waits,
    attempts: u32,
    kept: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Waits {
    /// Nothing is ever given up.
    Flat,
    Doubling,
    Given(Vec<Duration>),
}

/// What is to be done about a message that failed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is tried again after this long.
    Again(Duration),
    /// It is given up, and kept for so long; none: until someone discards it.
    Dead(Option<Duration>),
}

impl Policy {
    /// Nothing is ever given up, and nothing is counted: what fails is tried again with the next cycle, what is rejected ever more seldom,
    /// up to every five minutes.
    pub fn flat() -> Self {
        Self {
            waits: Waits::Flat,
            attempts: u32::MAX,
            kept: None,
        }
    }

    /// After a second, then two, four and so on, at most five minutes, each up to a fifth less by chance; dead after 10 attempts. The default.
    pub fn backoff() -> Self {
        Self {
            waits: Waits::Doubling,
            attempts: ATTEMPTS,
            kept: None,
        }
    }

    /// After each of these waits; dead when the attempt after the last of them fails.
    pub fn schedule(waits: impl IntoIterator<Item = Duration>) -> Self {
        let waits: Vec<Duration> = waits.into_iter().collect();
        Self {
            attempts: u32::try_from(waits.len())
                .unwrap_or(u32::MAX)
                .saturating_add(1),
            waits: Waits::Given(waits),
            kept: None,
        }
    }

    /// After 1, 5 and 30 minutes, then 2, 6, 12 and 24 hours: eight attempts. What is dead is kept for 90 days.
    pub fn webhook() -> Self {
        Self::schedule(WEBHOOK).keep(WEBHOOK_KEEPS)
    }

    /// Dead after so many attempts, at least one; no meaning to [`flat`](Self::flat). More than a schedule has waits repeat its last.
    pub fn attempts(self, attempts: u32) -> Self {
        Self {
            attempts: attempts.max(1),
            ..self
        }
    }

    /// How long what is dead is kept, in whole seconds; as it is, until someone discards it.
    pub fn keep(self, kept: Duration) -> Self {
        Self {
            kept: Some(kept),
            ..self
        }
    }

    /// Whether failures are remembered, and what fails for good is given up.
    pub(crate) fn gives_up(&self) -> bool {
        self.waits != Waits::Flat
    }

    /// After so many attempts that failed.
    pub(crate) fn next(&self, attempts: u32) -> Next {
        if attempts >= self.attempts {
            return self.never();
        }
        Next::Again(self.wait(attempts))
    }

    /// Of what the destination will never take.
    pub(crate) fn never(&self) -> Next {
        Next::Dead(self.kept)
    }

    /// Before the attempt that comes after so many that failed.
    pub(crate) fn wait(&self, attempts: u32) -> Duration {
        let before = attempts.saturating_sub(1) as usize;
        match &self.waits {
            Waits::Given(waits) => {
                let wait = waits.get(before).or(waits.last());
                wait.copied().unwrap_or(LEAST)
            }
            Waits::Flat | Waits::Doubling => {
                let wait = LEAST.saturating_mul(1 << before.min(16)).min(LONGEST);
                // So that what failed together does not come back together.
                wait.mul_f64(rand::random_range(0.8..=1.0))
            }
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::backoff()
    }
}

/// How a sink is treated; see [`Builder::sink_with`](crate::Builder::sink_with).
///
/// ```
/// use toa_outbox::{Policy, SinkOptions};
///
/// let patient = SinkOptions::new().policy(Policy::backoff().attempts(20)).from_now();
/// ```
#[derive(Clone, Debug, Default)]
pub struct SinkOptions {
    pub(crate) policy: Policy,
    pub(crate) mode: Mode,
    pub(crate) is_from_now: bool,
    /// None: as the sink says itself.
    pub(crate) safety: Option<Option<Safety>>,
}

impl SinkOptions {
    /// [`Policy::backoff`], and all that is unpublished when the sink is first registered.
    pub fn new() -> Self {
        Self::default()
    }

    /// As webhooks are usually treated: [`Policy::webhook`], and nothing that was made before.
    pub fn webhook() -> Self {
        Self::new().policy(Policy::webhook()).from_now()
    }

    /// In the order of the commits, from the oldest row that is still in the outbox, up to 128 rows at a time; a row's labels in
    /// declared order. One replica delivers, and where it goes, another takes over from the last batch whose place was saved: what
    /// came after that is repeated. What is in the outbox at the beginning comes in the order of its ids, and what is committed
    /// meanwhile may come twice.
    ///
    /// A batch that fails is halved until the row that fails is alone, and grows again with what is taken. That row is
    /// tried again after a second, then two, four and so on, up to five minutes, and those behind it wait. After five failures, whoever
    /// delivered, its neighbour, the next row, is delivered alone: if it is taken, the row was to blame, and is given up and kept as a dead
    /// delivery; if not, the destination is down, and nothing is given up. What is [rejected](crate::Verdict::Rejected) alone, or
    /// has a label that cannot be rendered, is given up at once. With [`Policy::flat`] nothing ever is.
    ///
    /// A batch is cut to what the sink takes [at once](crate::Sink::at_once). How much it is given at a time of what is not new, and what that is here, says its
    /// [`Safety`](crate::Safety#in-the-order-of-the-commits).
    ///
    /// The order needs a replica set; opened on a standalone server, it is refused.
    pub fn ordered() -> Self {
        Self {
            policy: Policy::backoff().attempts(DOUBTED),
            mode: Mode::Ordered(Order::USUAL),
            ..Self::default()
        }
    }

    /// As [`ordered`](Self::ordered), for a complete and strictly ordered record: a message's body is the whole event, `{ origin, state,
    /// trailers, input }`, up to 500 rows are delivered every five seconds, and on while batches are full. A batch that fails
    /// is tried again as it is, after a second, then two and so on, up to five minutes, and nothing is ever given up. Only where its
    /// [`Safety`](crate::Safety) says so goes one row first after an outage.
    pub fn audit() -> Self {
        Self {
            policy: Policy::flat(),
            mode: Mode::Ordered(Order::AUDIT),
            ..Self::default()
        }
    }

    /// What becomes of what it does not take.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// How much it is given at a time of a backlog or of what is sent again; none: as much as there is. As the
    /// [sink](crate::Sink::safety) says, unless it is said here. Where order is kept, it limits how fast the sink
    /// [catches up](Safety#in-the-order-of-the-commits).
    pub fn safety(self, safety: impl Into<Option<Safety>>) -> Self {
        Self {
            safety: Some(safety.into()),
            ..self
        }
    }

    /// It is given nothing that was made before it was first registered, by the clocks of the writers and of the server.
    pub fn from_now(self) -> Self {
        Self {
            is_from_now: true,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_minutes_and_end_after_ten_attempts() {
        let policy = Policy::backoff();
        for attempt in 1..10 {
            let Next::Again(wait) = policy.next(attempt) else {
                panic!("given up after {attempt}")
            };
            let most = LEAST.saturating_mul(1 << (attempt - 1)).min(LONGEST);
            assert!(
                (most.mul_f64(0.8)..=most).contains(&wait),
                "{attempt}: {wait:?}"
            );
        }
        assert_eq!(policy.next(10), Next::Dead(None));
        assert!(matches!(
            Policy::backoff().attempts(1).next(1),
            Next::Dead(_)
        ));
    }

    #[test]
    fn a_schedule_ends_after_its_last_wait() {
        let policy = Policy::webhook();
        let hours = [60, 300, 1800, 7200, 21_600, 43_200, 86_400];
        for (attempt, seconds) in (1..).zip(hours) {
            assert_eq!(
                policy.next(attempt),
                Next::Again(Duration::from_secs(seconds))
            );
        }
        let dead = Next::Dead(Some(Duration::from_secs(7_776_000)));
        assert_eq!((policy.next(8), policy.never()), (dead, dead));
    }

    #[test]
    fn flat_gives_nothing_up() {
        assert!(!Policy::flat().gives_up() && Policy::default().gives_up());
    }
}
