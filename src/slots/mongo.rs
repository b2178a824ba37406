//! A member of a group: does in MongoDB and in this process what the protocol says.
//!
//! One loop, its own task, with requests of its own that last at most a beat: the work of the relay cannot keep it
//! waiting. It shares the connection pool of the database it was given; where that is so busy that a beat finds no
//! connection in time, ownership lapses.

mod hints;
mod says;
mod spelling;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bson::Document;
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream::{BoxStream, FuturesUnordered},
};
use mongodb::Collection;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Lanes, Order,
    binding::Binding,
    protocol::{
        Assignment, Epoch, Input, Name, Outcome, Output, Ownership, Protocol, Request, Route,
        Routes, Timing,
    },
};
use crate::{
    clock::{Lease, Moment, Reading, Term},
    routes::RouteSet,
};
use says::Says;
use spelling::NoReply;

/// The most members that are told of each other's changes at once. The server judges every write on the document for
/// every member: that grows with the square of the group, and with 130 it was all that three servers did. Beyond,
/// changes are seen with the next beat.
const MOST_HINTED: usize = 32;

/// What a group is made of.
pub(super) struct Parts {
    pub(super) id: String,
    pub(super) slots: Collection<Document>,
    pub(super) beat: Duration,
    /// The routes of the component, in declared order.
    pub(super) routes: Vec<Route>,
    pub(super) lanes: watch::Sender<Lanes>,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) others: watch::Sender<Arc<[Route]>>,
    pub(super) fit: watch::Receiver<bool>,
}

pub(super) struct Group {
    parts: Parts,
    protocol: Protocol,
    timing: Timing,
    /// The routes the protocol was told to serve: all or, where this replica is not fit, none.
    serving: Routes,
    /// What is owned, of which epoch.
    held: Option<(Epoch, Arc<Lease>)>,
    /// What the other members serve when they can.
    abilities: BTreeMap<Name, Routes>,
    /// Under which id lanes were owned last.
    owner: Option<Name>,
    answers: (mpsc::UnboundedSender<u64>, mpsc::UnboundedReceiver<u64>),
    /// Requests on their way; those that the protocol waits for no longer end soon after.
    flights: FuturesUnordered<BoxFuture<'static, (u64, Result<Outcome, NoReply>)>>,
    /// When the last reply came that counts.
    answered: Moment,
    /// Before this, nothing is sent.
    silent: Moment,
    seen: Reading,
    says: Says,
}

impl Group {
    pub(super) fn new(parts: Parts) -> Self {
        let timing = Timing::new(parts.beat);
        let serving: Routes = Arc::new(parts.routes.iter().cloned().collect());
        let seen = Reading::take();
        Self {
            protocol: Protocol::new(&process(), serving.clone(), timing, seen.now),
            timing,
            serving,
            held: None,
            abilities: BTreeMap::new(),
            owner: None,
            answers: mpsc::unbounded_channel(),
            flights: FuturesUnordered::new(),
            answered: seen.now,
            silent: seen.now,
            seen,
            says: Says::new(&parts.id, parts.routes.len()),
            parts,
        }
    }

    /// Is a member until it is told to leave, and then until it has left or two beats have passed; whoever cannot wait
    /// so long ends it, and leaves the rest to the lease.
    pub(super) async fn keep(mut self, binding: Binding, leave: CancellationToken) {
        if !self.bind(&binding, &leave).await {
            return;
        }
        self.answered = Moment::now();
        let mut hints = None;
        let mut last = None;
        while !self.protocol.gone() && last.is_none_or(|last| Moment::now() < last) {
            self.follow(&mut hints);
            let wait = self.wait();
            let input = tokio::select! {
                () = leave.cancelled(), if last.is_none() => {
                    last = Some(Moment::now() + self.timing.stop);
                    Input::Leave
                }
                Some(order) = self.answers.1.recv() => Input::Drained { order },
                Some((number, answer)) = self.flights.next() => {
                    let outcome = self.heard(answer);
                    Input::Reply { number, outcome }
                }
                Some(()) = next(&mut hints) => Input::Hint,
                () = tokio::time::sleep(wait) => Input::Tick,
            };
            self.once(input);
        }
        self.release();
    }

