//! How much an ordered sink is given at a time, and what follows from how it went. It decides, and delivers nothing.
//!
//! A neighbour that is taken shows that the row was to blame. One that fails shows nothing: two rows next to each other that are
//! both to blame look like an outage, and hold up the sink until one of them is mended. Nobody can tell them apart, and a wait
//! is recoverable.
//!
//! Where nothing is given up there is no neighbour to tell: what fails twice in a row is taken for an outage, and so is a
//! destination that asks twice in a row to be left alone. That is for the [safety](crate::Safety) of what is given after it; nothing here
//! depends on it.
//!
//! How often the first has failed alone is kept with the cursor: the next owner begins [with that](Bisection::after), so that a row to blame is
//! found however often owners go. Of all else he knows nothing.
//!
//! ```text
//!   a batch ── failed ──► half of it ── ... ──► the first alone ── failed five times ──► its neighbour alone
//!      ▲                                             ▲                                     │         │
//!      └── twice as much ◄── taken                   └── the destination is down ◄── failed ┘         └ taken ──► the first is parked
//! ```

use std::time::Duration;

use crate::sinks::{Next, Order, Policy};

/// How often in a row something has to fail before the destination is thought to be down, where no neighbour tells.
const DOUBTS: u32 = 2;

pub(super) struct Bisection {
    order: Order,
    policy: Policy,
    /// How many rows are given at a time.
    size: usize,
    /// How often the first failed alone; where nothing is halved, how often it failed at all.
    failures: u32,
    /// How often in a row nobody was there.
    absences: u32,
    /// How often in a row it wanted to be left alone.
    refusals: u32,
    /// Whether the destination was found to be down the last time.
    is_down: bool,
    /// Whether the neighbour of the first is asked.
    doubts: bool,
}

/// What is to be delivered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Up to so many, from the first on.
    First(usize),
    /// The next after the first that there is, alone.
    Neighbour,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Taken,
    /// Some were, and the first that was not has failed beside others.
    Stopped,
    Failed,
    /// It will never be taken; of a batch, perhaps for the company of one.
    Rejected,
    /// Nobody was there.
    Away,
    /// The destination wants to be left alone for so long.
    Asked(Duration),
    /// There is no neighbour.
    None,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Go,
    Wait(Duration),
    /// The first is given up.
    Park,
    /// The neighbour is.
    ParkNeighbour,
}

impl Bisection {
    pub(super) fn new(order: Order, policy: Policy) -> Self {
        Self {
            size: order.batch,
            order,
            policy,
            failures: 0,
            absences: 0,
            refusals: 0,
            is_down: false,
            doubts: false,
        }
    }

    /// The same where the first has failed so often already.
    pub(super) fn after(&mut self, failures: u32) {
        self.failures = failures;
        if failures > 0 && self.order.halves {
            self.size = 1;
        }
    }

    pub(super) fn ask(&self) -> Ask {
        match self.doubts {
            true => Ask::Neighbour,
            false => Ask::First(self.size),
        }
    }

    /// How often what is asked for now has failed for itself.
    pub(super) fn failures(&self) -> u32 {
        match self.doubts {
            true => 0,
            false => self.failures,
        }
    }

    /// Whether the destination is down, by what was told last.
    pub(super) fn is_down(&self) -> bool {
        self.is_down
    }

    /// Of so many rows.
    pub(super) fn told(&mut self, outcome: Outcome, rows: usize) -> Then {
        if outcome != Outcome::Away {
            self.absences = 0;
        }
        self.refusals = match outcome {
            Outcome::Asked(_) => self.refusals.saturating_add(1),
            _ => 0,
        };
        self.is_down = outcome == Outcome::Away || self.refusals >= DOUBTS;
        match std::mem::take(&mut self.doubts) {
            true => self.neighbour(outcome),
            false => self.first(outcome, rows),
        }
    }

    fn first(&mut self, outcome: Outcome, rows: usize) -> Then {
        match outcome {
            Outcome::Taken | Outcome::None => {
                self.failures = 0;
                self.size = self.size.saturating_mul(2).min(self.order.batch);
                Then::Go
            }
            Outcome::Stopped if self.order.halves => {
                (self.failures, self.size) = (0, 1);
                Then::Go
            }
            Outcome::Failed | Outcome::Rejected if rows > 1 && self.order.halves => {
                self.size = rows / 2;
                Then::Go
            }
            Outcome::Rejected if self.policy.gives_up() => {
                self.failures = 0;
                Then::Park
            }
            Outcome::Stopped | Outcome::Failed | Outcome::Rejected => self.failed(outcome),
            Outcome::Away => self.away(),
            Outcome::Asked(wait) => Then::Wait(wait),
        }
    }

    /// Alone, or where nothing is halved.
    fn failed(&mut self, outcome: Outcome) -> Then {
        self.failures = self.failures.saturating_add(1);
        let nobody_tells = outcome == Outcome::Failed && !self.policy.gives_up();
        self.is_down |= nobody_tells && self.failures >= DOUBTS;
        match self.policy.next(self.failures) {
            Next::Again(wait) => Then::Wait(wait),
            Next::Dead(_) => {
                self.doubts = true;
                Then::Go
            }
        }
    }

    fn neighbour(&mut self, outcome: Outcome) -> Then {
        match outcome {
            Outcome::Taken => {
                self.failures = 0;
                Then::Park
            }
            // For itself, so it says nothing of the first; another may.
            Outcome::Rejected => {
                self.doubts = true;
                Then::ParkNeighbour
            }
            Outcome::Failed | Outcome::Stopped | Outcome::None => {
                self.is_down = outcome == Outcome::Failed;
                Then::Wait(self.policy.wait(self.failures))
            }
            Outcome::Away => self.away(),
            Outcome::Asked(wait) => Then::Wait(wait),
        }
    }

    /// No row is to blame.
    fn away(&mut self) -> Then {
        self.absences = self.absences.saturating_add(1);
        Then::Wait(self.policy.wait(self.absences))
    }
}

#[cfg(test)]
mod tests;
