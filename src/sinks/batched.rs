//! Gives a sink of the application's own what comes, many at once, and finds the one that fails.
//!
//! ```text
//!   deliver ──► queue ──► batch ──► Sink::deliver ──┬─ answered ──► next batch
//!   deliver ──►                         ▲           └─ failed
//!                                       │                │
//!                                    halves ◄────────────┴── alone: it is the one. Rest; what came with it goes later
//! ```
//!
//! Before that a batch is cut to what the sink takes at once, and to what may go of a backlog ([`pacing`]). Who keeps an order of
//! his own gives his batches beside the queue; they [take turns](turn) with those from it.
//!
//! One batch at a time, from one task: the order within a row is kept, and a sink that hangs holds up nobody else. A
//! message that fails is settled as owed and has to come again; it is not kept here.

mod pacing;
mod turn;

use std::{ops::Range, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    sync::{Mutex, mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::pacing::Pacing;
use super::{
    Answer, Cap, Kind, Message, Pace, Sink, Terms, Verdict,
    attempt::Fault,
    halt::{Circuit, Halt},
    safety::Safety,
};
use crate::{clock::at, config::Settings, label::BoxError, report::Reports};

/// The most messages of one batch.
const MOST: usize = 100;

/// How long a sink rests after it failed for the first time.
pub(crate) const LEAST_REST: Duration = Duration::from_millis(100);

/// The longest a sink may ask to be left alone.
pub(crate) const LONGEST_REST: Duration = Duration::from_secs(86_400);

/// What is said of a message that was not tried.
const HELD_BACK: &str = "held back, the sink takes nothing at the moment";

/// Any sink, whatever its type.
pub(crate) trait Erased: Send + Sync {
    fn deliver<'a>(&'a self, batch: &'a [Message])
    -> BoxFuture<'a, Result<Vec<Verdict>, BoxError>>;

    fn at_once(&self, batch: &[Message]) -> usize;

    fn safety(&self) -> Option<Safety>;
}

impl<S: Sink> Erased for S {
    fn deliver<'a>(
        &'a self,
        batch: &'a [Message],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, BoxError>> {
        Sink::deliver(self, batch).boxed()
    }

    fn at_once(&self, batch: &[Message]) -> usize {
        Sink::at_once(self, batch)
    }

    fn safety(&self) -> Option<Safety> {
        Sink::safety(self)
    }
}

/// A handle to a sink of the application's own, whose loop runs for as long as one exists.
#[derive(Clone)]
pub(crate) struct Batched {
    shared: Arc<Shared>,
    queue: mpsc::UnboundedSender<Queued>,
    _last: Arc<DropGuard>,
}

struct Shared {
    name: Arc<str>,
    sink: Box<dyn Erased>,
    /// Whose batch it is: one at a time.
    turn: Mutex<()>,
    /// Of all that it is given, by whomever.
    pacing: std::sync::Mutex<Pacing>,
    cap: Cap,
    /// What it takes, besides a pause that it has not seen yet.
    open: watch::Sender<Open>,
    halt: Halt,
    /// How often what was under way was cut.
    cuts: watch::Sender<u64>,
    terms: Terms,
    timeout: Duration,
}

/// To what a sink is open at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// It rests, or is paused.
    Nothing,
    /// There is no room for a backlog.
    New,
    All,
}

struct Queued {
    message: Message,
    answer: oneshot::Sender<Answer>,
    /// How many cuts there were when it came: with the next it may not leave any more.
    cuts: u64,
}

