//! A member of a group: does in MongoDB and in this process what the protocol says.
//!
//! One loop, its own task, with requests of its own that last at most a beat: the work of the relay cannot keep it
//! waiting. It shares the connection pool of the database it was given; where that is so busy that a beat finds no
//! connection in time, ownership lapses.

mod asking;
pub(super) mod census;
mod hints;
mod others;
mod says;
mod spelling;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bson::Document;
use futures::{StreamExt, stream::BoxStream};
use mongodb::Collection;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Lanes, Order, Part, Unfit,
    binding::Bindings,
    protocol::{
        Assignment, Epoch, Input, Name, Output, Ownership, Protocol, Route, Routes, Timing,
    },
};
use crate::{
    clock::{Lease, Moment, Reading, Term},
    routes::RouteSet,
};
use asking::Asking;
use others::Others;
use says::Says;

/// The most members that look for each other's changes between beats: what they read in all grows with the square of the
/// group. Beyond, changes are seen with the next beat.
const MOST_HINTED: usize = 32;

/// Where a group is, and how it is connected with the rest of the process.
pub(super) struct Place {
    pub(super) id: String,
    pub(super) slots: Collection<Document>,
    pub(super) beat: Duration,
    /// Counted up when lanes come or go.
    pub(super) assigned: watch::Sender<u64>,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) unfit: watch::Receiver<Unfit>,
}

pub(super) struct Group {
    place: Place,
    parts: Vec<Part>,
    /// The routes of all parts.
    all: Routes,
    /// The same, by sink.
    of_sink: BTreeMap<Arc<str>, BTreeSet<Route>>,
    protocol: Protocol,
    timing: Timing,
    /// The routes the protocol was told to serve: all but those to the sinks that are left.
    serving: Routes,
    /// The sinks whose lanes it leaves to others because it can do nothing with them.
    left: BTreeSet<Arc<str>>,
    /// What is owned, of which epoch.
    held: Option<(Epoch, Arc<Lease>)>,
    /// Under which id lanes were owned last.
    owner: Option<Name>,
    answers: (mpsc::UnboundedSender<u64>, mpsc::UnboundedReceiver<u64>),
    asking: Asking,
    others: Others,
    seen: Reading,
    says: Says,
}

impl Group {
    pub(super) fn new(place: Place) -> Self {
        let timing = Timing::new(place.beat);
        let serving = Routes::default();
        let seen = Reading::take();
        let says = Says::new(&place.id);
        Self {
            protocol: Protocol::new(&process(), serving.clone(), timing, seen.now),
            timing,
            serving,
            left: BTreeSet::new(),
            held: None,
            owner: None,
            answers: mpsc::unbounded_channel(),
            asking: Asking::new(place.slots.clone(), &place.id, timing, says.clone()),
            others: Others::default(),
            seen,
            says,
            place,
            parts: Vec::new(),
            all: Routes::default(),
            of_sink: BTreeMap::new(),
        }
    }

