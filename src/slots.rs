//! Which slot is mine, or none.
//!
//! A replica pumps only the lanes it owns, so that no two replicas read, publish and mark the same
//! rows. When in doubt, own nothing: a pause is recoverable, uncoordinated publication is a
//! different guarantee. A replica that owns nothing still writes, publishes its own rows and marks
//! them; only reading waits.
//!
//! Usually the replicas agree among themselves, through one document in MongoDB ([`mongo`] drives what
//! [`protocol`] decides). Where the operator says who gets what ([`fixed`]), that is trusted as it is: two processes
//! told the same slot both own it. Which of the two it is for a collection, its first replica decides ([`binding`]).
//!
//! # What is agreed
//!
//! A group is one document: a list of members, and an epoch that names this list. Whoever changes the list gives it a
//! new epoch. A slot is a member's place in the list, so two members that mean the same epoch never mean the same
//! lane. All that can go wrong is that they mean different ones. Hence one rule: **a member owns its lanes of epoch E
//! while every member of E has said that it stood down for all others**, which is what `seen == E` says, **and only
//! until a deadline on its own clock**, because whoever is evicted can no longer be asked.
//!
//! # States
//!
//! ```text
//!   outside ── look ── nothing there ──▶ create ──▶ waits a lease ─┐
//!      ▲        └───── a document ─────▶ join ─────────────────────┴─▶ member ◀───────────────┐
//!      │                                                               │ every seen == epoch  │ drained: ack
//!      │ stood down                                                    ▼                      │
//!      └── lost ◀── not the document we were in ─────────────────── owner ── new epoch: stand down
//!                                                                      │                      ▲
//!                                                                      └─ 2½ beats: cut ── lapsed: renew
//! ```
//!
//! What the host may have in its hands is apart from that (`protocol/hold.rs`): nothing, lanes of one epoch, or an order to let
//! go that it has not answered. Nothing is acknowledged and no document is joined before it is nothing: a join writes
//! its own `seen`, so it says the same as an ack.
//!
//! # What is trusted
//!
//! - **The store applies one write at a time to one document, and what a majority acknowledged stays.** Only replies to
//!   our own acknowledged writes are learnt from. A read decides between creating, joining and standing by, and a
//!   hint makes us ask sooner; neither proves anything. An error, even one that came with a document, is no reply.
//! - **The network is not trusted.** A request may be lost, or applied late, twice, or after its sender is gone. Every
//!   filter is written so that this changes nothing or costs time. One without a reply within three quarters of a beat
//!   has none: what comes later is ignored.
//! - **Clocks are trusted to run at about one speed**, never to agree. A lease is 3 beats on the observer's clock,
//!   the cut 2½ on the owner's: a fifth of difference is borne. The deadline counts from the *send* of the last
//!   acknowledged beat, stillness from the *receipt* of the first reply that showed it: each side errs to its own loss.
//! - **The host is trusted** to compare its clock with the deadline before every hand-over, to have let go when it says
//!   `Drained`, and to draw a new process name at every start. A paused host can finish the one call it was in,
//!   and its client what it had queued until then.
//! - **The document may be dropped at any time, or replaced by an older copy** (a dump that was restored), if the copy
//!   is older than a lease and not everybody in it has been replaced since. See the end for what that excludes.
//!
//! # In doubt
//!
//! own nothing. Ownership is not a state that somebody has to leave: it is compared with the clock whenever it is used.
//!
//! - *No acknowledged beat for 2 beats:* nothing is started. *For 2½:* what is in flight is cut. The member has lapsed.
//! - *Back from a lapse:* whatever the document says the others have seen may be as old as our silence. So the first
//!   epoch that is shown is not owned but **renewed**: a new one, for which everybody stands down afresh. Back sooner
//!   than the cut, nobody can have evicted us, and the very epoch we owned is resumed. (After an election that
//!   kept everybody out, the first to come back renews for all.)
//! - *A join without an answer* may have taken place: a beat under the new id tells. If it did, that counts as a lapse.
//! - *Never back.* A lower epoch, another of the same number, the same one with other members, our id gone, or our own
//!   beat lower than we have seen it: that is another document or an older copy of ours. The deadline moves no more; we
//!   stand down and join under a new id.
//! - *Our own `seen` is absent:* we made this document, and there may be owners by one that was dropped. Nothing is
//!   acknowledged until a lease after we first saw that, and we do not leave: that would end the others' wait.
//! - *An unknown `protocol`:* every write filters on it, so nothing of it is touched. We look again once a beat.
//! - *Written, and never acknowledged by a majority:* alive in the eyes of the others, and it owns nothing. After a
//!   lease of that a member falls silent for long enough to be evicted (`mongo.rs`; to the protocol, requests are lost).
//! - *The clock itself* (`Doubt`): as after a lapse, and what is under way counts as unanswered.
//!
//! # Who can do the work
//!
//! A member that has had no broker for two leases, or whose marks have failed for long, serves no route as long as
//! another serves some: to the group that is a change of its routes like any other, a new epoch. It stays a member.
//!
//! # Why two owners cannot be
//!
//! Say A holds lanes of epoch E, B owns lanes of epoch F, and F is the later.
//!
//! 1. *A is a member of F.* Then B has seen A's `seen == F`. Only A's ack or join writes that, with F literally, number
//!    and nonce, so it means this F however late it arrives. A sent it holding nothing, and has owned nothing of an
//!    older epoch since. So A does not hold lanes of E.
//! 2. *A left.* It leaves last, holding nothing.
//! 3. *A was evicted.* The eviction found A's beat as it had been a lease before, on the evictor's clock, counted from
//!    a reply that showed it. Every beat of A that was acknowledged was sent before that reply came. So A's last
//!    deadline, counted from that send, is over, and its cut too; if A beats in the last moment, the eviction finds
//!    another beat (or, after a lapse, A renews first). If the evictor was wrong about the time because it slept, it
//!    was wrong to A's gain.
//! 4. *E is of a document that was dropped.* Whoever made the new one acknowledges nothing for a lease, and nobody
//!    settles without it or before it was evicted, which takes a lease too. A's beats match nothing: its deadline runs
//!    out.
//! 5. *F is of an older copy that was restored.* Whoever was acknowledged since the copy was made finds its own beat or
//!    the epoch set back, and leaves: its old id acknowledges nothing and takes a lease to evict. Whoever was
//!    not, has lapsed and renews: for that epoch it needs the ack of somebody who knows better.
//!
//! And an owner comes: a member that is silent is evicted a lease later by whoever is not; a drained host acks at once;
//! a wait ends after a lease. Where hosts drain at once, the model finds every lane owned
//! within six beats of the last trouble.
//!
//! # Where this goes beyond section 4, and why
//!
//! Each is an execution that the model finds when the rule is taken out (`protocol/model/variants.rs`).
//!
//! - *Resuming "the very epoch" after a lapse, however long.* A pauses. A dump is taken. B evicts A, everybody settles,
//!   B owns everything. The dump is restored; A wakes, beats, and reads the very epoch it owned with every `seen` in
//!   place. A and B own until B's next beat. The same with a joiner instead of an old owner: it had never owned the
//!   epoch it finds settled. Hence renewing, for *any* epoch that a reply shows first after a lapse.
//! - *Our own beat may go back.* A is silent for two beats (no lapse yet) and beats once more. Before B looks again, a
//!   dump from the beginning of that silence is restored. B reads the very value it has watched for a lease, and evicts
//!   a live owner. By its own beat B would have known better. Hence "or our own beat lower than we have seen it".
//! - *The nonce is needed.* A created the document, B joined, both acknowledged and own; copies of A's creation and of
//!   A's ack of epoch 2 are still on their way. The document is dropped. The copy of the creation makes a new one; C
//!   joins it, which makes its epoch 2 as well; the copy of the ack sets A's `seen` to 2. C owns the lanes that B still
//!   owns. With the nonce the old ack names another epoch 2.
//! - *Once lapsed members renew, an eviction that ignores the beat makes no second owner any more*, nor does a beat
//!   that upserts into a document that exists: whoever was gone for a lease renews before it owns. Both filters stay:
//!   one keeps a live member from being evicted, the other a dropped document from being made without a wait.
//!
//! # What this does not cover
//!
//! - A copy taken while *every* member in it was silent, restored after all of them were replaced, when one of them
//!   wakes up within two beats of the restore. Nobody in it knows better, and an election looks the same from inside.
//!   Closing it would take a wait of 2½ beats after every election in which a whole group lapsed. (The model shows it.)
//! - A majority-acknowledged write that is lost without such a restore. No lease survives that.
//! - Two ways to pump one collection, a group and static slots: `binding.rs` decides that once, and who has a collection
//!   never looks again; an administrator who deletes the decision, or the whole collection, stops all replicas first.

