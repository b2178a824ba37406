//! Whether this replica can do the work it has lanes for. Where it cannot, and another can, they are the other's.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::line::Lines;
use crate::{sinks::Outlet, slots::Unfit};

pub(crate) struct Fitness {
    pub(crate) lines: Lines,
    pub(crate) sinks: Arc<[Outlet]>,
    pub(crate) beat: Duration,
    /// How long nothing may be marked while something waits for it.
    pub(crate) patience: Duration,
    pub(crate) unfit: watch::Sender<Unfit>,
}

/// When all was seen to be well.
struct Well {
    /// Each sink by itself.
    sinks: Vec<Instant>,
    marks: Instant,
    marked: u64,
}

impl Fitness {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut look = tokio::time::interval(self.beat / 2);
        let now = Instant::now();
        let mut well = Well {
            sinks: vec![now; self.sinks.len()],
            marks: now,
            marked: 0,
        };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            let unfit = self.once(&mut well);
            self.unfit
                .send_if_modified(|before| std::mem::replace(before, unfit.clone()) != unfit);
        }
    }

    /// The sinks it can do nothing for: without a broker for two leases, or without a mark for too long. A broker that
    /// blocks is there.
    fn once(&self, well: &mut Well) -> Unfit {
        let now = Instant::now();
        for (sink, seen) in self.sinks.iter().zip(&mut well.sinks) {
            if sink.is_there() {
                *seen = now;
            }
        }
        let marked = self.lines.marked_so_far();
        if marked != well.marked || self.lines.left().unmarked == 0 {
            (well.marked, well.marks) = (marked, now);
        }
        let marks = now - well.marks < self.patience;
        let is_unfit = |seen: Instant| !marks || now - seen >= self.beat * 6;
        let sinks = self.sinks.iter().zip(&well.sinks);
        let unfit = sinks.filter(|(_, seen)| is_unfit(**seen));
        Arc::new(unfit.map(|(sink, _)| sink.name().into()).collect())
    }
}
