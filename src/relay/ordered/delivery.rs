//! Delivers what was read, in its order: a batch, its marks, the cursor, and then the next.
//!
//! The marks come before the cursor. The other way round a crash between them would leave rows owed that nobody delivers any
//! more; this way it repeats a batch.

use std::{collections::VecDeque, time::Duration};

use bson::Bson;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Ended, Ordered,
    bisection::{Ask, Bisection, Outcome, Then},
    piece::Piece,
    portion::Portion,
    source::{Read, age},
    went::Went,
};
use crate::{
    clock::Term,
    sinks::{Fault, Verdict},
    store::cursors::{Cursor, Place},
};

pub(super) struct Delivery<'a> {
    pub(super) of: &'a mut Ordered,
    pub(super) cursor: &'a mut Cursor,
    pub(super) term: &'a Term,
    pub(super) stop: &'a CancellationToken,
    pub(super) reads: mpsc::Receiver<Read>,
    pub(super) queue: VecDeque<Piece>,
    pub(super) bisection: Bisection,
    /// Where the stream is after everything that was delivered.
    pub(super) passed: Option<Bson>,
    pub(super) saved: Instant,
    /// When the last batch began.
    pub(super) began: Option<Instant>,
    pub(super) doubt: Doubt,
    /// Whether nothing was delivered yet.
    pub(super) is_fresh: bool,
}

/// What is known of the first if it has failed alone.
#[derive(Default)]
pub(super) struct Doubt {
    failures: u32,
    /// Why the last time.
    reason: String,
    /// How many of its labels were not tried then.
    untried: usize,
}

/// What became of a batch.
enum Sent {
    Went(Went),
    /// It may not leave before then.
    Later(Instant),
}

