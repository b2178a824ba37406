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
    doubt::Doubt,
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
        let (first, asked) = self.asked()?;
        let portion = self.portion(first, asked);
        // Begun before the right is asked for, so that whoever ends it sees what is on its way.
        let flying = self.of.flight.begin();
        let began = Instant::now();
        let went = match self.deliver(&portion).await? {
            Sent::Went(went) => went,
            Sent::Later(then) => {
                drop(flying);
                return self.room(then).await;
            }
        };
        let then = self.told(&went, &portion);
        // One that was cut is as good as full.
        self.began = (portion.rows == asked).then_some(began);
        self.settle().await?;
        self.remember(then).await?;
        drop(flying);
        match (went.pause, then) {
            (Some(circuit), _) => self.of.batched.pause(circuit),
            (None, Then::Wait(wait)) => self.rest(wait, &went.reason).await?,
            (None, Then::Go | Then::Park | Then::ParkNeighbour) => {}
        }
        Ok(())
    }

    /// From which row on is to be delivered, and how many; none where there is no neighbour.
    fn asked(&mut self) -> Result<(usize, usize), Ended> {
        Ok(match self.bisection.ask() {
            Ask::First(size) => (0, self.front(size)?),
            Ask::Neighbour => self.neighbour().map_or((0, 0), |index| (index, 1)),
        })
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
            let went = match portion.rows {
                0 => Went::badly(Outcome::None, "it has no neighbour".into()),
                _ => Went::taken(),
            };
            return Ok(Sent::Went(went));
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
        if then > Instant::now() {
            self.of.held_back();
        }
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
