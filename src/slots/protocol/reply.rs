//! What came in, and what is known by it.

use super::document::{Document, PROTOCOL};
use super::hold::Hold;
use super::request::{Outcome, Request};
use super::{Entry, Flight, Input, Place, Protocol};

impl Protocol {
    /// Answers whether a document was learnt just now.
    pub(super) fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Tick => {}
            Input::Reply { number, outcome } => return self.reply(number, outcome),
            Input::Hint => self.hint(),
            Input::Drained { order } => self.drained(order),
            Input::Serve(routes) => self.routes = routes,
            Input::Doubt => self.doubt(),
            Input::Leave => self.leaving = true,
        }
        false
    }

    fn reply(&mut self, number: u64, outcome: Outcome) -> bool {
        let Some(flight) = self.flight.take_if(|flight| flight.number == number) else {
            return false;
        };
        match outcome {
            Outcome::Written(document) => return self.written(&flight, document),
            Outcome::Unmatched => self.unmatched(&flight.request),
            Outcome::Shown(document) if document.protocol == PROTOCOL => {
                self.place = Place::Outside(Entry::Join)
            }
            Outcome::Shown(Document { protocol, .. }) | Outcome::Foreign(protocol) => {
                self.stand_by(protocol)
            }
            Outcome::Missing => self.place = Place::Outside(Entry::Create),
            Outcome::Failed => {
                self.unanswered();
                self.quiet = self.now + self.timing.pause;
            }
        }
        false
    }

    fn written(&mut self, flight: &Flight, document: Document) -> bool {
        if let Request::Leave { .. } = flight.request {
            self.place = Place::Gone;
            return false;
        }
        let Place::Member(member) = &mut self.place else {
            return false;
        };
        let beaten = matches!(flight.request, Request::Beat { .. });
        if member
            .learn(self.now, document, beaten, &self.timing)
            .is_err()
        {
            self.lose();
            return false;
        }
        let moves = beaten
            || matches!(
                flight.request,
                Request::Join { .. } | Request::Create { .. }
            );
        if moves {
            self.alive = Some(flight.sent);
        }
        true
    }

    fn unmatched(&mut self, request: &Request) {
        match request {
            Request::Look => {}
            Request::Beat { .. } => self.lose(),
            Request::Create { .. } | Request::Join { .. } => {
                self.lose();
                self.quiet = self.now + self.timing.pause;
            }
            Request::Ack { .. } | Request::Renew { .. } | Request::Evict { .. } => {
                self.unanswered()
            }
            Request::Leave { .. } => self.place = Place::Gone,
        }
    }

    /// The document we were in is not there any more. The deadline is, and moves no further.
    fn lose(&mut self) {
        self.place = Place::Outside(Entry::Look);
    }

    fn stand_by(&mut self, protocol: u32) {
        self.place = Place::Outside(Entry::StandBy {
            protocol,
            again: self.now + self.timing.beat,
        });
    }

    fn hint(&mut self) {
        match &mut self.place {
            Place::Member(member) => member.nudged = true,
            Place::Outside(Entry::StandBy { again, .. }) => *again = self.now,
            Place::Outside(_) | Place::Gone => {}
        }
    }

    fn drained(&mut self, order: u64) {
        if matches!(self.hold, Hold::LettingGo { order: given, .. } if given == order) {
            self.hold = Hold::Nothing;
        }
    }

    /// As if a lapse had just been noticed; and what is under way may be older than it seems.
    fn doubt(&mut self) {
        self.unanswered();
        self.lapse();
    }
}
