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

use std::{sync::Arc, time::Duration};

use bson::Document;
use futures::{StreamExt, stream::BoxStream};
use mongodb::Collection;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Lanes, Order, Part,
    binding::Bindings,
    protocol::{Assignment, Epoch, Input, Name, Output, Ownership, Protocol, Routes, Timing},
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
    pub(super) fit: watch::Receiver<bool>,
}

pub(super) struct Group {
    place: Place,
    parts: Vec<Part>,
    /// The routes of all parts.
    all: Routes,
    protocol: Protocol,
    timing: Timing,
    /// The routes the protocol was told to serve: all or, where this replica is not fit, none.
    serving: Routes,
    /// Whether it leaves its lanes to others because it can do nothing with them.
    leaves: bool,
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
            leaves: false,
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

    /// Leaves the lanes to others while this replica cannot work on them and another can.
    fn serve(&mut self, reading: Reading) {
        let leaves = match (self.protocol.known(), self.protocol.me()) {
            (Some(known), Some(me)) if !*self.place.fit.borrow() => others::leaves_lanes(known, me),
            _ => Some(false),
        };
        let Some(leaves) = leaves else { return };
        if std::mem::replace(&mut self.leaves, leaves) != leaves {
            self.says.serves(!leaves);
        }
        match leaves {
            true => self.change(Routes::default(), reading),
            false => self.change(self.all.clone(), reading),
        }
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