impl Delivery<'_> {
    /// Until all that there is has been delivered, or this replica is to stop.
    pub(super) async fn run(mut self) -> Result<(), Ended> {
        loop {
            if self.stop.is_cancelled() || !self.of.is_owner(self.term) {
                return Err(Ended::Over);
            }
            if !self.fill().await? {
                return Ok(());
            }
            // Wherever it was asked for.
            self.resumed().await?;
            self.recall();
            self.once().await?;
        }
    }

    /// One batch, and what follows from how it went.
    async fn once(&mut self) -> Result<(), Ended> {
        let (asked, first) = match self.bisection.ask() {
            Ask::First(size) => (self.front(size)?, 0),
            Ask::Neighbour => match self.neighbour() {
                Some(index) => (1, index),
                None => (0, 0),
            },
        };
        let portion = self.portion(first, asked);
        // Begun before the right is asked for, so that whoever ends it sees what is on its way.
        let flying = self.of.flight.begin();
        let began = Instant::now();
        let sent = match asked {
            0 => Sent::Went(Went::badly(Outcome::None, "it has no neighbour".into())),
            _ => self.deliver(&portion).await?,
        };
        let went = match sent {
            Sent::Went(went) => went,
            Sent::Later(then) => {
                drop(flying);
                return self.room(then).await;
            }
        };
        let then = self.told(&went, &portion);
        match then {
            Then::Park => {
                let Doubt {
                    failures,
                    reason,
                    untried,
                } = std::mem::take(&mut self.doubt);
                self.park(0, &reason, failures, untried);
            }
            Then::ParkNeighbour => self.park(first, &went.reason, 1, portion.untried),
            Then::Go | Then::Wait(_) => {}
        }
        // One that was cut is as good as full.
        self.began = (portion.rows == asked).then_some(began);
        self.settle().await?;
        self.remember(then).await?;
        drop(flying);
        if let Some(circuit) = went.pause {
            self.of.batched.pause(circuit);
            return Ok(());
        }
        match then {
            Then::Wait(wait) => self.rest(wait, &went.reason).await,
            Then::Go | Then::Park | Then::ParkNeighbour => Ok(()),
        }
    }

    /// What follows from how it went.
    fn told(&mut self, went: &Went, portion: &Portion) -> Then {
        let Portion {
            first,
            rows,
            untried,
            ..
        } = *portion;
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
        then
    }

    /// Goes on counting where the last owner ended.
    fn recall(&mut self) {
        if let (true, Some(first)) = (std::mem::take(&mut self.is_fresh), self.queue.front()) {
            self.bisection.after(self.cursor.failures(&first.id));
        }
    }

    /// Keeps how often the first has failed alone, if it was counted.
    async fn remember(&mut self, then: Then) -> Result<(), Ended> {
        let (times, first) = (self.bisection.failures(), self.queue.front());
        let Some(first) = first.filter(|_| self.of.policy.gives_up()) else {
            return Ok(());
        };
        if times == self.cursor.failures(&first.id) || !matches!(then, Then::Wait(_)) {
            return Ok(());
        }
        self.of.keep(self.cursor, &first.id, times).await
    }

    /// How many rows from the first on can be delivered, up to `size`.
    fn front(&self, size: usize) -> Result<usize, Ended> {
        let free = self.queue.iter().take(size);
        let free = free.take_while(|piece| piece.blocked.is_none()).count();
        match (
            free,
            self.queue.front().and_then(|piece| piece.blocked.clone()),
        ) {
            (0, Some(reason)) => Err(Ended::Blocked(reason)),
            _ => Ok(free),
        }
    }

    /// The next after the first of which something is to be delivered.
    fn neighbour(&mut self) -> Option<usize> {
        self.more();
        let after = self.queue.iter().enumerate().skip(1);
        let mut after = after.take_while(|(_, piece)| piece.blocked.is_none());
        after
            .find(|(_, piece)| !piece.todo.is_empty())
            .map(|(index, _)| index)
    }

    async fn deliver(&mut self, portion: &Portion) -> Result<Sent, Ended> {
        let messages = &portion.messages;
        let Some(attempt) = messages.first().map(|message| message.attempt) else {
            return Ok(Sent::Went(Went::taken()));
        };
        let cuts = self.of.batched.cuts();
        if !self.of.is_owner(self.term) {
            return Err(Ended::Over);
        }
        let flying = self.of.meters.flying();
        let delivered = self.of.batched.deliver_all(messages, cuts).await;
        drop(flying);
        let went = match delivered {
            Ok(verdicts) => self.take(portion, verdicts),
            Err(Fault::Cut) => return Err(Ended::Over),
            Err(Fault::Later(then)) => return Ok(Sent::Later(then)),
            Err(Fault::Never(reason)) => self.take(portion, vec![Verdict::Rejected(reason)]),
            Err(Fault::Failed(reason)) => self.failed(portion, Outcome::Failed, reason),
            Err(Fault::Rejected(reason)) => self.failed(portion, Outcome::Rejected, reason),
            Err(Fault::Unreachable(reason)) => self.failed(portion, Outcome::Away, reason),
        };
        if attempt > 1 {
            self.of.meters.retried();
        }
        Ok(Sent::Went(went))
    }

    fn park(&mut self, index: usize, reason: &str, attempts: u32, untried: usize) {
        if let Some(piece) = self.queue.get_mut(index) {
            piece.park(reason, attempts, untried);
        }
    }

    /// Marks what is settled at the front, and moves the cursor past it.
    async fn settle(&mut self) -> Result<(), Ended> {
        let settled = self.queue.iter().take_while(|piece| piece.is_settled());
        let settled = settled.count();
        let Some(last) = settled.checked_sub(1).and_then(|last| self.queue.get(last)) else {
            return Ok(());
        };
        let place = last.place.clone();
        self.of.behind(age(last.made));
        let settled: Vec<Piece> = self.queue.drain(..settled).collect();
        self.of.mark(&settled, self.term).await?;
        self.passed = None;
        self.save(&place).await
    }

    pub(super) async fn save(&mut self, place: &Place) -> Result<(), Ended> {
        self.saved = Instant::now();
        self.of.save(self.cursor, place, self.term).await
    }

    /// Waits before the next attempt, or until this replica is to stop.
    async fn rest(&mut self, wait: Duration, reason: &str) -> Result<(), Ended> {
        let failures = self.bisection.failures();
        let first = self.queue.front();
        self.of.behind(first.and_then(|piece| age(piece.made)));
        let row = first.map(|piece| piece.id.to_string());
        self.of.say(reason, failures, row, wait);
        let until = Instant::now() + wait;
        self.of
            .owned_until(self.term, self.stop, tokio::time::sleep_until(until))
            .await
    }

    /// Waits until there is room for what is next, or until this replica is to stop.
    async fn room(&mut self, then: Instant) -> Result<(), Ended> {
        let first = self.queue.front();
        self.of.behind(first.and_then(|piece| age(piece.made)));
        self.of
            .owned_until(self.term, self.stop, tokio::time::sleep_until(then))
            .await
    }

    /// Waits until the sink is not paused.
    async fn resumed(&mut self) -> Result<(), Ended> {
        let batched = self.of.batched.clone();
        self.of
            .owned_until(self.term, self.stop, batched.runs())
            .await
    }
}
