//! Tells how the connection is, to whoever asks and to the metrics.

use std::time::Instant;

use tokio::sync::watch;

use crate::metrics::LinkMeters;

/// How the connection to the broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broker {
    /// It takes messages.
    Up,
    /// It is there and takes none for the moment; what is in flight waits.
    Blocked {
        /// What the broker said.
        reason: String,
    },
    /// There is none.
    Away {
        since: Instant,
        /// Why the last one ended, or why the last attempt failed. Without credentials.
        reason: String,
    },
}

impl Broker {
    /// Of one connection: how many are up, and how many are blocked.
    fn counts(&self) -> (i8, i8) {
        match self {
            Self::Up => (1, 0),
            Self::Blocked { .. } => (1, 1),
            Self::Away { .. } => (0, 0),
        }
    }
}

pub(super) struct Beacon {
    state: watch::Sender<Broker>,
    pub(super) meters: LinkMeters,
}

impl Beacon {
    pub(super) fn new() -> Self {
        let away = Broker::Away {
            since: Instant::now(),
            reason: "not connected yet".into(),
        };
        let meters = LinkMeters::new();
        // So that they are there before the first connection is.
        meters.link(0, 0);
        Self {
            state: watch::Sender::new(away),
            meters,
        }
    }

    #[cfg(feature = "sidecar")]
    pub(super) fn state(&self) -> watch::Receiver<Broker> {
        self.state.subscribe()
    }

    pub(super) fn up(&self) {
        self.show(|_| Broker::Up);
    }

    pub(super) fn blocked(&self, reason: &str) {
        let reason = reason.to_owned();
        self.show(|_| Broker::Blocked { reason });
    }

    /// Away since the first time it is said in a row.
    pub(super) fn away(&self, reason: String) {
        self.show(|before| Broker::Away {
            since: match before {
                Broker::Away { since, .. } => *since,
                Broker::Up | Broker::Blocked { .. } => Instant::now(),
            },
            reason,
        });
    }

    fn show(&self, after: impl FnOnce(&Broker) -> Broker) {
        self.state.send_modify(|state| {
            let after = after(state);
            let ((was_up, was_blocked), (up, blocked)) = (state.counts(), after.counts());
            self.meters.link(up - was_up, blocked - was_blocked);
            *state = after;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stays_away_is_away_since_it_went() {
        let beacon = Beacon::new();
        let state = beacon.state.subscribe();
        beacon.up();
        assert_eq!(*state.borrow(), Broker::Up);
        beacon.blocked("low on memory");
        beacon.away("it was killed".into());
        let gone = match &*state.borrow() {
            Broker::Away { since, reason } if reason == "it was killed" => *since,
            other => panic!("{other:?}"),
        };
        beacon.away("refused".into());
        let still = Broker::Away {
            since: gone,
            reason: "refused".into(),
        };
        assert_eq!(*state.borrow(), still);
    }
}
