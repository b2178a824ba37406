//! Delivers what was read, in its order: a batch, its marks, the cursor, and then the next.
//!
//! The marks come before the cursor. The other way round a crash between them would leave rows owed that nobody delivers any
//! more; this way it repeats a batch.

use std::{collections::VecDeque, time::Duration};

use bson::Bson;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    Ended, Ordered,
    bisection::{Ask, Bisection, Outcome, Then},
    piece::Piece,
    source::{Read, age},
};
use crate::{
    clock::Term,
    metrics::Failure as Kind,
    sinks::{Circuit, Fault, Message, Verdict},
    store::cursors::{Cursor, Place},
};

/// How often the cursor is saved while nothing comes.
const SILENCE: Duration = Duration::from_secs(60);

/// For how long a destination may ask to be left alone.
const LEAST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(86_400);

/// How often it is looked whether the right has ended, which nobody tells where the clock ends it.
const LOOK: Duration = Duration::from_millis(250);

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
    /// How often the first has failed alone, and why the last time.
    pub(super) doubt: (u32, String),
}

/// How a batch went.
struct Went {
    outcome: Outcome,
    reason: String,
    pause: Option<Circuit>,
}

impl Went {
    fn taken() -> Self {
        Self {
            outcome: Outcome::Taken,
            reason: String::new(),
            pause: None,
        }
    }

