//! What the host is told it owns, derived anew from everything known at every step.

use super::assignment::{Assignment, Output, Ownership, Reason};
use super::document::Document;
use super::hold::Hold;
use super::{Entry, Place, Protocol};
use crate::clock::Moment;

impl Protocol {
    pub(super) fn tell(&mut self) {
        let assignment = self.assign();
        if assignment != self.told {
            self.told = assignment.clone();
            self.outputs.push(Output::Assigned(assignment));
        }
    }

    fn assign(&self) -> Assignment {
        let member = match &self.place {
            _ if self.leaving => return Assignment::None(Reason::Left),
            Place::Gone => return Assignment::None(Reason::Left),
            Place::Outside(Entry::StandBy { protocol, .. }) => {
                return Assignment::None(Reason::Foreign(*protocol));
            }
            Place::Outside(_) => return Assignment::None(Reason::Joining),
            Place::Member(member) => member,
        };
        let Some(known) = &member.known else {
            return Assignment::None(Reason::Joining);
        };
        let (Some(until), Some(cut)) = (self.stop_at(), self.cut_at()) else {
            return Assignment::None(if member.waiting() {
                Reason::Waiting
            } else {
                Reason::Lapsed
            });
        };
        if let Some(epoch) = member.granted() {
            return match &self.hold {
                Hold::Lanes(held) if held == epoch && self.now < until => {
                    self.slots(known, &member.id, until, cut)
                }
                Hold::Lanes(held) if held == epoch => Assignment::None(Reason::Lapsed),
                Hold::Lanes(_) | Hold::LettingGo { .. } | Hold::Nothing => {
                    Assignment::None(Reason::StandingDown)
                }
            };
        }
        Assignment::None(if member.waiting() {
            Reason::Waiting
        } else {
            Reason::Unsettled
        })
    }

    /// Routes the document lists for us but the host no longer serves are nobody's until the next epoch.
    fn slots(&self, known: &Document, id: &str, until: Moment, cut: Moment) -> Assignment {
        let slots = known.slots(id, &self.routes);
        if slots.is_empty() {
            return Assignment::None(Reason::Spare);
        }
        Assignment::Own(Ownership {
            epoch: known.epoch.clone(),
            slots: slots.into(),
            until,
            cut,
        })
    }
}
