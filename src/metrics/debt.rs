//! What is owed to each sink that is registered, whoever serves it.

use std::time::Duration;

use metrics::{Gauge, gauge};

use super::{DEAD, OWED, PAUSED, PINNED, RETRYING, UNSERVED};

/// The handles of one component and one sink. All replicas count the same.
pub(crate) struct DebtMeters {
    owed: Gauge,
    oldest: Gauge,
    retrying: Gauge,
    dead: Gauge,
    paused: Gauge,
    unserved: Gauge,
}

impl DebtMeters {
    pub(crate) fn new(component: &str, sink: &str) -> Self {
        let of = [
            ("component", component.to_owned()),
            ("sink", sink.to_owned()),
        ];
        Self {
            owed: gauge!(OWED, &of),
            oldest: gauge!(PINNED, &of),
            retrying: gauge!(RETRYING, &of),
            dead: gauge!(DEAD, &of),
            paused: gauge!(PAUSED, &of),
            unserved: gauge!(UNSERVED, &of),
        }
    }

    /// How many rows are kept for it, and for how long the oldest has been due. Worry when the age exceeds a minute: no row is reaped
    /// before its sinks have it.
    pub(crate) fn owed(&self, rows: u64, age: Duration) {
        self.owed.set(rows as f64);
        self.oldest.set(age);
    }

    /// How many deliveries are tried again, and how many were given up or abandoned. Worry about any that is dead.
    pub(crate) fn failed(&self, retrying: u64, dead: u64) {
        self.retrying.set(retrying as f64);
        self.dead.set(dead as f64);
    }

    /// Whether it is paused, and whether nobody serves it. Worry when either is 1 for longer than is meant.
    pub(crate) fn stands(&self, is_paused: bool, is_unserved: bool) {
        self.paused.set(f64::from(u8::from(is_paused)));
        self.unserved.set(f64::from(u8::from(is_unserved)));
    }

    /// It is registered no more.
    pub(crate) fn gone(&self) {
        self.owed(0, Duration::ZERO);
        self.failed(0, 0);
        self.stands(false, false);
    }
}
