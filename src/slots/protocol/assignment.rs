//! What the host is told: what it may do, until when, and what it must stop.

use std::sync::Arc;

use super::document::{Epoch, Route};
use super::request::Request;
use crate::clock::Moment;
use crate::lane::Slot;

/// What the host owns, as of the step that said so. Before every hand-over the host asks `owns` with its clock: an
/// assignment that nobody took back still ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Assignment {
    Own(Ownership),
    None(Reason),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ownership {
    pub epoch: Epoch,
    /// Per route; a route this member does not serve, or is spare for, is not listed.
    pub slots: Arc<[(Route, Slot)]>,
    /// From here on nothing is started.
    pub until: Moment,
    /// From here on nothing is in flight.
    pub cut: Moment,
}

/// Why nothing is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Not a member, or not yet known to be one.
    Joining,
    /// The document is of another version.
    Foreign(u32),
    /// A creator that waits for whoever may own lanes by a document that is gone.
    Waiting,
    /// Some member has not stood down for the new epoch.
    Unsettled,
    /// The host has not stood down yet.
    StandingDown,
    /// No beat was acknowledged in time.
    Lapsed,
    /// Behind the first 128 members of every route it serves, or it serves none.
    Spare,
    /// Has left, or is about to.
    Left,
}

impl Assignment {
    #[cfg(test)]
    pub fn owns(&self, route: &str, lane: u8, now: Moment) -> bool {
        match self {
            Assignment::Own(own) => {
                now < own.until && own.slot(route).is_some_and(|slot| slot.owns(lane))
            }
            Assignment::None(_) => false,
        }
    }
}

impl Ownership {
    pub fn slot(&self, route: &str) -> Option<Slot> {
        self.slots
            .iter()
            .find(|(listed, _)| &**listed == route)
            .map(|(_, slot)| *slot)
    }
}

/// What a step asks of the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// At most one is without a reply at any time. `number` comes back with it.
    Send { number: u64, request: Request },
    /// Start nothing, finish what is in flight within the bound, mark, let go; then `Input::Drained` with `order`.
    StandDown { order: u64 },
    /// Cut what is in flight now, then `Input::Drained` with `order`. It may follow a `StandDown` of the same order.
    Cut { order: u64 },
    /// What is owned has changed, or is owned for longer.
    Assigned(Assignment),
}
