//! What is known of the row that is next where it is not taken, and what becomes of it.

use super::{
    Ended,
    bisection::{Outcome, Then},
    delivery::Delivery,
    portion::Portion,
    went::Went,
};

/// If it has failed alone.
#[derive(Default)]
pub(super) struct Doubt {
    failures: u32,
    /// Why the last time.
    reason: String,
    /// How many of its labels were not tried then.
    untried: usize,
}

impl Delivery<'_> {
    /// What follows from how it went; what is to be given up, is.
    pub(super) fn told(&mut self, went: &Went, portion: &Portion) -> Then {
        let (first, rows, untried) = (portion.first, portion.rows, portion.untried);
        if first == 0 && matches!(went.outcome, Outcome::Failed | Outcome::Rejected) {
            self.doubt = Doubt {
                failures: self.bisection.failures() + 1,
                reason: went.reason.clone(),
                untried,
            };
        }
        let then = self.bisection.told(went.outcome, rows);
        if self.bisection.is_down() {
            self.of.batched.is_down();
        }
        if went.outcome != Outcome::Taken {
            // What is left of them is new no more.
            let tried = self.queue.iter_mut().skip(first).take(rows);
            tried.for_each(|piece| piece.new_until = None);
        }
        match then {
            Then::Park => {
                let doubt = std::mem::take(&mut self.doubt);
                self.park(0, &doubt.reason, doubt.failures, doubt.untried);
            }
            Then::ParkNeighbour => self.park(first, &went.reason, 1, untried),
            Then::Go | Then::Wait(_) => {}
        }
        then
    }

    fn park(&mut self, index: usize, reason: &str, attempts: u32, untried: usize) {
        if let Some(piece) = self.queue.get_mut(index) {
            piece.park(reason, attempts, untried);
        }
    }

    /// Goes on counting where the last owner ended.
    pub(super) fn recall(&mut self) {
        if let (true, Some(first)) = (std::mem::take(&mut self.is_fresh), self.queue.front()) {
            self.bisection.after(self.cursor.failures(&first.id));
        }
    }

    /// Keeps how often the first has failed alone, if it was counted.
    pub(super) async fn remember(&mut self, then: Then) -> Result<(), Ended> {
        let (times, first) = (self.bisection.failures(), self.queue.front());
        let Some(first) = first.filter(|_| self.of.policy.gives_up()) else {
            return Ok(());
        };
        if times == self.cursor.failures(&first.id) || !matches!(then, Then::Wait(_)) {
            return Ok(());
        }
        self.of.keep(self.cursor, &first.id, times).await
    }
}
