//! How a batch went, by the answers for each of its messages.

use std::time::Duration;

use super::{bisection::Outcome, delivery::Delivery, portion::Portion, source::age};
use crate::{
    metrics::Failure as Kind,
    sinks::{Circuit, LEAST_REST, LONGEST_REST, Verdict},
};

/// How a batch went.
pub(super) struct Went {
    pub(super) outcome: Outcome,
    /// Why, in one line.
    pub(super) reason: String,
    /// The pause that the destination asked for.
    pub(super) pause: Option<Circuit>,
}

impl Went {
    pub(super) fn taken() -> Self {
        Self {
            outcome: Outcome::Taken,
            reason: String::new(),
            pause: None,
        }
    }

    pub(super) fn badly(outcome: Outcome, reason: String) -> Self {
        Self {
            outcome,
            reason,
            pause: None,
        }
    }
}

impl Went {
    /// Of one message that stays owed.
    fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Accepted | Verdict::Duplicate => Self::taken(),
            Verdict::Rejected(reason) => Self::badly(Outcome::Rejected, reason),
            Verdict::Retry { reason, after } => {
                let outcome = match after {
                    None => Outcome::Failed,
                    // It does not say for how long.
                    Some(Duration::ZERO) => Outcome::Away,
                    Some(after) => Outcome::Asked(after.clamp(LEAST_REST, LONGEST_REST)),
                };
                Self::badly(outcome, reason)
            }
            Verdict::Paused {
                reason,
                circuit,
                after,
            } => Self {
                pause: Some(Circuit::new(circuit, reason.clone(), after)),
                ..Self::badly(Outcome::Asked(Duration::ZERO), reason)
            },
        }
    }
}

impl Delivery<'_> {
    pub(super) fn failed(&mut self, portion: &Portion, outcome: Outcome, reason: String) -> Went {
        let kind = match outcome {
            Outcome::Rejected => Kind::Refused,
            _ => Kind::Unavailable,
        };
        let pieces = self.queue.iter().skip(portion.first).take(portion.rows);
        let todo = pieces.flat_map(|piece| &piece.todo);
        let routes = todo.map(|(route, _)| *route);
        let tried = routes.take(portion.messages.len());
        tried.for_each(|route| self.of.meters.failed(route, kind));
        Went::badly(outcome, reason)
    }

    /// What of it is taken is not delivered again, whatever became of the rest.
    pub(super) fn take(&mut self, portion: &Portion, verdicts: Vec<Verdict>) -> Went {
        let Portion { first, rows, .. } = *portion;
        let mut went = Went::taken();
        let is_taken =
            |verdict: &Verdict| matches!(verdict, Verdict::Accepted | Verdict::Duplicate);
        // In company the others show that the destination is there.
        let has_taken = verdicts.iter().any(is_taken);
        let is_lone = rows == 1 && !has_taken;
        let mut verdicts = verdicts.into_iter();
        let gives_up = self.of.policy.gives_up();
        for piece in self.queue.iter_mut().skip(first).take(rows) {
            let todo = std::mem::take(&mut piece.todo);
            for (route, message) in todo {
                // Of those of a row that did not go with the others there is none.
                let Some(verdict) = verdicts.next() else {
                    piece.todo.push((route, message));
                    continue;
                };
                match (verdict, gives_up) {
                    (Verdict::Accepted | Verdict::Duplicate, _) => {
                        self.of.meters.published(route, age(piece.made));
                    }
                    (Verdict::Rejected(reason), true) => {
                        self.of.meters.failed(route, Kind::Refused);
                        piece.dead.push((route, reason.clone()));
                        if is_lone {
                            went = worse(went, Went::badly(Outcome::Rejected, reason));
                        }
                    }
                    (verdict, _) => {
                        self.of.meters.failed(route, Kind::Unavailable);
                        piece.todo.push((route, message));
                        went = worse(went, Went::of(verdict));
                    }
                }
            }
        }
        // Nothing goes past it here, so that one to blame among them is found only in parts.
        let is_owed = matches!(went.outcome, Outcome::Failed | Outcome::Rejected);
        if is_owed && rows > 1 && has_taken {
            went.outcome = Outcome::Stopped;
        }
        went
    }
}

/// A pause before all, then what the destination asked for, and of failures the first.
fn worse(one: Went, other: Went) -> Went {
    let rank = |went: &Went| match went.outcome {
        _ if went.pause.is_some() => 4,
        Outcome::Asked(_) => 3,
        Outcome::Taken => 0,
        Outcome::Rejected => 1,
        _ => 2,
    };
    match rank(&other) > rank(&one) {
        true => other,
        false => one,
    }
}