    /// Waits for the right to have a group for this collection; whether it came before the order to leave.
    async fn bind(&mut self, binding: &Binding, leave: &CancellationToken) -> bool {
        let terms = format!("group {}", self.parts.id);
        while !binding.bind(&terms).await {
            tokio::select! {
                () = leave.cancelled() => return false,
                () = tokio::time::sleep(self.timing.beat) => {}
            }
        }
        true
    }

    /// Follows the group for as long as it is small. In a large one every hint would cost more than the time it saves.
    fn follow(&self, hints: &mut Option<BoxStream<'static, ()>>) {
        let members = self.protocol.known().map_or(0, |known| known.members.len());
        if members > MOST_HINTED {
            *hints = None;
        } else if hints.is_none() {
            let (slots, id) = (self.parts.slots.clone(), self.parts.id.clone());
            *hints = Some(hints::follow(slots, id).boxed());
        }
    }

    /// At most a quarter of a beat: timers stand still where a machine is suspended, and the clock does not.
    fn wait(&self) -> Duration {
        let next = self.protocol.next().since(Moment::now());
        next.min(self.timing.beat / 4)
    }

    fn once(&mut self, input: Input) {
        let reading = Reading::take();
        let before = std::mem::replace(&mut self.seen, reading);
        if reading.ran_ahead(before, self.timing.beat) {
            self.says.doubts();
            self.step(reading, Input::Doubt);
        }
        self.step(reading, input);
        self.serve(reading);
        self.learn();
        if let Some(owner) = &self.owner {
            self.says
                .holds(owner, self.protocol.holds_until(), reading.now);
        }
    }

    fn step(&mut self, reading: Reading, input: Input) {
        for output in self.protocol.step(reading.now, input) {
            match output {
                Output::Send { number, request } => self.send(number, request),
                Output::StandDown { order } => self.order(order, false),
                Output::Cut { order } => self.order(order, true),
                Output::Assigned(assignment) => self.assigned(&assignment, reading),
            }
        }
    }

    fn send(&mut self, number: u64, request: Request) {
        if Moment::now() < self.silent {
            return self
                .flights
                .push(ready((number, Err(NoReply::Failed("silent".into())))).boxed());
        }
        let (slots, id, timeout) = (
            self.parts.slots.clone(),
            self.parts.id.clone(),
            self.timing.timeout,
        );
        let says = self.says.clone();
        let asked = async move {
            let command = spelling::command(slots.name(), &id, &request, timeout);
            let database = slots.client().database(&slots.namespace().db);
            let answer = tokio::time::timeout(timeout, database.run_command(command)).await;
            let outcome = match answer {
                Ok(Ok(reply)) => spelling::outcome(&request, &reply),
                Ok(Err(error)) => Err(NoReply::Failed(error.to_string())),
                Err(_) => Err(NoReply::Failed(format!("no answer within {timeout:?}"))),
            };
            says.asked(&request, &outcome);
            (number, outcome)
        };
        self.flights.push(asked.boxed());
    }

    /// Whoever writes and gets no acknowledgement for it is alive in the eyes of the others and owns nothing: nobody
    /// would have its lanes. After a lease of that it falls silent, for long enough to be evicted.
    fn heard(&mut self, answer: Result<Outcome, NoReply>) -> Outcome {
        let now = Moment::now();
        match answer {
            Ok(outcome) => {
                self.answered = now;
                outcome
            }
            Err(no_reply) => {
                let applied = matches!(no_reply, NoReply::Unacknowledged(_));
                if applied && now.since(self.answered) > self.timing.lease {
                    self.silent = now + self.timing.lease + self.timing.beat;
                    self.says.falls_silent();
                }
                Outcome::Failed
            }
        }
    }

    /// Nothing may be started from here on, so the right ends first.
    fn order(&mut self, number: u64, at_once: bool) {
        self.release();
        let order = Order {
            at_once,
            number,
            answers: self.answers.0.clone(),
        };
        // The relay hears orders for as long as this loop lives.
        let _ = self.parts.orders.send(order);
    }