mod binding;
mod fixed;
mod mongo;
mod protocol;

use std::{collections::BTreeSet, sync::Arc};

use bson::Document;
use futures::future::BoxFuture;
use mongodb::{Collection, Database};
use rand::seq::IndexedRandom;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    clock::Term,
    config::Settings,
    lane::LANES,
    routes::{RouteSet, Routes},
};
use binding::{Binding, Bindings};

#[cfg(feature = "sidecar")]
pub(crate) use binding::unbind;
pub(crate) use mongo::census::Census;
#[cfg(feature = "sidecar")]
pub(crate) use mongo::census::Group;
pub(crate) use protocol::Timing;

/// The collection of the groups, in the database of the rows.
pub(crate) const COLLECTION: &str = "outbox_slots";

/// What a replica does there, in the words of MongoDB's privileges.
#[cfg(feature = "sidecar")]
pub(crate) const ACTIONS: &[&str] = &["find", "insert", "update"];

/// A replica's place among the others: of one component in the library, of all that are followed in a sidecar.
pub(crate) struct Seat {
    pub(crate) desk: Desk,
    /// Each is to be answered by [`Order::done`].
    pub(crate) orders: mpsc::UnboundedReceiver<Order>,
    /// The sinks for which this replica can do nothing; where another can, it does not keep the lanes from it.
    pub(crate) unfit: watch::Sender<Unfit>,
    /// Ends the place in good order.
    pub(crate) leave: CancellationToken,
    /// Keeps the place: a task of its own, which ends some time after `leave`.
    pub(crate) keeping: BoxFuture<'static, ()>,
}