impl Batched {
    /// The handle and its loop.
    pub(crate) fn new(
        name: &str,
        sink: Box<dyn Erased>,
        terms: Terms,
        settings: &Settings,
    ) -> (Self, BoxFuture<'static, ()>) {
        let shared = Arc::new(Shared {
            name: name.into(),
            sink,
            turn: Mutex::default(),
            pacing: std::sync::Mutex::new(Pacing::new(terms.safety)),
            cap: Cap::new(settings.inflight),
            open: watch::Sender::new(Open::All),
            halt: Halt::new(),
            cuts: watch::Sender::new(0),
            timeout: terms.timeout.unwrap_or(settings.sink_timeout),
            terms,
        });
        let (queue, inbox) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let feeding = Feeding {
            shared: shared.clone(),
            inbox,
            longest: settings.interval.max(LEAST_REST),
            until: None,
            failures: 0,
            reports: Reports::default(),
        };
        let batched = Self {
            shared,
            queue,
            _last: Arc::new(stop.clone().drop_guard()),
        };
        let until_unused = async move {
            // None where the last handle was dropped.
            let _ = stop.run_until_cancelled(feeding.run()).await;
        };
        (batched, until_unused.boxed())
    }

    pub(crate) fn name(&self) -> &str {
        &self.shared.name
    }

    pub(crate) fn is_up(&self) -> bool {
        *self.shared.open.borrow() != Open::Nothing && self.shared.halt.runs()
    }

    /// Whether it takes messages that are not new, too.
    pub(super) fn takes_backlog(&self) -> bool {
        *self.shared.open.borrow() == Open::All && self.shared.halt.runs()
    }

    /// What it is given, and what becomes of what it does not take.
    pub(crate) fn terms(&self) -> &Terms {
        &self.shared.terms
    }

    /// How long it may take for a batch.
    pub(super) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// A pause that its destination asked for and that nobody knows of but this process.
    pub(crate) fn asked(&self) -> Option<Circuit> {
        self.shared.halt.asked()
    }

    /// Waits until there is one. Cancel safe.
    pub(crate) async fn asks(&self) {
        self.shared.halt.watch().asked().await;
    }

    /// Whether it is paused, as the replicas have it.
    pub(crate) fn paused(&self, is_paused: bool) {
        self.shared.halt.is(is_paused);
    }

    /// What it takes, told when that changes.
    pub(super) fn open(&self) -> watch::Receiver<Open> {
        self.shared.open.subscribe()
    }

    pub(crate) async fn up(&self) {
        // The sender lives as long as this handle.
        let is_up = |open: &Open| *open != Open::Nothing;
        let _ = self.open().wait_for(is_up).await;
    }

    pub(crate) fn cap(&self) -> &Cap {
        &self.shared.cap
    }

    pub(crate) async fn deliver(&self, message: Message) -> Answer {
        let (answer, answered) = oneshot::channel();
        let queued = Queued {
            message,
            answer,
            cuts: *self.shared.cuts.borrow(),
        };
        // Refused, it is dropped, and with it whoever could answer.
        let _ = self.queue.send(queued);
        answered.await.unwrap_or_else(|_| self.gone())
    }

    /// The loop ends when there is no handle any more; while there is one, by a defect: a sink that panics when its delivery
    /// is dropped. From then on it takes nothing.
    fn gone(&self) -> Answer {
        if self.shared.opens(Open::Nothing) {
            tracing::error!(
                sink = self.name(),
                "a sink died, what it is owed stays in the outbox; restart this process"
            );
        }
        Answer::owed(Pace::AtOnce, "the sink has died")
    }

    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// How often it was cut: what is under way then is cut by the next.
    pub(crate) fn cuts(&self) -> u64 {
        *self.shared.cuts.borrow()
    }

    /// How many of these it may be given together beside the queue, from the first on; at least one.
    pub(crate) fn fitting(&self, messages: &[Message]) -> usize {
        self.shared.fitting(messages)
    }

    /// The destination is down, as who keeps an order of his own has found out.
    pub(crate) fn is_down(&self) {
        self.shared.pacing().is_down();
    }

    /// Gives it a batch that [fits](Self::fitting) beside the queue, for who keeps an order of his own.
    pub(crate) async fn deliver_all(
        &self,
        messages: &[Message],
        cuts: u64,
    ) -> Result<Vec<Verdict>, Fault> {
        self.shared.deliver(messages, cuts).await
    }

    /// Takes nothing until it is resumed: its destination asks for that.
    pub(crate) fn pause(&self, circuit: Circuit) {
        self.shared.pause(circuit);
    }