    /// Is a member from when it has something to pump until it is told to leave, and then until it has left or two beats
    /// have passed; whoever cannot wait so long ends it, and leaves the rest to the lease.
    pub(super) async fn keep(mut self, mut bindings: Bindings, leave: CancellationToken) {
        tokio::select! {
            parts = bindings.next() => self.take_in(parts),
            () = leave.cancelled() => return,
        }
        self.asking.begin();
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
                Some((number, outcome)) = self.asking.next() => Input::Reply { number, outcome },
                Some(()) = next(&mut hints) => Input::Hint,
                parts = bindings.next() => {
                    self.take_in(parts);
                    Input::Tick
                }
                () = tokio::time::sleep(wait) => Input::Tick,
            };
            self.once(input);
        }
        self.release();
    }

    /// Serves more components from now on.
    fn take_in(&mut self, parts: Vec<Part>) {
        for part in &parts {
            for (route, sink) in part.routes.iter().zip(&part.sinks) {
                let routes = self.of_sink.entry(sink.clone()).or_default();
                routes.insert(route.clone());
            }
        }
        self.parts.extend(parts);
        let routes = self.parts.iter().flat_map(|part| part.routes.iter());
        self.all = Arc::new(routes.cloned().collect());
        self.says.knows(self.all.len());
    }

    /// Looks at the group for as long as it is small. In a large one that would cost more than the time it saves.
    fn follow(&self, hints: &mut Option<BoxStream<'static, ()>>) {
        let members = self.protocol.known().map_or(0, |known| known.members.len());
        if members > MOST_HINTED {
            *hints = None;
        } else if hints.is_none() {
            let (slots, id) = (self.place.slots.clone(), self.place.id.clone());
            *hints = Some(hints::follow(slots, id, self.place.beat).boxed());
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
                Output::Send { number, request } => self.asking.send(number, request),
                Output::StandDown { order } => self.order(order, false),
                Output::Cut { order } => self.order(order, true),
                Output::Assigned(assignment) => self.assigned(&assignment, reading),
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
        let _ = self.place.orders.send(order);
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
        for part in &self.parts {
            let term = Term::Shared(lease.clone());
            part.lanes.send_replace(owned(own, part, term));
        }
        self.held = Some((own.epoch.clone(), lease));
        self.owner = self.protocol.me().cloned();
        self.place.assigned.send_modify(|times| *times += 1);
    }

    fn release(&mut self) {
        if let Some((_, lease)) = self.held.take() {
            lease.end();
            for part in &self.parts {
                part.lanes.send_replace(Lanes::none());
            }
            self.place.assigned.send_modify(|times| *times += 1);
        }
    }

    /// Takes in what the others can do.
    fn learn(&mut self) {
        let (Some(known), Some(me)) = (self.protocol.known(), self.protocol.me()) else {
            return;
        };
        self.others.learn(known, me);
        let strange = self.others.strange(&self.all);
        self.parts.iter().for_each(|part| part.learn(&strange));
    }

    /// Leaves the lanes of a sink to others while this replica can do nothing for it and another can.
    fn serve(&mut self, reading: Reading) {
        for (sink, leaves) in self.leaves() {
            self.says.serves(&sink, !leaves);
            match leaves {
                true => self.left.insert(sink),
                false => self.left.remove(&sink),
            };
        }
        let routes = match self.left.is_empty() {
            true => self.all.clone(),
            false => Arc::new(self.kept()),
        };
        self.change(routes, reading);
    }

    /// The sinks of which it is not as before whether their lanes are left to others.
    fn leaves(&self) -> Vec<(Arc<str>, bool)> {
        let unfit = self.place.unfit.borrow().clone();
        let (known, me) = (self.protocol.known(), self.protocol.me());
        let leaves = |(sink, routes): (&Arc<str>, &BTreeSet<Route>)| {
            let leaves = match (known, me) {
                (Some(known), Some(me)) if unfit.contains(sink) => {
                    others::leaves_lanes(known, me, routes)?
                }
                _ => false,
            };
            (leaves != self.left.contains(sink)).then(|| (sink.clone(), leaves))
        };
        self.of_sink.iter().filter_map(leaves).collect()
    }

    /// The routes to those sinks that are not left.
    fn kept(&self) -> BTreeSet<Route> {
        let kept = self
            .of_sink
            .iter()
            .filter(|(sink, _)| !self.left.contains(*sink));
        kept.flat_map(|(_, routes)| routes).cloned().collect()
    }

    fn change(&mut self, routes: Routes, reading: Reading) {
        if routes != self.serving {
            self.serving = routes.clone();
            self.step(reading, Input::Serve(routes));
        }
    }
}

/// The lanes of one component.
fn owned(own: &Ownership, part: &Part, term: Term) -> Lanes {
    let slots: Vec<_> = part.routes.iter().map(|route| own.slot(route)).collect();
    let of_lane = |lane| {
        let mut owned = RouteSet::default();
        for (index, slot) in slots.iter().enumerate() {
            if slot.is_some_and(|slot| slot.owns(lane)) {
                owned.insert(index);
            }
        }
        owned
    };
    Lanes::of(of_lane, term)
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