/// Names of sinks.
pub(crate) type Unfit = Arc<BTreeSet<Arc<str>>>;

/// Where components get their share of a seat. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Desk {
    parts: mpsc::UnboundedSender<Vec<Part>>,
    assigned: watch::Receiver<u64>,
    /// Whether the group has more than one component, so that its routes have to say whose they are.
    is_shared: bool,
}

/// What a component has of a seat.
pub(crate) struct Share {
    pub(crate) ownership: Ownership,
    /// The routes that other members serve and this one does not know: what it marks is still owed to them.
    pub(crate) others: watch::Receiver<Arc<[Arc<str>]>>,
}

/// A component's share, seen from who keeps the seat.
struct Part {
    collection: String,
    /// What stands before its routes in the group.
    prefix: String,
    /// Its routes by their names in the group, in declared order.
    routes: Vec<Arc<str>>,
    /// The sink of each.
    sinks: Vec<Arc<str>>,
    whole: RouteSet,
    lanes: watch::Sender<Lanes>,
    others: watch::Sender<Arc<[Arc<str>]>>,
    /// Dropped once it was tried to bind the collection.
    waits: Option<Arc<DropGuard>>,
}

impl Seat {
    /// A place for the outbox `collection` alone, not yet kept. Its replicas are those of one service.
    pub(crate) fn of_component(settings: &Settings, database: &Database, collection: &str) -> Self {
        let id = format!("{}.{collection}", database.name());
        Self::take(settings, database, id, false)
    }

    /// A place for whatever outbox collections of the database are followed, not yet kept.
    pub(crate) fn of_database(settings: &Settings, database: &Database) -> Self {
        Self::take(settings, database, database.name().to_owned(), true)
    }