    /// Waits until it is not paused. Cancel safe.
    pub(crate) async fn runs(&self) {
        self.shared.halt.watch().runs().await;
    }
}

impl Shared {
    /// Takes nothing until it is resumed.
    fn pause(&self, circuit: Circuit) {
        let Circuit { id, reason, advice } = &circuit;
        tracing::error!(
            sink = &*self.name,
            circuit = id,
            reason,
            advice_seconds = advice.map(|advice| advice.as_secs()),
            "a sink is paused, what it is owed stays in the outbox; resume it with: \
             toa-outbox sinks resume {} --circuit {id}",
            self.name,
        );
        self.halt.ask(circuit);
        self.pacing().is_paused();
        self.opens(Open::Nothing);
    }

    /// Whether that is news.
    fn opens(&self, open: Open) -> bool {
        self.open
            .send_if_modified(|before| std::mem::replace(before, open) != open)
    }
}

/// The loop of one sink.
struct Feeding {
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedReceiver<Queued>,
    /// The longest it rests of its own accord.
    longest: Duration,
    /// When its rest is over.
    until: Option<Instant>,
    /// How often it has failed since it last accepted something.
    failures: u32,
    reports: Reports,
}

impl Feeding {
    async fn run(mut self) {
        let mut queued = Vec::with_capacity(MOST);
        let mut halt = self.shared.halt.watch();
        loop {
            let room = self.shared.pacing().until();
            tokio::select! {
                biased;
                () = at(self.until) => self.wake(),
                () = at(room) => self.wake(),
                () = halt.changed() => self.wake(),
                count = self.inbox.recv_many(&mut queued, MOST) => match count {
                    0 => return,
                    _ => self.once(queued.drain(..)).await,
                }
            }
        }
    }

