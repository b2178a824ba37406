//! What to ask of the store next: at most one thing.

use super::membership::Membership;
use super::request::Request;
use super::{Entry, Flight, Output, Place, Protocol};

impl Protocol {
    pub(super) fn ask(&mut self, fresh: bool) {
        if self.flight.is_some() || self.now < self.quiet {
            return;
        }
        if self.leaving && self.hold.is_nothing() && !self.must_leave() {
            self.place = Place::Gone;
        }
        let request = match self.place {
            Place::Outside(entry) => self.enter(entry),
            Place::Member(_) => self.keep(fresh),
            Place::Gone => None,
        };
        if let Some(request) = request {
            self.requests += 1;
            let number = self.requests;
            self.flight = Some(Flight {
                number,
                sent: self.now,
                request: request.clone(),
            });
            self.outputs.push(Output::Send { number, request });
        }
    }

    fn must_leave(&self) -> bool {
        matches!(&self.place, Place::Member(member) if member.may_leave())
    }

    /// From outside. A join says "I have stood down", so nothing may be held.
    fn enter(&mut self, entry: Entry) -> Option<Request> {
        if !self.hold.is_nothing() || self.leaving {
            return None;
        }
        match entry {
            Entry::StandBy { again, .. } if self.now < again => return None,
            Entry::Look | Entry::StandBy { .. } => return Some(Request::Look),
            Entry::Create | Entry::Join => {}
        }
        let (id, nonce) = (self.names.fresh(), self.names.fresh());
        self.place = Place::Member(Membership::new(id.clone(), self.now));
        self.alive = None;
        let routes = self.routes.clone();
        Some(if entry == Entry::Join {
            Request::Join { id, routes, nonce }
        } else {
            Request::Create { id, routes, nonce }
        })
    }

    /// As a member: a beat that is due comes before all else, and evicting before acknowledging, which it would undo.
    fn keep(&mut self, fresh: bool) -> Option<Request> {
        let (now, timing) = (self.now, &self.timing);
        let Place::Member(member) = &mut self.place else {
            return None;
        };
        if self.leaving && self.hold.is_nothing() {
            return Some(Request::Leave {
                id: member.id.clone(),
                nonce: self.names.fresh(),
            });
        }
        if member.overdue(now, timing) {
            return Some(member.beat(now));
        }
        if fresh && let Some((other, epoch)) = member.expired(now, timing) {
            let (id, beat, epoch) = (other.id.clone(), other.beat, epoch.clone());
            return Some(Request::Evict {
                id,
                beat,
                epoch,
                nonce: self.names.fresh(),
            });
        }
        if member.restless || self.leaving {
            return member.uneasy(now, timing).then(|| member.beat(now));
        }
        if let Some(epoch) = member.stale(&self.routes) {
            let (id, epoch, routes) = (member.id.clone(), epoch.clone(), self.routes.clone());
            return Some(Request::Renew {
                id,
                epoch,
                routes,
                nonce: self.names.fresh(),
            });
        }
        if self.hold.is_nothing()
            && let Some(epoch) = member.unseen(now, timing)
        {
            return Some(Request::Ack {
                id: member.id.clone(),
                epoch: epoch.clone(),
            });
        }
        member.uneasy(now, timing).then(|| member.beat(now))
    }
}
