//! Which replica pumps which lanes: the agreement of `slots.rs` as a pure state machine.
//!
//! Nothing here reads a clock or a socket. The host calls [`Protocol::step`] with the time on its own monotonic
//! clock and with what happened; out come requests to the store, orders to the host, and what it owns until when.

mod ask;
mod assignment;
mod document;
mod hold;
mod membership;
mod reply;
mod request;
mod tell;
mod timing;
mod watch;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use assignment::{Assignment, Output, Ownership, Reason};
pub use document::{Document, Epoch, Member, Name, PROTOCOL, Route, Routes};
pub use request::{Outcome, Request};
pub use timing::Timing;

use crate::clock::Moment;
use document::Names;
use hold::Hold;
use membership::Membership;

/// What happens to a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// What came of the request of this number. Any but the one awaited is ignored.
    Reply { number: u64, outcome: Outcome },
    /// A look at the document showed that something else than a beat changed, or it was the first.
    Hint,
    /// The host holds nothing any more: everything in flight was resolved or cut since this order was given.
    Drained { order: u64 },
    /// The host serves these routes from now on.
    Serve(Routes),
    /// The host's clock cannot be trusted over the last while (the wall clock ran ahead of it by a beat).
    Doubt,
    /// Let go of everything and leave the group.
    Leave,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Protocol {
    timing: Timing,
    names: Names,
    routes: Routes,
    now: Moment,
    place: Place,
    hold: Hold,
    /// Send of the last acknowledged beat or join: ownership is counted from here. It outlives the membership, so
    /// that what is still held of it is cut in time. A creation sets it too, to no effect: the wait is longer.
    alive: Option<Moment>,
    flight: Option<Flight>,
    leaving: bool,
    /// After a failure, nothing is sent before this.
    quiet: Moment,
    requests: u64,
    orders: u64,
    told: Assignment,
    outputs: Vec<Output>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Not in a document, and this is the next thing to try.
    Outside(Entry),
    Member(Membership),
    /// Has left for good.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Look,
    Create,
    Join,
    StandBy { protocol: u32, again: Moment },
}

/// The request without a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight {
    number: u64,
    sent: Moment,
    request: Request,
}

impl Protocol {
    /// `process` is a name drawn anew at every start. The first request comes from the first step.
    pub fn new(process: &str, routes: Routes, timing: Timing, now: Moment) -> Protocol {
        Protocol {
            timing,
            names: Names::new(process),
            routes,
            now,
            place: Place::Outside(Entry::Look),
            hold: Hold::Nothing,
            alive: None,
            flight: None,
            leaving: false,
            quiet: now,
            requests: 0,
            orders: 0,
            told: Assignment::None(Reason::Joining),
            outputs: Vec::new(),
        }
    }

    /// The only way in. Time first, then what came, then what follows from both.
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Output> {
        self.now = self.now.max(now);
        self.pass_time();
        let fresh = self.take(input);
        self.settle();
        self.ask(fresh);
        self.tell();
        std::mem::take(&mut self.outputs)
    }

    /// As it was last told to the host.
    #[cfg(test)]
    pub fn assignment(&self) -> &Assignment {
        &self.told
    }

    /// The document as last acknowledged, for whoever wants to report on the group.
    pub fn known(&self) -> Option<&Document> {
        match &self.place {
            Place::Member(member) => member.known.as_ref(),
            Place::Outside(_) | Place::Gone => None,
        }
    }

    /// The id it has in that document, or may have.
    pub fn me(&self) -> Option<&Name> {
        match &self.place {
            Place::Member(member) => Some(&member.id),
            Place::Outside(_) | Place::Gone => None,
        }
    }

    /// From when on nothing may be in flight of what the host holds; none where it holds nothing, or that has passed.
    pub fn holds_until(&self) -> Option<Moment> {
        match self.hold {
            Hold::Nothing => None,
            Hold::Lanes(_) | Hold::LettingGo { .. } => self.cut_at(),
        }
    }

    /// Nothing is owned, held or asked for ever again.
    pub fn gone(&self) -> bool {
        self.place == Place::Gone
    }

    /// When the next tick is needed, if nothing else comes before.
    pub fn next(&self) -> Moment {
        let asking = match (&self.flight, &self.place) {
            (Some(flight), _) => Some(flight.sent + self.timing.timeout),
            (None, Place::Outside(Entry::StandBy { again, .. })) => Some(*again),
            (None, Place::Outside(_)) => self.hold.is_nothing().then_some(self.quiet),
            (None, Place::Member(member)) => {
                Some(member.next(self.now, &self.timing).max(self.quiet))
            }
            (None, Place::Gone) => None,
        };
        let ends = [self.stop_at(), self.cut_at()]
            .into_iter()
            .flatten()
            .filter(|at| *at > self.now);
        ends.chain(asking)
            .min()
            .unwrap_or(self.now + self.timing.beat)
            .max(self.now + self.timing.pause / 16)
    }

    fn stop_at(&self) -> Option<Moment> {
        Some(self.alive? + self.timing.stop)
    }

    fn cut_at(&self) -> Option<Moment> {
        Some(self.alive? + self.timing.cut)
    }

    fn pass_time(&mut self) {
        if self
            .flight
            .as_ref()
            .is_some_and(|flight| self.now >= flight.sent + self.timing.timeout)
        {
            self.unanswered();
        }
        if self.cut_at().is_some_and(|at| self.now >= at) {
            self.lapse();
        }
    }

    /// Too long without an acknowledged beat: whatever is held is cut, and this epoch is not owned again.
    fn lapse(&mut self) {
        self.alive = None;
        if let Place::Member(member) = &mut self.place {
            member.lapsed = member.known.is_some();
        }
        self.let_go(true);
    }

    fn unanswered(&mut self) {
        self.flight = None;
        if let Place::Member(member) = &mut self.place {
            member.restless = true;
        }
    }
}
