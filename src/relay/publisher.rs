//! Takes rows from the immediate path and from the pump, and gives each to the sink once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::{Claim, Ledger, Sent},
    marker::{Failed, Mark},
    pump::Tally,
};
use crate::{
    clock::{Moment, Term},
    metrics::{Failure as Kind, Meters},
    report::Reports,
    routes::{RouteSet, Routes},
    row::{Row, RowId, now},
    sinks::{Answer, Message, Next, Outlet, Pace, Policy},
    slots::{Grant, Lanes, Ownership},
};

/// The longest a message that is refused again and again waits between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// How long a sink that is full has others wait for the tail.
const HASTE: Duration = Duration::from_millis(100);

/// Where rows are handed over. Cheap to clone; rows handed over after the loop has stopped are
/// forgotten, which leaves them to the pump of whoever comes next.
#[derive(Clone)]
pub(crate) struct Publisher {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) lanes: Ownership,
    pub(crate) sink: Outlet,
    pub(crate) interval: Duration,
    whole: RouteSet,
    /// Places for rows that are sent to wait until they are due.
    early: Arc<Semaphore>,
    /// Whether it had no room for the tail when it was asked last; none where no other sink waits.
    is_full: Option<Arc<AtomicBool>>,
    jobs: mpsc::UnboundedSender<Job>,
}

/// One row on its way.
struct Job {
    row: Row,
    claim: Claim,
    grant: Grant,
    tally: Option<Tally>,
    /// Given back when the row is settled.
    permits: Vec<OwnedSemaphorePermit>,
    /// When it is due, where that may not be yet.
    due: Option<Instant>,
    /// Whether it is new.
    is_live: bool,
}

impl Publisher {
    /// Publishes a row this process has just committed, without waiting. What cannot go now is
    /// remembered as unsent, and tried again by the next cycle.
    pub(crate) fn at_once(&self, row: Row, claim: Claim) {
        let Some(grant) = self.grant(&self.lanes.lanes(), row.lane, row.pending) else {
            return;
        };
        let permit = (self.sink.is_up() && self.ledger.has_room())
            .then(|| self.sink.cap().try_take())
            .flatten();
        match permit {
            Some(permit) => self.send(Job {
                row,
                claim,
                grant,
                tally: None,
                permits: vec![permit],
                due: None,
                is_live: true,
            }),
            None => claim.settle(
                Sent::Again {
                    after: Duration::ZERO,
                },
                RouteSet::default(),
            ),
        }
    }

    /// Waits for the turn of a row the pump has read. Cancel safe.
    pub(crate) async fn turn(&self) -> Turn {
        self.ledger.room().await;
        Turn(self.sink.cap().take_swept().await)
    }

    /// Publishes a row the pump has read, when its turn has come.
    pub(crate) fn sweep(
        &self,
        row: Row,
        claim: Claim,
        grant: Grant,
        turn: Turn,
        tally: Option<Tally>,
    ) {
        self.send(Job {
            row,
            claim,
            grant,
            tally,
            permits: turn.0,
            due: None,
            is_live: false,
        });
    }

    /// Waits for the turn of a row the tail has read: before those that are swept, like all that is new. Of those that
    /// are due a little later only some get one. Cancel safe.
    pub(crate) async fn tail_turn(&self, is_early: bool) -> Option<Turn> {
        let early = match is_early {
            true => Some(self.early.clone().try_acquire_owned().ok()?),
            false => None,
        };
        let mut permits = self.place().await?;
        permits.extend(early);
        Some(Turn(permits))
    }

    /// A place in flight for a row of the tail. Where other sinks wait for the same tail, a sink that is full has them wait once
    /// and not again, until it has room; what it misses is the pump's.
    async fn place(&self) -> Option<Vec<OwnedSemaphorePermit>> {
        let cap = self.sink.cap();
        let Some(is_full) = &self.is_full else {
            return Some(cap.take().await);
        };
        let permit = match is_full.load(Relaxed) {
            true => cap.try_take(),
            false => cap.take_within(HASTE).await,
        };
        is_full.store(permit.is_none(), Relaxed);
        permit.map(|permit| vec![permit])
    }

    /// Publishes a row the tail has read, when its turn has come, and not before it is `due`.
    pub(crate) fn tail(&self, row: Row, claim: Claim, grant: Grant, turn: Turn, due: Instant) {
        self.send(Job {
            row,
            claim,
            grant,
            tally: None,
            permits: turn.0,
            due: Some(due),
            is_live: true,
        });
    }

    /// What may leave from here of a row that this process wrote: all of it for an interval less than the gap, and
    /// after that what its lane is owned for, since whoever owns it may be sweeping it.
    pub(crate) fn grant(&self, lanes: &Lanes, lane: u8, pending: i64) -> Option<Grant> {
        let left = i128::from(pending) - i128::from(now()) - self.interval.as_millis() as i128;
        match u64::try_from(left) {
            Ok(left @ 1..) => Some(Grant {
                routes: self.whole,
                term: Term::Until(Moment::now() + Duration::from_millis(left)),
            }),
            _ => lanes.grant(lane),
        }
    }