    fn badly(outcome: Outcome, reason: String) -> Self {
        Self {
            outcome,
            reason,
            pause: None,
        }
    }
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
            self.once().await?;
        }
    }

    /// Waits for rows, if there are none; whether there are.
    async fn fill(&mut self) -> Result<bool, Ended> {
        while self.queue.is_empty() {
            let read = self.wait_for_row(None).await?;
            match read {
                Some(Read::Row(piece)) => self.queue.push_back(piece),
                Some(Read::Nothing(token)) => self.pass(token).await?,
                None => return Ok(false),
            }
        }
        self.more();
        self.gather().await?;
        Ok(true)
    }

    /// What is read by now, as much as a batch takes and one more.
    fn more(&mut self) {
        while self.queue.len() <= self.of.order.batch {
            let Ok(read) = self.reads.try_recv() else {
                return;
            };
            self.add(read);
        }
    }

    fn add(&mut self, read: Read) {
        match (read, self.queue.back_mut()) {
            (Read::Row(piece), _) => self.queue.push_back(piece),
            // With the last of them it is passed.
            (Read::Nothing(token), Some(last)) => {
                let row = Some(last.id.clone());
                last.place = Place::Token(row, token);
            }
            (Read::Nothing(token), None) => self.passed = Some(token),
        }
    }

    /// Waits for a batch to become full, if there is a time from one to the next.
    async fn gather(&mut self) -> Result<(), Ended> {
        let next = self.began.map(|began| began + self.of.order.every);
        let Some(next) = next.filter(|_| !self.of.order.every.is_zero()) else {
            return Ok(());
        };
        while self.queue.len() < self.of.order.batch && Instant::now() < next {
            match self.wait_for_row(Some(next)).await? {
                Some(read) => self.add(read),
                None => break,
            }
        }
        Ok(())
    }

    /// The next that is read; none at the end of all, or when the time has come.
    async fn wait_for_row(&mut self, until: Option<Instant>) -> Result<Option<Read>, Ended> {
        loop {
            let look = Instant::now() + LOOK;
            let next = until.map_or(look, |until| until.min(look));
            tokio::select! {
                () = self.stop.cancelled() => return Err(Ended::Over),
                read = timeout_at(next, self.reads.recv()) => match read {
                    Ok(read) => return Ok(read),
                    Err(_) if until == Some(next) => return Ok(None),
                    Err(_) if !self.of.is_owner(self.term) => return Err(Ended::Over),
                    Err(_) => {}
                }
            }
        }
    }

    /// Nothing came up to this place: saved now and then, so that a silent stream keeps its history.
    async fn pass(&mut self, token: Bson) -> Result<(), Ended> {
        self.passed = Some(token);
        self.of.behind(None);
        if self.saved.elapsed() < SILENCE {
            return Ok(());
        }
        let Some(token) = self.passed.take() else {
            return Ok(());
        };
        let _flying = self.of.flight.begin();
        self.save(&Place::Token(None, token)).await
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
        // Begun before the right is asked for, so that whoever ends it sees what is on its way.
        let flying = self.of.flight.begin();
        self.began = Some(Instant::now());
        let went = match asked {
            0 => Went::badly(Outcome::None, "it has no neighbour".into()),
            rows => self.deliver(first, rows).await?,
        };
        if first == 0 && matches!(went.outcome, Outcome::Failed | Outcome::Rejected) {
            self.doubt = (self.bisection.failures() + 1, went.reason.clone());
        }
        let then = self.bisection.told(went.outcome, asked);
        match then {
            Then::Park => self.park(0),
            Then::ParkNeighbour => {
                self.doubt = (1, went.reason.clone());
                self.park(first);
            }
            Then::Go | Then::Wait(_) => {}
        }
        self.settle().await?;
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

    /// Delivers so many rows from one on.
    async fn deliver(&mut self, first: usize, rows: usize) -> Result<Went, Ended> {
        let attempt = self.bisection.failures().saturating_add(1);
        let pieces = self.queue.iter().skip(first).take(rows);
        let messages: Vec<Message> = pieces
            .flat_map(|piece| &piece.todo)
            .map(|(_, message)| Message {
                attempt,
                ..message.clone()
            })
            .collect();
        if messages.is_empty() {
            return Ok(Went::taken());
        }
        let cuts = self.of.batched.cuts();
        if !self.of.is_owner(self.term) {
            return Err(Ended::Over);
        }
        if attempt > 1 {
            self.of.meters.retried();
        }
        let _flying = self.of.meters.flying();
        let delivered = self.of.batched.deliver_all(&messages, cuts).await;
        Ok(match delivered {
            Ok(verdicts) => self.take(first, rows, verdicts),
            Err(Fault::Cut) => return Err(Ended::Over),
            Err(Fault::Failed(reason)) => self.failed(first, rows, Outcome::Failed, reason),
            Err(Fault::Rejected(reason)) => self.failed(first, rows, Outcome::Rejected, reason),
            Err(Fault::Unreachable(reason)) => self.failed(first, rows, Outcome::Away, reason),
        })
    }

    fn failed(&self, first: usize, rows: usize, outcome: Outcome, reason: String) -> Went {
        let kind = match outcome {
            Outcome::Rejected => Kind::Refused,
            _ => Kind::Unavailable,
        };
        for piece in self.queue.iter().skip(first).take(rows) {
            let routes = piece.todo.iter().map(|(route, _)| *route);
            routes.for_each(|route| self.of.meters.failed(route, kind));
        }
        Went::badly(outcome, reason)
    }

    /// What of it is taken is not delivered again, whatever became of the rest.
    fn take(&mut self, first: usize, rows: usize, verdicts: Vec<Verdict>) -> Went {
        let mut went = Went::taken();
        let is_taken =
            |verdict: &Verdict| matches!(verdict, Verdict::Accepted | Verdict::Duplicate);
        let is_rejected = rows == 1 && !verdicts.iter().any(is_taken);
        let mut verdicts = verdicts.into_iter();
        let gives_up = self.of.policy.gives_up();
        for piece in self.queue.iter_mut().skip(first).take(rows) {
            let todo = std::mem::take(&mut piece.todo);
            for ((route, message), verdict) in todo.into_iter().zip(verdicts.by_ref()) {
                let badly = match verdict {
                    Verdict::Accepted | Verdict::Duplicate => {
                        self.of.meters.published(route, age(piece.made));
                        continue;
                    }
                    Verdict::Rejected(reason) => {
                        self.of.meters.failed(route, Kind::Refused);
                        if gives_up {
                            piece.dead.push((route, reason.clone()));
                            if is_rejected {
                                went = worse(went, Went::badly(Outcome::Rejected, reason));
                            }
                            continue;
                        }
                        Went::badly(Outcome::Failed, reason)
                    }
                    Verdict::Retry { reason, after } => {
                        self.of.meters.failed(route, Kind::Unavailable);
                        let outcome = after.map_or(Outcome::Failed, |after| {
                            Outcome::Asked(after.clamp(LEAST_REST, LONGEST_REST))
                        });
                        Went::badly(outcome, reason)
                    }
                    Verdict::Paused {
                        reason,
                        circuit,
                        after,
                    } => Went {
                        pause: Some(Circuit::new(circuit, reason.clone(), after)),
                        ..Went::badly(Outcome::Asked(Duration::ZERO), reason)
                    },
                };
                piece.todo.push((route, message));
                went = worse(went, badly);
            }
        }
        if went.outcome == Outcome::Failed && rows > 1 {
            went.outcome = Outcome::Stopped;
        }
        went
    }

    fn park(&mut self, index: usize) {
        let (attempts, reason) = &self.doubt;
        if let Some(piece) = self.queue.get_mut(index) {
            piece.park(reason, *attempts);
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

    async fn save(&mut self, place: &Place) -> Result<(), Ended> {
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

    /// Waits until the sink is not paused.
    async fn resumed(&mut self) -> Result<(), Ended> {
        let batched = self.of.batched.clone();
        self.of
            .owned_until(self.term, self.stop, batched.runs())
            .await
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
