//! What is counted, and when to worry. Only this file names a metric. What reads them is the application's to install
//! before it opens an outbox: the handles are made then, and those made without a recorder count nothing for ever.
//!
//! Labels are bounded: `component`, `sink` and `label` by what is declared, `kind` by [`Failure`]. Handles are made once a
//! component and sink, since looking one up by name costs more than all else that is done here for a row.

mod debt;
#[cfg(feature = "sidecar")]
pub(crate) mod prometheus;
mod sidecar;

use std::{sync::Arc, time::Duration, time::Instant};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

pub(crate) use debt::DebtMeters;
pub(crate) use sidecar::{BacklogMeters, TailMeters, tail_reopened};

/// Why a message of a row is still owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection, the channel or the right to the lane ended under it; the message is as good as any.
    Interrupted,
    /// The exchange is missing or of another type, or no answer came.
    Unavailable,
    /// A queue refused it, no queue took it, or it is too large.
    Refused,
    /// The label could not be rendered.
    Unrendered,
}

const KINDS: [(Failure, &str); 4] = [
    (Failure::Interrupted, "interrupted"),
    (Failure::Unavailable, "unavailable"),
    (Failure::Refused, "refused"),
    (Failure::Unrendered, "unrendered"),
];

/// The handles of one component and one sink.
#[derive(Clone)]
pub(crate) struct Meters(Arc<Handles>);

struct Handles {
    labels: Vec<Option<OfLabel>>,
    avoided: Counter,
    marked: Counter,
    malformed: Counter,
    in_flight: Gauge,
    cycle: Histogram,
    commit_to_confirm: Histogram,
    unassigned: Counter,
    lanes: Gauge,
    retried: Counter,
    died: Counter,
}

struct OfLabel {
    published: Counter,
    /// In the order of [`KINDS`].
    failed: [Counter; 4],
}

impl Meters {
    /// Those of what `component` owes `sink`, with these labels, in the order in which they are numbered here; none where the
    /// number is that of another sink's.
    pub(crate) fn new<'a>(
        component: &str,
        sink: &str,
        labels: impl Iterator<Item = Option<&'a str>>,
    ) -> Self {
        let of = [
            ("component", component.to_owned()),
            ("sink", sink.to_owned()),
        ];
        Self(Arc::new(Handles {
            labels: labels
                .map(|label| Some(OfLabel::new(&of, label?)))
                .collect(),
            avoided: counter!(AVOIDED, &of),
            marked: counter!(MARKED, &of),
            malformed: counter!(MALFORMED, &of),
            in_flight: gauge!(IN_FLIGHT, &of),
            cycle: histogram!(CYCLE, &of),
            commit_to_confirm: histogram!(COMMIT_TO_CONFIRM, &of),
            unassigned: counter!(UNASSIGNED, &of),
            lanes: gauge!(LANES, &of),
            retried: counter!(RETRIED, &of),
            died: counter!(DIED, &of),
        }))
    }

    /// A message of the label with this number was confirmed, and how long after its row was made, by the clocks
    /// of its writer and of this machine; none if the id does not tell. The age of an ObjectId is in whole seconds.
    /// Worry when it is zero while there is a backlog.
    pub(crate) fn published(&self, label: usize, age: Option<i64>) {
        if let Some(Some(of)) = self.0.labels.get(label) {
            of.published.increment(1);
        }
        // A writer whose clock is ahead would otherwise take seconds off the sum.
        if let Some(age) = age {
            let age = Duration::from_millis(age.try_into().unwrap_or(0));
            self.0.commit_to_confirm.record(age);
        }
    }

    /// A message was not sent, and will be tried again. Some of [`Failure::Interrupted`], when the broker restarts;
    /// worry about any other.
    pub(crate) fn failed(&self, label: usize, failure: Failure) {
        let of = self.0.labels.get(label).and_then(Option::as_ref);
        if let Some(counter) = of.and_then(|of| of.failed.get(failure as usize)) {
            counter.increment(1);
        }
    }

    /// The tail or the pump met a row that this process is at already, and left it alone. Usual; worry when it is as
    /// much as is published for long: then the interval is too short for the load.
    pub(crate) fn avoided(&self) {
        self.0.avoided.increment(1);
    }

    /// Rows owe the sink nothing any more, and say so. Worry when it stays behind what is published: then each is sent again
    /// after a restart.
    pub(crate) fn marked(&self, rows: usize) {
        self.0.marked.increment(rows as u64);
    }

    /// A row was read that no pump can publish; again each time it is read. Worry about any: it is never published.
    pub(crate) fn malformed(&self) {
        self.0.malformed.increment(1);
    }

    /// A row is on its way until what is returned is dropped. Worry when it stays at `TOA_OUTBOX_INFLIGHT`.
    pub(crate) fn flying(&self) -> Flying {
        self.0.in_flight.increment(1);
        Flying(self.0.in_flight.clone())
    }

    /// A cycle lasts until what is returned is dropped. Worry when most take longer than the interval: then the
    /// backlog is larger than what a cycle carries off.
    pub(crate) fn cycle(&self) -> Timed {
        Timed(self.0.cycle.clone(), Instant::now())
    }

    /// A cycle that read nothing, because this replica owned no lane. Some, at a start or while members come and
    /// go; worry where every replica of a component counts them for more than a minute: then nobody pumps.
    pub(crate) fn unassigned(&self) {
        self.0.unassigned.increment(1);
    }

    /// A message that failed for itself is tried again. Worry when it is a good part of what is published for long.
    pub(crate) fn retried(&self) {
        self.0.retried.increment(1);
    }

    /// A message was given up, and is kept as a dead delivery. Worry about any.
    pub(crate) fn died(&self) {
        self.0.died.increment(1);
    }

    /// How many lanes this replica owns. Worry when the sum over all replicas is not 128 for more than a minute.
    pub(crate) fn lanes(&self, owned: usize) {
        self.0.lanes.set(owned as f64);
    }
}