    fn send(&self, job: Job) {
        job.claim.sending(job.grant.is_by_lane());
        // Refused only after the stop; dropping the job forgets the row.
        let _ = self.jobs.send(job);
    }
}

/// A place in flight for one row.
pub(crate) struct Turn(Vec<OwnedSemaphorePermit>);

/// The loop: everything in flight, polled by one task.
pub(crate) struct Publishing {
    ledger: Arc<Ledger>,
    routes: Arc<Routes>,
    sink: Outlet,
    policy: Policy,
    interval: Duration,
    jobs: mpsc::UnboundedReceiver<Job>,
    marks: mpsc::UnboundedSender<Mark>,
    number: usize,
    nudge: Arc<Notify>,
    reports: Reports,
    meters: Meters,
}

/// What the loop is made of.
pub(crate) struct Parts {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) lanes: Ownership,
    pub(crate) sink: Outlet,
    pub(crate) interval: Duration,
    pub(crate) routes: Arc<Routes>,
    pub(crate) marks: mpsc::UnboundedSender<Mark>,
    /// That of the branch in its line.
    pub(crate) number: usize,
    pub(crate) nudge: Arc<Notify>,
    pub(crate) meters: Meters,
    /// How many rows of the tail may wait in flight until they are due: clocks that differ must not take all places.
    pub(crate) early: usize,
    /// Whether rows of the tail go to other sinks too.
    pub(crate) is_shared: bool,
}

/// The handle and its loop.
pub(crate) fn publisher(parts: Parts) -> (Publisher, Publishing) {
    let (jobs, inbox) = mpsc::unbounded_channel();
    let publisher = Publisher {
        ledger: parts.ledger.clone(),
        lanes: parts.lanes,
        sink: parts.sink.clone(),
        interval: parts.interval,
        whole: parts.routes.to(parts.sink.name()),
        early: Arc::new(Semaphore::new(parts.early)),
        is_full: parts.is_shared.then(Arc::default),
        jobs,
    };
    let publishing = Publishing {
        ledger: parts.ledger,
        routes: parts.routes,
        policy: parts.sink.policy(),
        sink: parts.sink,
        interval: parts.interval,
        jobs: inbox,
        marks: parts.marks,
        number: parts.number,
        nudge: parts.nudge,
        reports: Reports::default(),
        meters: parts.meters,
    };
    (publisher, publishing)
}

impl Publishing {
    /// Runs until it is stopped and nothing is in flight.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut flying = FuturesUnordered::new();
        let mut stopping = false;
        loop {
            tokio::select! {
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    self.jobs.close();
                }
                job = self.jobs.recv(), if !(stopping && self.jobs.is_empty()) => match job {
                    Some(job) => flying.push(publish(job, self.routes.clone(), self.sink.clone(), self.meters.clone())),
                    None => stopping = true,
                },
                Some(flown) = flying.next(), if !flying.is_empty() => self.settle(flown),
                else => return,
            }
        }
    }

    fn settle(&mut self, flown: Flown) {
        let Flown {
            id,
            mut claim,
            tally,
            done,
            failures,
        } = flown;
        for failure in &failures {
            self.report(&id, failure);
        }
        let (failed, failures) = self.given_up(failures);
        let news = !done.is_empty() && done != claim.done || !failed.is_empty();
        // The most hurried route decides, so that none waits for a sibling that fails.
        let pace = failures.iter().map(|failure| failure.pace).min();
        let sent = match pace {
            None => Sent::Whole,
            Some(pace) => Sent::Again {
                after: self.wait(pace, claim.refusals),
            },
        };
        if pace == Some(Pace::Growing) {
            claim.refusals = claim.refusals.saturating_add(1);
        }
        if let Some(tally) = &tally {
            match sent {
                Sent::Whole => tally.published(),
                Sent::Again { .. } => tally.unsent(),
            }
        }
        // Settled before it is marked, so that the mark finds the row as it is. What is tried again at a time of its own is done
        // here.
        let mut settled = done;
        failed
            .iter()
            .for_each(|failed| settled.insert(failed.route));
        claim.settle(sent, settled);
        if news || sent == Sent::Whole {
            let is_last = sent == Sent::Whole;
            if !is_last {
                self.ledger.partly();
            }
            // The marker outlives this loop.
            let _ = self.marks.send(Mark {
                id,
                branch: self.number,
                done,
                failed,
                is_last,
                tally,
            });
        }
        if matches!(sent, Sent::Again { after } if after.is_zero()) && self.sink.takes_backlog() {
            self.nudge.notify_one();
        }
    }

    /// What of it failed for itself, and is not tried again from here; and the rest.
    fn given_up(&self, failures: Vec<Failure>) -> (Vec<Failed>, Vec<Failure>) {
        if !self.policy.gives_up() {
            return (Vec::new(), failures);
        }
        let (mut failed, mut rest) = (Vec::new(), Vec::new());
        for failure in failures {
            let next = match failure.verdict {
                Some(Lone::Failed) => self.policy.next(1),
                Some(Lone::Rejected) => self.policy.never(),
                None => {
                    rest.push(failure);
                    continue;
                }
            };
            if matches!(next, Next::Dead(_)) {
                self.meters.died();
            }
            failed.push(Failed {
                route: failure.route,
                reason: failure.reason,
                next,
            });
        }
        (failed, rest)
    }

    /// How long until the next attempt. Half an interval for the next cycle, so that it does not miss
    /// the tick it is meant for.
    fn wait(&self, pace: Pace, refusals: u32) -> Duration {
        match pace {
            Pace::AtOnce => Duration::ZERO,
            Pace::NextCycle => self.interval / 2,
            Pace::Growing => {
                let wait = self.interval.saturating_mul(1 << refusals.min(16)) / 2;
                wait.min(LONGEST_WAIT)
            }
        }
    }

    fn report(&mut self, id: &RowId, failure: &Failure) {
        let sink = self.sink.name();
        let Failure {
            label,
            reason,
            pace,
            rendered,
            ..
        } = failure;
        match (rendered, pace) {
            (false, _) => self.reports.first(&format!("{id}/{label}"), |times| {
                tracing::error!(
                    row = %id, sink, label, reason, times,
                    "the label could not be rendered; it is tried again every cycle, other labels go out"
                );
            }),
            // The connection's own log says what happened.
            (true, Pace::AtOnce) => tracing::debug!(row = %id, sink, label, reason, "not sent yet"),
            (true, Pace::NextCycle | Pace::Growing) => {
                self.reports.first(&format!("{label}: {reason}"), |times| {
                    tracing::warn!(row = %id, sink, label, reason, times, "not sent, it stays in the outbox");
                });
            }
        }
    }
}