    /// Delivers a batch, in parts where it fails.
    async fn once(&mut self, queued: impl Iterator<Item = Queued>) {
        let mut batch = Batch::of(*self.shared.cuts.borrow());
        let mut queued: Vec<Queued> = queued.collect();
        // Not one by one, where new and old come by turns. Those of a row stay as they are.
        {
            let pacing = self.shared.pacing();
            queued.sort_by_key(|queued| pacing.is_behind(&queued.message));
        }
        for queued in queued {
            match queued.cuts == batch.cuts && queued.message.term.holds() {
                true => batch.add(queued),
                false => settle(queued.answer, Answer::owed(Pace::AtOnce, HELD_BACK)),
            }
        }
        let mut parts = Vec::new();
        parts.push(0..batch.messages.len());
        while let Some(mut part) = parts.pop() {
            let is_open = self.until.is_none() && self.shared.halt.runs();
            let may_leave = is_open && batch.holds(part.clone());
            if part.is_empty() || !may_leave {
                // Dropped with the batch.
                continue;
            }
            let end = part.start + self.shared.fitting(&batch.messages[part.clone()]);
            parts.push(end..part.end);
            part.end = end;
            let messages = &batch.messages[part.clone()];
            match self.shared.deliver(messages, batch.cuts).await {
                Ok(verdicts) => self.take(&mut batch, part, verdicts),
                Err(Fault::Cut) => return,
                // What waits is dropped with the batch.
                Err(Fault::Later(_)) => self.tell(),
                Err(Fault::Never(reason)) => batch.settle(part.start, Answer::Rejected { reason }),
                Err(Fault::Unreachable(reason)) => return self.rest(&reason, None),
                Err(Fault::Failed(_) | Fault::Rejected(_)) if part.len() > 1 => {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
                // Of one alone that is rejected there is a verdict.
                Err(Fault::Failed(reason) | Fault::Rejected(reason)) => {
                    self.shared.pacing().failed(&batch.messages[part.start]);
                    self.rest(&reason, None);
                    batch.settle(part.start, Answer::Failed { reason });
                }
            }
        }
    }

    fn take(&mut self, batch: &mut Batch, part: Range<usize>, verdicts: Vec<Verdict>) {
        let is_retry = |verdict: &Verdict| matches!(verdict, Verdict::Retry { .. });
        let is_handler = self.shared.terms.kind == Kind::Consumer;
        // What is said of all of a batch is said of the destination, not of each message.
        let is_whole = verdicts.iter().all(is_retry);
        let is_each = is_handler || verdicts.len() == 1 || !is_whole;
        if is_whole {
            self.shared.pacing().failed(&batch.messages[part.start]);
        }
        for (index, verdict) in part.zip(verdicts) {
            let answer = match verdict {
                Verdict::Accepted | Verdict::Duplicate => {
                    self.failures = 0;
                    Answer::Taken
                }
                Verdict::Rejected(reason) => Answer::Rejected { reason },
                Verdict::Retry { reason, after } => {
                    self.rest(&reason, after);
                    match after {
                        None if is_each => Answer::Failed { reason },
                        // It spoke of itself.
                        _ => Answer::owed(Pace::NextCycle, reason),
                    }
                }
                Verdict::Paused {
                    reason,
                    circuit,
                    after,
                } => {
                    let circuit = Circuit::new(circuit, reason.clone(), after);
                    self.shared.pause(circuit);
                    Answer::owed(Pace::AtOnce, reason)
                }
            };
            batch.settle(index, answer);
        }
    }

    /// Takes nothing for a while.
    fn rest(&mut self, reason: &str, asked: Option<Duration>) {
        let usual = LEAST_REST.saturating_mul(1 << self.failures.min(16));
        let usual = usual.min(self.longest);
        let asked = asked.filter(|asked| !asked.is_zero());
        let rest = asked.map_or(usual, |asked| asked.min(LONGEST_REST));
        self.failures = self.failures.saturating_add(1);
        let until = Instant::now() + rest;
        self.until = Some(self.until.map_or(until, |before| before.max(until)));
        self.tell();
        let sink = self.shared.name.clone();
        self.reports.first(reason, |times| {
            tracing::warn!(
                sink = &*sink,
                reason,
                times,
                "a sink failed and rests; what it is owed stays in the outbox"
            );
        });
    }

    /// Takes messages again, if neither its rest nor a pause is in the way.
    fn wake(&mut self) {
        let rests = self.until.is_some_and(|until| Instant::now() < until);
        if !rests {
            self.until = None;
        }
        if self.shared.halt.runs() {
            self.shared.pacing().is_resumed();
        }
        self.shared.pacing().wake(Instant::now());
        self.tell();
    }

    /// Has those who hand over messages know what is taken.
    fn tell(&self) {
        let is_up = self.until.is_none() && self.shared.halt.runs();
        let open = match (is_up, self.shared.pacing().until()) {
            (false, _) => Open::Nothing,
            (true, Some(_)) => Open::New,
            (true, None) => Open::All,
        };
        self.shared.opens(open);
    }
}

/// Messages, and who waits for an answer; whoever has none when it is dropped is told that the message was held back.
struct Batch {
    messages: Vec<Message>,
    answers: Vec<Option<oneshot::Sender<Answer>>>,
    cuts: u64,
}

impl Batch {
    fn of(cuts: u64) -> Self {
        Self {
            messages: Vec::new(),
            answers: Vec::new(),
            cuts,
        }
    }

    fn add(&mut self, queued: Queued) {
        self.messages.push(queued.message);
        self.answers.push(Some(queued.answer));
    }

    /// Whether all of these may be handed over now. What was tried before may have taken long.
    fn holds(&self, part: Range<usize>) -> bool {
        self.messages[part]
            .iter()
            .all(|message| message.term.holds())
    }

    fn settle(&mut self, index: usize, answer: Answer) {
        if let Some(waits) = self.answers[index].take() {
            settle(waits, answer);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for waits in self.answers.drain(..).flatten() {
            settle(waits, Answer::owed(Pace::AtOnce, HELD_BACK));
        }
    }
}

fn settle(waits: oneshot::Sender<Answer>, answer: Answer) {
    // Nobody waits who was stopped meanwhile.
    let _ = waits.send(answer);
}

#[cfg(test)]
mod tests;