    fn take(settings: &Settings, database: &Database, id: String, is_shared: bool) -> Self {
        let slots: Collection<Document> = database.collection(COLLECTION);
        let (parts, coming) = mpsc::unbounded_channel();
        let (assigned, assignments) = watch::channel(0);
        let (orders, inbox) = mpsc::unbounded_channel();
        let (unfit, is_unfit) = watch::channel(Unfit::default());
        let leave = CancellationToken::new();
        let bindings = |terms| {
            let binding = Binding::new(slots.clone(), terms);
            Bindings::new(binding, coming, settings.beat)
        };
        let keeping: BoxFuture<'static, ()> = match settings.slot {
            Some(slot) => {
                let bindings = bindings(format!("static slots of {}", slot.count()));
                Box::pin(fixed::keep(slot, bindings, assigned, orders, leave.clone()))
            }
            None => {
                let bindings = bindings(format!("group {id}"));
                let group = mongo::Group::new(mongo::Place {
                    id,
                    slots: slots.clone(),
                    beat: settings.beat,
                    assigned,
                    orders,
                    unfit: is_unfit,
                });
                Box::pin(group.keep(bindings, leave.clone()))
            }
        };
        Self {
            desk: Desk {
                parts,
                assigned: assignments,
                is_shared,
            },
            orders: inbox,
            unfit,
            leave,
            keeping,
        }
    }
}

impl Desk {
    /// Shares for outbox collections with their routes, and the application for them: nothing is owned before that is
    /// [handed in](Application::hand_in).
    pub(crate) fn apply(&self, components: &[(&str, &Routes)]) -> (Vec<Share>, Application) {
        let (mut shares, mut parts) = (Vec::new(), Vec::new());
        let answered = CancellationToken::new();
        let waits = Arc::new(answered.clone().drop_guard());
        for (collection, routes) in components {
            let (lanes, ownership) = watch::channel(Lanes::none());
            let (others, others_routes) = watch::channel(Arc::from([]));
            let prefix = prefix(self.is_shared, collection);
            let name = |route: &crate::routes::Rendering| format!("{prefix}{}", route.name).into();
            parts.push(Part {
                collection: (*collection).to_owned(),
                routes: routes.all.iter().map(name).collect(),
                sinks: routes.all.iter().map(|route| route.sink.clone()).collect(),
                prefix,
                whole: routes.whole(),
                lanes,
                others,
                waits: Some(waits.clone()),
            });
            shares.push(Share {
                ownership: Ownership {
                    lanes: ownership,
                    only: RouteSet::every(),
                },
                others: others_routes,
            });
        }
        let application = Application {
            parts,
            answered,
            desk: self.parts.clone(),
        };
        (shares, application)
    }

    /// Counts up whenever what is owned has changed.
    pub(crate) fn assigned(&self) -> watch::Receiver<u64> {
        self.assigned.clone()
    }
}

/// For shares of a seat.
pub(crate) struct Application {
    parts: Vec<Part>,
    answered: CancellationToken,
    desk: mpsc::UnboundedSender<Vec<Part>>,
}

impl Application {
    /// Hands it in to who keeps the seat, and waits until it was tried to have each of the collections: until then who
    /// is given a slot would own nothing. Nobody joins a group before the first application, be it for nothing.
    pub(crate) async fn hand_in(self) {
        let Self {
            parts,
            answered,
            desk,
        } = self;
        // Refused by a seat that was given up, and then nothing is ever owned.
        let _ = desk.send(parts);
        answered.cancelled().await;
    }
}

/// What stands before the names of a component's routes in its group: nothing where it is alone in there.
fn prefix(is_shared: bool, collection: &str) -> String {
    match is_shared {
        true => format!("{collection}/"),
        false => String::new(),
    }
}

impl Part {
    /// What others serve of this component, of the routes that this replica does not know.
    fn learn(&self, strange: &[Arc<str>]) {
        let names = strange.iter();
        self.tell(names.filter_map(|route| route.strip_prefix(self.prefix.as_str())));
    }

    /// What others serve of this component who have it to themselves, by its own names.
    fn owe(&self, served: &BTreeSet<String>) {
        let own = |name: &str| {
            let mut names = self
                .routes
                .iter()
                .filter_map(|route| route.strip_prefix(self.prefix.as_str()));
            names.any(|own| own == name)
        };
        self.tell(served.iter().map(String::as_str).filter(|name| !own(name)));
    }