    fn assigned(&mut self, assignment: &Assignment, reading: Reading) {
        match assignment {
            Assignment::Own(own) => self.hold(own, reading),
            Assignment::None(_) => self.release(),
        }
        let members = self.protocol.known().map_or(0, |known| known.members.len());
        let me = self.protocol.me();
        self.says.assigned(assignment, me, members, reading.now);
    }

    fn hold(&mut self, own: &Ownership, reading: Reading) {
        if let Some((epoch, lease)) = &self.held
            && *epoch == own.epoch
        {
            return lease.extend(own.until, reading);
        }
        let lease = Lease::new(self.timing.beat);
        lease.extend(own.until, reading);
        let lanes = Lanes::of(|lane| self.owned(own, lane), Term::Shared(lease.clone()));
        self.held = Some((own.epoch.clone(), lease));
        self.owner = self.protocol.me().cloned();
        self.parts.lanes.send_replace(lanes);
    }

    fn owned(&self, own: &Ownership, lane: u8) -> RouteSet {
        let mut owned = RouteSet::default();
        for (index, route) in self.parts.routes.iter().enumerate() {
            if own.slot(route).is_some_and(|slot| slot.owns(lane)) {
                owned.insert(index);
            }
        }
        owned
    }

    fn release(&mut self) {
        if let Some((_, lease)) = self.held.take() {
            lease.end();
            self.parts.lanes.send_replace(Lanes::none());
        }
    }

    /// In a rolling deployment some members know a label more. Rows are owed to it as soon as one of them is there, and
    /// for as long, also while it cannot serve it.
    fn learn(&mut self) {
        let (Some(known), Some(me)) = (self.protocol.known(), self.protocol.me()) else {
            return;
        };
        let others = || known.members.iter().filter(|member| member.id != *me);
        self.abilities
            .retain(|id, _| others().any(|member| member.id == *id));
        for member in others().filter(|member| !member.routes.is_empty()) {
            self.abilities
                .insert(member.id.clone(), member.routes.clone());
        }
        let own = &self.parts.routes;
        let strange: BTreeSet<&Route> = self
            .abilities
            .values()
            .flat_map(|routes| routes.iter())
            .filter(|route| !own.contains(route))
            .collect();
        self.parts.others.send_if_modified(|routes| {
            let changed = !strange.iter().copied().eq(routes.iter());
            if changed {
                *routes = strange.into_iter().cloned().collect();
            }
            changed
        });
    }

    /// Leaves the lanes to others while this replica cannot work on them and another can. Where none can, the first
    /// member takes them back, so that two that gave them up to each other do not take turns.
    fn serve(&mut self, reading: Reading) {
        let (true, Some(known)) = (!*self.parts.fit.borrow(), self.protocol.known()) else {
            return self.serve_all(reading);
        };
        let Some(me) = self.protocol.me() else { return };
        let mut others = known.members.iter().filter(|member| member.id != *me);
        if others.any(|other| !other.routes.is_empty()) {
            self.change(Routes::default(), reading);
        } else if known.members.first().is_some_and(|first| first.id == *me) {
            self.serve_all(reading);
        }
    }

    fn serve_all(&mut self, reading: Reading) {
        self.change(
            Arc::new(self.parts.routes.iter().cloned().collect()),
            reading,
        );
    }

    fn change(&mut self, routes: Routes, reading: Reading) {
        if routes != self.serving {
            self.says.serves(!routes.is_empty());
            self.serving = routes.clone();
            self.step(reading, Input::Serve(routes));
        }
    }
}

async fn next(hints: &mut Option<BoxStream<'static, ()>>) -> Option<()> {
    match hints {
        Some(hints) => hints.next().await,
        None => std::future::pending().await,
    }
}

/// A name for this start of this process, and one an operator can make something of.
fn process() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    format!(
        "{host}-{}-{:08x}",
        std::process::id(),
        rand::random::<u64>()
    )
}
