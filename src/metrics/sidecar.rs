//! What only the sidecar counts.

use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge};

use super::{OLDEST, REOPENED, TAILED, UNPUBLISHED};

/// The handles of what waits in one collection.
pub(crate) struct BacklogMeters {
    unpublished: Gauge,
    oldest: Gauge,
}

impl BacklogMeters {
    pub(crate) fn new(component: &str) -> Self {
        let of = [("component", component.to_owned())];
        Self {
            unpublished: gauge!(UNPUBLISHED, &of),
            oldest: gauge!(OLDEST, &of),
        }
    }

    /// How much waits, whoever has to publish it, and for how long its oldest row has been due.
    /// **The one to alert on is the age**: it grows whatever the fault is. Worry when it exceeds a minute.
    pub(crate) fn waits(&self, rows: u64, age: Duration) {
        self.unpublished.set(rows as f64);
        self.oldest.set(age);
    }
}

/// The handles of what the tail takes of one component.
pub(crate) struct TailMeters {
    rows: Counter,
}

impl TailMeters {
    pub(crate) fn new(component: &str) -> Self {
        Self {
            rows: counter!(TAILED, "component" => component.to_owned()),
        }
    }

    /// The tail took a row. Worry when it is zero while rows are published: then they wait for the pump.
    pub(crate) fn taken(&self) {
        self.rows.increment(1);
    }
}

/// The tail was opened again, for all components. Some, when MongoDB elects a primary; worry about more than one a
/// minute.
pub(crate) fn tail_reopened() {
    counter!(REOPENED).increment(1);
}
