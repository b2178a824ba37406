//! What a member knows of its document, and what it owes it.

use super::document::{Document, Epoch, Member, Name, PROTOCOL, Routes};
use super::request::Request;
use super::timing::Timing;
use super::watch::Watch;
use crate::clock::Moment;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Membership {
    pub id: Name,
    /// The last acknowledged reply; none while it is unknown whether the join or creation took place.
    pub known: Option<Document>,
    /// Receipt of the first reply that showed our own `seen` absent.
    bare: Option<Moment>,
    /// No beat was acknowledged until everything had to be cut, and no reply has come since.
    pub lapsed: bool,
    /// The epoch in which we came back after a lapse, or found ourselves although our join was never answered. What it
    /// says about the others may be as old as our silence: it is not owned, and has to be renewed.
    spent: Option<Epoch>,
    watch: Watch,
    /// When the last beat (or join) was sent, answered or not.
    beaten: Moment,
    /// The next thing to send is a beat, due or not.
    pub restless: bool,
    /// A hint came since the last beat was sent.
    pub nudged: bool,
}

/// This is not the document we were in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

impl Membership {
    pub fn new(id: Name, now: Moment) -> Membership {
        Membership {
            id,
            known: None,
            bare: None,
            lapsed: false,
            spent: None,
            watch: Watch::default(),
            beaten: now,
            restless: false,
            nudged: false,
        }
    }

    /// Takes in the document of an acknowledged write of ours. `beaten`: that write was a beat.
    pub fn learn(
        &mut self,
        now: Moment,
        document: Document,
        beaten: bool,
        timing: &Timing,
    ) -> Result<(), Lost> {
        let mine = document.member(&self.id).ok_or(Lost)?;
        if document.protocol != PROTOCOL || !self.follows(&document, mine, beaten) {
            return Err(Lost);
        }
        self.bare = if mine.seen.is_some() {
            None
        } else {
            self.bare.or(Some(now))
        };
        self.watch.note(now, &self.id, &document, timing.stop);
        let adopted = beaten && self.known.is_none();
        if self.lapsed || adopted {
            self.spent = Some(document.epoch.clone());
            self.lapsed = false;
        } else if self.spent.as_ref() != Some(&document.epoch) {
            self.spent = None;
        }
        self.known = Some(document);
        Ok(())
    }

    /// Never back: a lower epoch, the same one with other members, another one of the same number, or our own beat
    /// set back, is another document or an older copy of ours.
    fn follows(&self, document: &Document, mine: &Member, beaten: bool) -> bool {
        let Some(known) = &self.known else {
            return true;
        };
        let floor = self.mine().map_or(0, |mine| mine.beat) + u64::from(beaten);
        let onward = document.epoch.number > known.epoch.number
            || (document.epoch == known.epoch && document.same_roster(known));
        onward && mine.beat >= floor
    }

    fn mine(&self) -> Option<&Member> {
        self.known.as_ref()?.member(&self.id)
    }

    /// The epoch whose lanes are ours as far as the document goes: every member has seen it, and we were
    /// there.
    pub fn granted(&self) -> Option<&Epoch> {
        let known = self.known.as_ref()?;
        (known.settled() && !self.lapsed && self.spent.is_none()).then_some(&known.epoch)
    }

    /// A member without `seen` may not leave: whoever it kept waiting for has to be waited for still.
    pub fn may_leave(&self) -> bool {
        self.mine().is_some_and(|mine| mine.seen.is_some())
    }

    /// The wait of a creator is over, or was never needed.
    fn waited(&self, now: Moment, timing: &Timing) -> bool {
        self.bare.is_none_or(|since| now >= since + timing.lease)
    }

    pub fn waiting(&self) -> bool {
        self.bare.is_some()
    }

    /// A member to evict. To be asked only right after a reply was learnt.
    pub fn expired(&self, now: Moment, timing: &Timing) -> Option<(&Member, &Epoch)> {
        let known = self.known.as_ref()?;
        Some((self.watch.expired(now, known, timing.lease)?, &known.epoch))
    }

    /// The document is not what we want of it: our routes are others, or its epoch is one to renew.
    pub fn stale(&self, routes: &Routes) -> Option<&Epoch> {
        let known = self.known.as_ref()?;
        let mine = known.member(&self.id)?;
        (self.spent.is_some() || mine.routes != *routes).then_some(&known.epoch)
    }

    /// The epoch to acknowledge, once nothing is held of any other.
    pub fn unseen(&self, now: Moment, timing: &Timing) -> Option<&Epoch> {
        let known = self.known.as_ref()?;
        let seen = known.member(&self.id)?.seen.as_ref() == Some(&known.epoch);
        (!seen && self.waited(now, timing)).then_some(&known.epoch)
    }

    pub fn overdue(&self, now: Moment, timing: &Timing) -> bool {
        now >= self.beaten + timing.beat
    }

    /// Somebody's lease has run out in our eyes, or a hint came, or a write of ours matched nothing: look again now.
    pub fn uneasy(&self, now: Moment, timing: &Timing) -> bool {
        self.restless
            || (self.nudged && now >= self.nudge_at(timing))
            || self.watch.next(timing.lease).is_some_and(|at| now >= at)
    }

    fn nudge_at(&self, timing: &Timing) -> Moment {
        self.beaten + timing.nudge(self.known.as_ref().map_or(0, |known| known.members.len()))
    }

    pub fn beat(&mut self, now: Moment) -> Request {
        self.beaten = now;
        self.restless = false;
        self.nudged = false;
        Request::Beat {
            id: self.id.clone(),
        }
    }

    /// When there is something to do, if no reply and no hint comes before.
    pub fn next(&self, now: Moment, timing: &Timing) -> Moment {
        let again = self.restless.then_some(now);
        let nudge = self.nudged.then(|| self.nudge_at(timing));
        let wait = self
            .bare
            .map(|since| since + timing.lease)
            .filter(|over| *over > now);
        let lease = self.watch.next(timing.lease);
        [again, nudge, wait, lease]
            .into_iter()
            .flatten()
            .fold(self.beaten + timing.beat, Moment::min)
    }
}
