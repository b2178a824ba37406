//! The clock that ownership is measured by, and rights that end on it.
//!
//! It counts the time a machine is suspended, and nobody sets it. Where a machine is stopped in a way that it does not
//! count, a paused virtual machine say, the wall clock usually tells: it is set again after that, and has then run
//! ahead.

use std::{
    ops::Add,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A reading of this machine's monotonic clock, as time since some start of its own. Moments of two machines are never
/// compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(pub(crate) Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(CLOCK);
        // The clock starts at zero and only goes forward.
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Self(Duration::new(seconds, nanos))
    }

    /// How long ago `earlier` was; nothing when it was not earlier.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// At that very moment, however often it is waited for anew; never where there is none. Of the timer's clock, which may stand
/// still while a machine is suspended: no right is measured by it.
pub(crate) async fn at(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// At once, and then this often; where one comes late, the next is that long after it. Of the timer's clock, too.
pub(crate) fn every(span: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(span);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self(self.0 + length)
    }
}

/// Both clocks at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) now: Moment,
    /// The wall clock less the monotonic one, in milliseconds. That it grows is what matters, not what it is.
    pub(crate) ahead: i64,
}

impl Reading {
    pub(crate) fn take() -> Self {
        let now = Moment::now();
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Self {
            now,
            ahead: millis(wall) - millis(now.0),
        }
    }

    /// Whether the wall clock has run ahead by `by` since `earlier`. A step back is none of our business.
    pub(crate) fn ran_ahead(self, earlier: Self, by: Duration) -> bool {
        i128::from(self.ahead) - i128::from(earlier.ahead) >= by.as_millis() as i128
    }
}

/// Until when something may be done. Whoever is about to do it asks, each time: nobody has to be there to call it off.
#[derive(Clone, Debug)]
pub(crate) enum Term {
    Endless,
    Until(Moment),
    /// One that is extended or ended while others hold it.
    Shared(Arc<Lease>),
}

/// A term that is renewed.
#[derive(Debug)]
pub(crate) struct Lease {
    /// By how much the wall clock may run ahead before the other clock is not believed any more.
    slack: Duration,
    limit: Mutex<Option<Limit>>,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    until: Moment,
    renewed: Reading,
}

impl Term {
    pub(crate) fn holds(&self) -> bool {
        match self {
            Self::Endless => true,
            Self::Until(end) => Moment::now() < *end,
            Self::Shared(lease) => lease.holds(Reading::take()),
        }
    }
}

impl Lease {
    pub(crate) fn new(slack: Duration) -> Arc<Self> {
        Arc::new(Self {
            slack,
            limit: Mutex::default(),
        })
    }

    /// As of `renewed` it lasts until `until`.
    pub(crate) fn extend(&self, until: Moment, renewed: Reading) {
        *self.limit() = Some(Limit { until, renewed });
    }

    pub(crate) fn end(&self) {
        *self.limit() = None;
    }

    fn holds(&self, reading: Reading) -> bool {
        self.limit().is_some_and(|limit| {
            reading.now < limit.until && !reading.ran_ahead(limit.renewed, self.slack)
        })
    }

    /// Nothing that panics is called under the lock, so a poisoned one is as good as any.
    fn limit(&self) -> MutexGuard<'_, Option<Limit>> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_secs(2);

    fn at(seconds: u64, ahead: i64) -> Reading {
        Reading {
            now: Moment(Duration::from_secs(seconds)),
            ahead,
        }
    }

    #[test]
    fn a_lease_ends_by_itself_when_it_is_ended_and_when_the_clock_cannot_be_believed() {
        let lease = Lease::new(BEAT);
        assert!(!lease.holds(at(0, 0)), "before it began");
        lease.extend(Moment(Duration::from_secs(10)), at(6, 500));
        assert!(lease.holds(at(9, 500)));
        assert!(!lease.holds(at(10, 500)), "it is over");
        assert!(lease.holds(at(9, -60_000)), "the wall clock was set back");
        assert!(lease.holds(at(9, 2_499)));
        assert!(!lease.holds(at(9, 2_500)), "the wall clock ran ahead");
        lease.end();
        assert!(!lease.holds(at(9, 500)));
    }

    #[test]
    fn the_clock_goes_forward() {
        let before = Moment::now();
        assert!(Moment::now() >= before && before > Moment::default());
        assert!(Term::Until(before + BEAT).holds() && !Term::Until(before).holds());
    }
}
