//! Which replica pumps which lanes: the agreement, as a pure state machine.
//!
//! Nothing here reads a clock or a socket. The host calls [`Protocol::step`] with the time on its own monotonic
//! clock and with what happened; out come requests to the store, orders to the host, and what it owns until when.
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
//! What the host may have in its hands is apart from that (`hold.rs`): nothing, lanes of one epoch, or an order to let
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
//!   `Drained`, and to draw a new process name at every start. A paused host can finish the one call it was in.
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
//! - *The clock itself* (`Doubt`): as after a lapse, and what is under way counts as unanswered.
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
//! Each is an execution that the model finds when the rule is taken out (`model/variants.rs`).
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
//! - Which collection belongs to which group, static slots, when a route is withdrawn for want of a broker: the host.

mod ask;
mod assignment;
mod document;
mod hold;
mod membership;
mod reply;
mod request;
mod tell;
mod timing;
mod watch;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use assignment::{Assignment, Output, Ownership, Reason};
pub use document::{Document, Epoch, Member, Name, PROTOCOL, Route, Routes};
pub use request::{Outcome, Request};
pub use timing::{Moment, Timing};

use crate::lane::Slot;
use document::Names;
use hold::Hold;
use membership::Membership;

/// What happens to a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// What came of the request of this number. Any but the one awaited is ignored.
    Reply { number: u64, outcome: Outcome },
    /// The change stream showed that the epoch or a `seen` changed, or the stream was (re)opened.
    Hint,
    /// The host holds nothing any more: everything in flight was resolved or cut since this order was given.
    Drained { order: u64 },
    /// The host serves these routes from now on.
    Serve(Routes),
    /// The host's clock cannot be trusted over the last while (the wall clock ran ahead of it by a beat).
    Doubt,
    /// Let go of everything and leave the group.
    Leave,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Protocol {
    timing: Timing,
    names: Names,
    routes: Routes,
    now: Moment,
    place: Place,
    hold: Hold,
    /// Send of the last acknowledged beat or join: ownership is counted from here. It outlives the membership, so
    /// that what is still held of it is cut in time. A creation sets it too, to no effect: the wait is longer.
    alive: Option<Moment>,
    flight: Option<Flight>,
    leaving: bool,
    /// After a failure, nothing is sent before this.
    quiet: Moment,
    requests: u64,
    orders: u64,
    told: Assignment,
    outputs: Vec<Output>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Not in a document, and this is the next thing to try.
    Outside(Entry),
    Member(Membership),
    /// Has left for good.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Look,
    Create,
    Join,
    StandBy { protocol: u32, again: Moment },
}

/// The request without a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight {
    number: u64,
    sent: Moment,
    request: Request,
}

impl Protocol {
    /// `process` is a name drawn anew at every start. The first request comes from the first step.
    pub fn new(process: &str, routes: Routes, timing: Timing, now: Moment) -> Protocol {
        Protocol {
            timing,
            names: Names::new(process),
            routes,
            now,
            place: Place::Outside(Entry::Look),
            hold: Hold::Nothing,
            alive: None,
            flight: None,
            leaving: false,
            quiet: now,
            requests: 0,
            orders: 0,
            told: Assignment::None(Reason::Joining),
            outputs: Vec::new(),
        }
    }

    /// The only way in. Time first, then what came, then what follows from both.
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Output> {
        self.now = self.now.max(now);
        self.pass_time();
        let fresh = self.take(input);
        self.settle();
        self.ask(fresh);
        self.tell();
        std::mem::take(&mut self.outputs)
    }

    /// Asked before every hand-over, with the clock of that moment.
    pub fn owns(&self, route: &str, lane: u8, now: Moment) -> bool {
        self.told.owns(route, lane, now)
    }

    /// As it was last told to the host.
    pub fn assignment(&self) -> &Assignment {
        &self.told
    }

    /// The slots that the epoch last acknowledged will give us once it is settled, to prepare for them.
    pub fn prospect(&self) -> Vec<(Route, Slot)> {
        let Place::Member(member) = &self.place else {
            return Vec::new();
        };
        member
            .known
            .as_ref()
            .map_or_else(Vec::new, |known| known.slots(&member.id, &self.routes))
    }

    /// The document as last acknowledged, for whoever wants to report on the group.
    pub fn known(&self) -> Option<&Document> {
        match &self.place {
            Place::Member(member) => member.known.as_ref(),
            Place::Outside(_) | Place::Gone => None,
        }
    }

    /// Nothing is owned, held or asked for ever again.
    pub fn gone(&self) -> bool {
        self.place == Place::Gone
    }

    /// When the next tick is needed, if nothing else comes before.
    pub fn next(&self) -> Moment {
        let asking = match (&self.flight, &self.place) {
            (Some(flight), _) => Some(flight.sent + self.timing.timeout),
            (None, Place::Outside(Entry::StandBy { again, .. })) => Some(*again),
            (None, Place::Outside(_)) => self.hold.is_nothing().then_some(self.quiet),
            (None, Place::Member(member)) => {
                Some(member.next(self.now, &self.timing).max(self.quiet))
            }
            (None, Place::Gone) => None,
        };
        let ends = [self.stop_at(), self.cut_at()]
            .into_iter()
            .flatten()
            .filter(|at| *at > self.now);
        ends.chain(asking)
            .min()
            .unwrap_or(self.now + self.timing.beat)
            .max(self.now + self.timing.pause / 16)
    }

    fn stop_at(&self) -> Option<Moment> {
        Some(self.alive? + self.timing.stop)
    }

    fn cut_at(&self) -> Option<Moment> {
        Some(self.alive? + self.timing.cut)
    }

    fn pass_time(&mut self) {
        if self
            .flight
            .as_ref()
            .is_some_and(|flight| self.now >= flight.sent + self.timing.timeout)
        {
            self.unanswered();
        }
        if self.cut_at().is_some_and(|at| self.now >= at) {
            self.lapse();
        }
    }

    /// Too long without an acknowledged beat: whatever is held is cut, and this epoch is not owned again.
    fn lapse(&mut self) {
        self.alive = None;
        if let Place::Member(member) = &mut self.place {
            member.lapsed = member.known.is_some();
        }
        self.let_go(true);
    }

    fn unanswered(&mut self) {
        self.flight = None;
        if let Place::Member(member) = &mut self.place {
            member.restless = true;
        }
    }
}
