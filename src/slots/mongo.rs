//! A member of a group: does in MongoDB and in this process what the protocol says.
//!
//! One loop, its own task, with requests of its own that last at most a beat: the work of the relay cannot keep it
//! waiting. It shares the connection pool of the database it was given; where that is so busy that a beat finds no
//! connection in time, ownership lapses.

mod hints;
mod says;
mod spelling;

use std::{sync::Arc, time::Duration};

use bson::Document;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
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

/// What a group is made of.
pub(super) struct Parts {
    pub(super) id: String,
    pub(super) slots: Collection<Document>,
    pub(super) beat: Duration,
    /// The routes of the component, in declared order.
    pub(super) routes: Vec<Route>,
    pub(super) lanes: watch::Sender<Lanes>,
    pub(super) orders: mpsc::UnboundedSender<Order>,
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
    /// Under which id lanes were owned last.
    owner: Option<Name>,
    answers: (mpsc::UnboundedSender<u64>, mpsc::UnboundedReceiver<u64>),
    /// Requests on their way; those that the protocol waits for no longer end soon after.
    flights: FuturesUnordered<BoxFuture<'static, (u64, Outcome)>>,
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
            owner: None,
            answers: mpsc::unbounded_channel(),
            flights: FuturesUnordered::new(),
            seen,
            says: Says::new(&parts.id),
            parts,
        }
    }

    /// Is a member until it is told to leave, and then until it has left or two beats have passed.
    pub(super) async fn keep(mut self, binding: Binding, leave: CancellationToken) {
        if !self.bind(&binding, &leave).await {
            return;
        }
        let hints = hints::follow(self.parts.slots.clone(), self.parts.id.clone());
        let mut hints = std::pin::pin!(hints);
        let mut last = None;
        while !self.protocol.gone() && last.is_none_or(|last| Moment::now() < last) {
            let wait = self.wait();
            let input = tokio::select! {
                () = leave.cancelled(), if last.is_none() => {
                    last = Some(Moment::now() + self.timing.stop);
                    Input::Leave
                }
                Some(order) = self.answers.1.recv() => Input::Drained { order },
                Some((number, outcome)) = self.flights.next() => Input::Reply { number, outcome },
                Some(()) = hints.next() => Input::Hint,
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
        if let (Input::Drained { .. }, Some(owner)) = (&input, &self.owner) {
            self.says.let_go(owner, reading.now);
        }
        self.step(reading, input);
        self.serve(reading);
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
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {timeout:?}")),
            };
            says.asked(&request, &outcome);
            (number, outcome.unwrap_or(Outcome::Failed))
        };
        self.flights.push(asked.boxed());
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