impl OfLabel {
    fn new(of: &[(&'static str, String)], label: &str) -> Self {
        let of =
            |more: &[(&'static str, String)]| [of, &[("label", label.to_owned())], more].concat();
        Self {
            published: counter!(PUBLISHED, &of(&[])),
            failed: KINDS.map(|(_, kind)| counter!(FAILED, &of(&[("kind", kind.to_owned())]))),
        }
    }
}

/// See [`Meters::flying`].
pub(crate) struct Flying(Gauge);

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

/// Recorded when it is dropped.
pub(crate) struct Timed(Histogram, Instant);

impl Drop for Timed {
    fn drop(&mut self) {
        self.0.record(self.1.elapsed());
    }
}

/// The handles of a connection to the broker.
#[derive(Clone)]
pub(crate) struct LinkMeters {
    connected: Gauge,
    blocked: Gauge,
    publish: Histogram,
}

impl LinkMeters {
    pub(crate) fn new() -> Self {
        Self {
            connected: gauge!(CONNECTED),
            blocked: gauge!(BLOCKED),
            publish: histogram!(PUBLISH),
        }
    }

    /// Connections came (1) or went (-1), and likewise those that are blocked. Worry when none is there, or one is
    /// blocked, for longer than a restart of the broker takes.
    pub(crate) fn link(&self, connected: i8, blocked: i8) {
        self.connected.increment(connected);
        self.blocked.increment(blocked);
    }

    /// The broker took a message this long after it was handed over. Worry when it grows: the broker, its disk or the
    /// network is slow.
    pub(crate) fn taken(&self, after: Duration) {
        self.publish.record(after);
    }
}

/// How many members a group has, this one included. Worry when it is not the number of replicas that run.
pub(crate) fn members(group: &str, members: usize) {
    gauge!(MEMBERS, "group" => group.to_owned()).set(members as f64);
}

/// How old the row is that an ordered sink is at, by the clocks of its writer and of its owner; nothing once it has all. Worry
/// when it grows: the sink is too slow, or does not take what is next.
pub(crate) fn behind(component: &str, sink: &str, by: Duration) {
    let of = [
        ("component", component.to_owned()),
        ("sink", sink.to_owned()),
    ];
    gauge!(BEHIND, &of).set(by.as_secs_f64());
}

const UNPUBLISHED: &str = "toa_outbox_unpublished_rows";
const OLDEST: &str = "toa_outbox_oldest_unpublished_seconds";
const PUBLISHED: &str = "toa_outbox_published_total";
const FAILED: &str = "toa_outbox_failed_total";
const AVOIDED: &str = "toa_outbox_duplicates_avoided_total";
const MARKED: &str = "toa_outbox_marked_total";
const MALFORMED: &str = "toa_outbox_malformed_rows_total";
const IN_FLIGHT: &str = "toa_outbox_in_flight_rows";
const CYCLE: &str = "toa_outbox_cycle_duration_seconds";
const PUBLISH: &str = "toa_outbox_publish_latency_seconds";
const COMMIT_TO_CONFIRM: &str = "toa_outbox_commit_to_confirm_seconds";
const UNASSIGNED: &str = "toa_outbox_unassigned_cycles_total";
const LANES: &str = "toa_outbox_owned_lanes";
const RETRIED: &str = "toa_outbox_retried_total";
const DIED: &str = "toa_outbox_dead_total";
const BEHIND: &str = "toa_outbox_cursor_lag_seconds";
const OWED: &str = "toa_outbox_sink_owed_rows";
const PINNED: &str = "toa_outbox_sink_oldest_owed_seconds";
const RETRYING: &str = "toa_outbox_sink_retrying_deliveries";
const DEAD: &str = "toa_outbox_sink_dead_deliveries";
const PAUSED: &str = "toa_outbox_sink_paused";
const UNSERVED: &str = "toa_outbox_sink_unserved";
const MEMBERS: &str = "toa_outbox_members";
const TAILED: &str = "toa_outbox_tail_rows_total";
const REOPENED: &str = "toa_outbox_tail_reopenings_total";
const CONNECTED: &str = "toa_outbox_connected";
const BLOCKED: &str = "toa_outbox_blocked";