/// A row whose routes have all had an answer.
struct Flown {
    id: RowId,
    claim: Claim,
    tally: Option<Tally>,
    done: RouteSet,
    failures: Vec<Failure>,
}

/// A route that is still owed.
struct Failure {
    /// Its number.
    route: usize,
    /// What its sink said of the message by itself.
    verdict: Option<Lone>,
    label: String,
    reason: String,
    pace: Pace,
    /// Whether there was a message at all.
    rendered: bool,
}

/// What a sink says of a message by itself.
#[derive(Clone, Copy)]
enum Lone {
    Failed,
    Rejected,
}

async fn publish(job: Job, routes: Arc<Routes>, sink: Outlet, meters: Meters) -> Flown {
    let _flying = meters.flying();
    let Job {
        row,
        claim,
        grant,
        tally,
        permits,
        due,
        is_live,
    } = job;
    if let Some(due) = due
        && due > Instant::now()
    {
        tokio::time::sleep_until(due.into()).await;
    }
    let mut done = claim.done.union(routes.done(row.outstanding.as_deref()));
    let mut failures = Vec::new();
    let mut messages = Vec::new();
    for (index, rendering) in routes.all.iter().enumerate() {
        if done.contains(index) || !grant.routes.contains(index) {
            continue;
        }
        if rendering.skips(&row) {
            done.insert(index);
            continue;
        }
        match rendering.label.render(&row.event, routes.encoding) {
            Ok(None) => done.insert(index),
            Ok(Some(body)) => {
                let message = Message {
                    is_live,
                    ..rendering.message(&row, body, &grant.term)
                };
                messages.push((index, message));
            }
            Err(unrendered) => {
                meters.failed(index, Kind::Unrendered);
                failures.push(Failure {
                    route: index,
                    verdict: None,
                    label: rendering.label.name().to_owned(),
                    reason: unrendered.to_string(),
                    pace: Pace::NextCycle,
                    rendered: false,
                });
            }
        }
    }
    let answers = messages.into_iter().map(|(index, message)| {
        let sink = &sink;
        async move { (index, sink.deliver(message).await) }
    });
    for (index, answer) in join_all(answers).await {
        count(&meters, &row.id, index, &answer);
        let verdict = match answer {
            Answer::Failed { .. } => Some(Lone::Failed),
            Answer::Rejected { .. } => Some(Lone::Rejected),
            Answer::Taken | Answer::Owed { .. } => None,
        };
        let Some((reason, pace)) = answer.into_owed() else {
            done.insert(index);
            continue;
        };
        failures.push(Failure {
            route: index,
            verdict,
            label: routes.all[index].label.name().to_owned(),
            reason,
            pace,
            rendered: true,
        });
    }
    drop(permits);
    Flown {
        id: row.id,
        claim,
        tally,
        done,
        failures,
    }
}

fn count(meters: &Meters, id: &RowId, label: usize, answer: &Answer) {
    match answer {
        Answer::Taken => meters.published(label, id.time().map(|made| now() - made)),
        Answer::Failed { .. } => meters.failed(label, Kind::Unavailable),
        Answer::Rejected { .. } => meters.failed(label, Kind::Refused),
        Answer::Owed { pace, .. } => meters.failed(
            label,
            match pace {
                Pace::AtOnce => Kind::Interrupted,
                Pace::NextCycle => Kind::Unavailable,
                Pace::Growing => Kind::Refused,
            },
        ),
    }
}
