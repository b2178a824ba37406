//! What the host may have in its hands: between the first hand-over in an epoch and the word that all of it is let go.

use super::document::Epoch;
use super::{Output, Place, Protocol};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Hold {
    /// Nothing, of any epoch. Only now may an epoch be acknowledged or a document joined.
    #[default]
    Nothing,
    /// Lanes of this epoch.
    Lanes(Epoch),
    /// It has been told to let go, and has not said that it has.
    LettingGo { order: u64, cut: bool },
}

impl Hold {
    pub fn is_nothing(&self) -> bool {
        *self == Hold::Nothing
    }

    /// Whether lanes of `epoch` may be handed out on top of what is held.
    pub fn admits(&self, epoch: &Epoch) -> bool {
        match self {
            Hold::Nothing => true,
            Hold::Lanes(held) => held == epoch,
            Hold::LettingGo { .. } => false,
        }
    }
}

impl Protocol {
    /// Compares what is held with what the document grants.
    pub(super) fn settle(&mut self) {
        match &self.place {
            Place::Member(member) if !self.leaving => {
                let Some(current) = member.known.as_ref().map(|known| &known.epoch) else {
                    return;
                };
                if matches!(&self.hold, Hold::Lanes(held) if held != current) {
                    self.let_go(false);
                } else if self.alive.is_some()
                    && member
                        .granted()
                        .is_some_and(|epoch| self.hold.admits(epoch))
                {
                    self.hold = Hold::Lanes(current.clone());
                }
            }
            Place::Member(_) | Place::Outside(_) | Place::Gone => self.let_go(false),
        }
    }

    pub(super) fn let_go(&mut self, at_once: bool) {
        let order = match self.hold {
            Hold::Nothing | Hold::LettingGo { cut: true, .. } => return,
            Hold::LettingGo { order, cut: false } if at_once => order,
            Hold::LettingGo { .. } => return,
            Hold::Lanes(_) => {
                self.orders += 1;
                self.orders
            }
        };
        self.hold = Hold::LettingGo {
            order,
            cut: at_once,
        };
        self.outputs.push(if at_once {
            Output::Cut { order }
        } else {
            Output::StandDown { order }
        });
    }
}