    fn tell<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let others: Arc<[Arc<str>]> = names.map(Arc::from).collect();
        self.others
            .send_if_modified(|before| std::mem::replace(before, others.clone()) != others);
    }
}

/// To let go of everything that was taken up under an earlier assignment. Nothing more may be started under it.
pub(crate) struct Order {
    /// Without finishing what is in flight.
    pub(crate) at_once: bool,
    number: u64,
    answers: mpsc::UnboundedSender<u64>,
}

impl Order {
    /// Nothing is held any more.
    pub(crate) fn done(self) {
        // Nobody waits for it who has left meanwhile.
        let _ = self.answers.send(self.number);
    }
}

/// What this replica owns at the moment, as the pump, the publisher and the writer see it.
#[derive(Clone)]
pub(crate) struct Ownership {
    lanes: watch::Receiver<Lanes>,
    /// The routes that are looked at, owned or not.
    only: RouteSet,
}

impl Ownership {
    /// What is owned for some of the routes.
    pub(crate) fn only(&self, routes: RouteSet) -> Self {
        Self {
            lanes: self.lanes.clone(),
            only: routes,
        }
    }

    /// What is owned right now. It is a right that ends: of whatever is read by it, nothing may be sent after.
    pub(crate) fn lanes(&self) -> Lanes {
        let lanes = self.lanes.borrow().clone();
        Lanes {
            only: self.only,
            ..lanes
        }
    }

    /// A lane for a new row: one that is owned, so that what this replica reads back is its own; any
    /// lane when it owns none.
    pub(crate) fn pick(&self) -> u8 {
        let mut rng = rand::rng();
        let owned = self.lanes().list();
        match owned.choose(&mut rng) {
            Some(lane) => *lane,
            None => rand::random_range(0..LANES),
        }
    }

    /// Resolves when the assignment changed since the last call. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if self.lanes.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// The lanes of one assignment.
#[derive(Clone)]
pub(crate) struct Lanes {
    /// By lane, the routes it is owned for; empty: of no lane.
    routes: Arc<[RouteSet]>,
    /// The routes that are looked at.
    only: RouteSet,
    term: Term,
}

/// What may be sent of a row, and until when.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) routes: RouteSet,
    pub(crate) term: Term,
}

impl Grant {
    /// Whether it is by the right to the row's lane, not by that of its writer.
    pub(crate) fn is_by_lane(&self) -> bool {
        match self.term {
            Term::Endless | Term::Shared(_) => true,
            Term::Until(_) => false,
        }
    }
}

impl Lanes {
    fn none() -> Self {
        Self::of(
            |_| RouteSet::default(),
            Term::Until(crate::clock::Moment::default()),
        )
    }

    fn of(routes: impl Fn(u8) -> RouteSet, term: Term) -> Self {
        Self {
            routes: (0..LANES).map(routes).collect(),
            only: RouteSet::every(),
            term,
        }
    }

    /// In ascending order; none once the right has ended.
    pub(crate) fn list(&self) -> Vec<u8> {
        if !self.term.holds() {
            return Vec::new();
        }
        (0..LANES)
            .filter(|&lane| !self.routes(lane).is_empty())
            .collect()
    }

    /// The same, looked at for some of the routes.
    pub(crate) fn only(&self, routes: RouteSet) -> Self {
        Self {
            only: routes,
            ..self.clone()
        }
    }

    /// The routes that `lane` is owned for.
    fn routes(&self, lane: u8) -> RouteSet {
        let owned = self.routes.get(usize::from(lane));
        owned.map_or(RouteSet::default(), |owned| owned.intersection(self.only))
    }

    /// What may be sent of the rows of `lane`, if anything.
    pub(crate) fn grant(&self, lane: u8) -> Option<Grant> {
        let routes = self.routes(lane);
        (!routes.is_empty() && self.term.holds()).then(|| Grant {
            routes,
            term: self.term.clone(),
        })
    }
}
