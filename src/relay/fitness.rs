//! Whether this replica can do the work it has lanes for. Where it cannot, and another can, they are the other's.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::line::Lines;
use crate::sinks::amqp::Amqp;

pub(crate) struct Fitness {
    pub(crate) lines: Lines,
    pub(crate) sink: Amqp,
    pub(crate) beat: Duration,
    /// How long nothing may be marked while something waits for it.
    pub(crate) patience: Duration,
    pub(crate) fit: watch::Sender<bool>,
}

/// When both were seen to be well.
struct Well {
    sink: Instant,
    marks: Instant,
    marked: u64,
}

impl Fitness {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut look = tokio::time::interval(self.beat / 2);
        let now = Instant::now();
        let mut well = Well {
            sink: now,
            marks: now,
            marked: 0,
        };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            let fit = self.once(&mut well);
            self.fit
                .send_if_modified(|before| std::mem::replace(before, fit) != fit);
        }
    }

    /// Without a broker for two leases, or without a mark for too long, it is not. A broker that blocks is there.
    fn once(&self, well: &mut Well) -> bool {
        let now = Instant::now();
        if self.sink.is_up() {
            well.sink = now;
        }
        let marked = self.lines.marked_so_far();
        if marked != well.marked || self.lines.left().unmarked == 0 {
            (well.marked, well.marks) = (marked, now);
        }
        now - well.sink < self.beat * 6 && now - well.marks < self.patience
    }
}
