//! A few replicas, one store and the network between them, in steps of half a beat.
//!
//! What goes well is free and at once; what goes wrong (a request held back, doubled or answered by a stale primary,
//! a reply held back, a pause, a crash, a dropped document ...) costs one of a few troubles. Whatever was held back
//! may arrive at any later moment, or never, for nothing. All orders of what is free are explored.

use std::rc::Rc;
use std::time::Duration;

use crate::clock::Moment;

use super::super::{Document, Input, Outcome, Request, Routes, Timing};
use super::replica::{Lanes, Replica, Sent, covered, overlap};
use super::store::{Letter, Variant, apply};

pub const UNIT: Duration = Duration::from_secs(1);
pub const BEAT: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: u32,
    pub troubles: u8,
    pub doc: Option<Document>,
    down: bool,
    dump: Option<(u32, Option<Document>)>,
    pub seats: Vec<Seat>,
    mail: Vec<Mail>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    pub replica: Option<Rc<Replica>>,
    /// How many processes have sat here, and how many still may.
    starts: u8,
    may_start: u8,
    paused: bool,
    lazy: bool,
    hinted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mail {
    seat: u8,
    process: u8,
    number: u64,
    held_back: bool,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    Request(Letter),
    Reply(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start(u8),
    /// The request is applied and answered; a reply held back arrives.
    Deliver(u8),
    Drain(u8),
    Hint(u8),
    Resume(u8),
    Elect,
    Advance,
    // From here on each costs a trouble.
    HoldBack(u8),
    Double(u8),
    AnswerLate(u8),
    AnswerFailed(u8),
    AnswerStale(u8),
    DrainLate(u8),
    Pause(u8),
    Crash(u8),
    Leave(u8),
    Withdraw(u8),
    Down,
    Drop,
    Dump,
    Restore,
}

/// What a run may meet.
#[derive(Clone, Debug)]
pub struct Rules {
    pub variant: Variant,
    pub timing: Timing,
    pub routes: Routes,
    /// What `Withdraw` leaves of the routes.
    pub fewer: Routes,
    pub until: u32,
    pub hints: bool,
    /// Also restore a dump of whose members none is left in the document. Not covered by the protocol.
    pub any_dump: bool,
    /// Which troubles there are, by a name each, as in `Action`.
    pub menu: &'static [Trouble],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    HoldBack,
    Double,
    AnswerLate,
    AnswerFailed,
    AnswerStale,
    DrainLate,
    Pause,
    Crash,
    Leave,
    Withdraw,
    Down,
    Drop,
    Restore,
}

impl World {
    pub fn new(seats: usize, starts: u8, troubles: u8) -> World {
        let seat = Seat {
            replica: None,
            starts: 0,
            may_start: starts,
            paused: false,
            lazy: false,
            hinted: false,
        };
        World {
            now: 0,
            troubles,
            doc: None,
            down: false,
            dump: None,
            seats: vec![seat; seats],
            mail: Vec::new(),
        }
    }

    pub fn moment(&self) -> Moment {
        Moment(UNIT * self.now)
    }

    fn index(&self) -> impl Iterator<Item = u8> + use<> {
        0..u8::try_from(self.seats.len()).unwrap_or(u8::MAX)
    }

    /// A request not yet applied, or a reply whose reader can read.
    fn deliverable(&self, mail: &Mail) -> bool {
        let seat = &self.seats[usize::from(mail.seat)];
        match mail.what {
            What::Request(_) => true,
            What::Reply(_) => !seat.paused && seat.replica.is_some(),
        }
    }

    fn drainable(&self, seat: u8) -> bool {
        let seat = &self.seats[usize::from(seat)];
        !seat.paused
            && seat
                .replica
                .as_ref()
                .is_some_and(|replica| replica.draining.is_some())
    }

    pub fn actions(&self, rules: &Rules, into: &mut Vec<Action>) {
        into.clear();
        self.free(rules, into);
        if self.troubles > 0 {
            self.costly(rules, into);
        }
    }

    fn free(&self, rules: &Rules, into: &mut Vec<Action>) {
        let mut idle = true;
        for (i, mail) in self.mail.iter().enumerate() {
            if self.deliverable(mail) {
                into.push(Action::Deliver(small(i)));
                idle &= mail.held_back;
            }
        }
        for i in self.index() {
            let seat = &self.seats[usize::from(i)];
            if seat.replica.is_none() && seat.may_start > 0 {
                into.push(Action::Start(i));
            }
            if self.drainable(i) {
                into.push(Action::Drain(i));
                idle &= seat.lazy;
            }
            if seat.hinted && !seat.paused && seat.replica.is_some() {
                into.push(Action::Hint(i));
            }
            if seat.paused {
                into.push(Action::Resume(i));
            }
        }
        if self.down {
            into.push(Action::Elect);
        }
        if idle && self.now < rules.until {
            into.push(Action::Advance);
        }
    }

    fn costly(&self, rules: &Rules, into: &mut Vec<Action>) {
        let may = |trouble: Trouble| rules.menu.contains(&trouble);
        for (i, mail) in self
            .mail
            .iter()
            .enumerate()
            .filter(|(_, mail)| !mail.held_back)
        {
            if let What::Request(_) = mail.what {
                let i = small(i);
                into.extend(may(Trouble::HoldBack).then_some(Action::HoldBack(i)));
                into.extend(may(Trouble::Double).then_some(Action::Double(i)));
                into.extend(may(Trouble::AnswerLate).then_some(Action::AnswerLate(i)));
                into.extend(may(Trouble::AnswerFailed).then_some(Action::AnswerFailed(i)));
                into.extend(may(Trouble::AnswerStale).then_some(Action::AnswerStale(i)));
            }
        }
        for i in self.index() {
            let seat = &self.seats[usize::from(i)];
            let Some(replica) = &seat.replica else {
                continue;
            };
            let lazy = may(Trouble::DrainLate) && !seat.lazy && replica.draining.is_some();
            into.extend(lazy.then_some(Action::DrainLate(i)));
            into.extend((may(Trouble::Pause) && !seat.paused).then_some(Action::Pause(i)));
            into.extend(may(Trouble::Crash).then_some(Action::Crash(i)));
            into.extend((may(Trouble::Leave) && !replica.leaving()).then_some(Action::Leave(i)));
            into.extend(may(Trouble::Withdraw).then_some(Action::Withdraw(i)));
        }
        into.extend((may(Trouble::Down) && !self.down).then_some(Action::Down));
        into.extend((may(Trouble::Drop) && self.doc.is_some()).then_some(Action::Drop));
        if may(Trouble::Restore) {
            match &self.dump {
                None => into.push(Action::Dump),
                Some((at, dump))
                    if self.now >= at + 3 * BEAT
                        && (rules.any_dump || self.kept(dump.as_ref())) =>
                {
                    into.push(Action::Restore);
                }
                Some(_) => {}
            }
        }
    }

    /// Somebody who is in the dump still is in the document.
    fn kept(&self, dump: Option<&Document>) -> bool {
        let (Some(dump), Some(document)) = (dump, &self.doc) else {
            return true;
        };
        dump.members
            .iter()
            .any(|member| document.member(&member.id).is_some())
    }

    pub fn act(&mut self, action: Action, rules: &Rules) {
        match action {
            Action::Start(i) => self.start(i, rules),
            Action::Deliver(i) => self.deliver(i, rules),
            Action::Drain(i) => {
                self.seats[usize::from(i)].lazy = false;
                self.with(i, |replica, now| replica.drain(now));
            }
            Action::Hint(i) => {
                self.seats[usize::from(i)].hinted = false;
                self.with(i, |replica, now| replica.step(now, Input::Hint));
            }
            Action::Resume(i) => {
                self.seats[usize::from(i)].paused = false;
                self.with(i, |replica, now| replica.step(now, Input::Tick));
            }
            Action::Elect => self.down = false,
            Action::Advance => self.advance(),
            _ => {
                self.troubles -= u8::from(action != Action::Dump);
                self.trouble(action, rules);
            }
        }
        self.mail.sort_by_key(|mail| {
            (
                mail.seat,
                mail.process,
                mail.number,
                mail.held_back,
                matches!(mail.what, What::Request(_)),
            )
        });
    }

    fn trouble(&mut self, action: Action, rules: &Rules) {
        match action {
            Action::HoldBack(i) => self.mail[usize::from(i)].held_back = true,
            Action::Double(i) => {
                let mut copy = self.mail[usize::from(i)].clone();
                copy.held_back = true;
                self.mail.push(copy);
            }
            Action::AnswerLate(i) => {
                let mail = self.mail.remove(usize::from(i));
                if let Some(outcome) = self.apply(&mail, rules) {
                    self.mail.push(Mail {
                        held_back: true,
                        what: What::Reply(outcome),
                        ..mail
                    });
                }
            }
            Action::AnswerFailed(i) => {
                let mail = self.mail.remove(usize::from(i));
                if self.apply(&mail, rules).is_some() {
                    self.mail.push(Mail {
                        what: What::Reply(Outcome::Failed),
                        ..mail
                    });
                }
            }
            Action::AnswerStale(i) => self.answer_stale(i, rules),
            Action::DrainLate(i) => self.seats[usize::from(i)].lazy = true,
            Action::Pause(i) => self.seats[usize::from(i)].paused = true,
            Action::Crash(i) => self.crash(i),
            Action::Leave(i) => self.with(i, |replica, now| replica.step(now, Input::Leave)),
            Action::Withdraw(i) => {
                let fewer = rules.fewer.clone();
                self.with(i, |replica, now| replica.step(now, Input::Serve(fewer)));
            }
            Action::Down => self.down = true,
            Action::Drop => self.doc = None,
            Action::Dump => self.dump = Some((self.now, self.doc.clone())),
            Action::Restore => {
                if let Some((_, document)) = self.dump.take() {
                    self.doc = document;
                }
            }
            _ => {}
        }
    }

    fn start(&mut self, i: u8, rules: &Rules) {
        let now = self.moment();
        let seat = &mut self.seats[usize::from(i)];
        seat.starts += 1;
        seat.may_start -= 1;
        let name = format!("{}{}", char::from(b'a' + i), seat.starts);
        seat.replica = Some(Rc::new(Replica::new(
            &name,
            rules.routes.clone(),
            rules.timing,
            now,
            rules.variant,
        )));
        self.with(i, |replica, now| replica.step(now, Input::Tick));
    }

    fn crash(&mut self, i: u8) {
        let seat = &mut self.seats[usize::from(i)];
        *seat = Seat {
            replica: None,
            paused: false,
            lazy: false,
            hinted: false,
            ..seat.clone()
        };
        self.mail
            .retain(|mail| mail.seat != i || matches!(mail.what, What::Request(_)));
    }

    fn deliver(&mut self, i: u8, rules: &Rules) {
        let mail = self.mail.remove(usize::from(i));
        let outcome = match &mail.what {
            What::Request(_) => self.apply(&mail, rules),
            What::Reply(outcome) => Some(outcome.clone()),
        };
        let seat = &self.seats[usize::from(mail.seat)];
        let Some(outcome) = outcome else { return };
        if seat.paused {
            self.mail.push(Mail {
                what: What::Reply(outcome),
                ..mail
            });
        } else {
            self.with(mail.seat, |replica, now| {
                replica.reply(now, mail.number, outcome)
            });
        }
    }

    /// Nothing when nobody is left to read the answer.
    fn apply(&mut self, mail: &Mail, rules: &Rules) -> Option<Outcome> {
        let What::Request(letter) = &mail.what else {
            return None;
        };
        let outcome = if self.down {
            Outcome::Failed
        } else {
            let before = self.doc.as_ref().map(news);
            let outcome = apply(&mut self.doc, letter, rules.variant);
            if rules.hints && before != self.doc.as_ref().map(news) {
                self.seats
                    .iter_mut()
                    .for_each(|seat| seat.hinted = seat.replica.is_some());
            }
            outcome
        };
        let seat = &self.seats[usize::from(mail.seat)];
        (seat.replica.is_some() && seat.starts == mail.process).then_some(outcome)
    }

    /// A primary that has lost its majority applies it, shows it, and loses it again.
    fn answer_stale(&mut self, i: u8, rules: &Rules) {
        let mail = self.mail.remove(usize::from(i));
        let What::Request(letter) = &mail.what else {
            return;
        };
        let mut stale = self.doc.clone();
        let shown = apply(&mut stale, letter, rules.variant);
        let outcome = if rules.variant == Variant::Unacknowledged {
            shown
        } else {
            Outcome::Failed
        };
        let seat = &self.seats[usize::from(mail.seat)];
        if seat.replica.is_some() && seat.starts == mail.process && !seat.paused {
            self.with(mail.seat, |replica, now| {
                replica.reply(now, mail.number, outcome)
            });
        }
    }

    fn advance(&mut self) {
        self.now += 1;
        for i in self.index() {
            let seat = &mut self.seats[usize::from(i)];
            seat.hinted = false;
            if !seat.paused && seat.replica.is_some() {
                self.with(i, |replica, now| replica.step(now, Input::Tick));
            }
        }
    }

    fn with(&mut self, i: u8, step: impl FnOnce(&mut Replica, Moment) -> Option<Sent>) {
        let now = self.moment();
        let seat = &mut self.seats[usize::from(i)];
        let Some(replica) = seat.replica.as_mut() else {
            return;
        };
        let replica = Rc::make_mut(replica);
        let sent = step(replica, now);
        if replica.machine.gone() {
            seat.replica = None;
        }
        if let Some(Sent { number, letter }) = sent {
            let what = What::Request(letter);
            self.mail.push(Mail {
                seat: i,
                process: seat.starts,
                number,
                held_back: false,
                what,
            });
        }
    }

    // ---- the laws

    fn replicas(&self) -> impl Iterator<Item = &Replica> {
        self.seats.iter().filter_map(|seat| seat.replica.as_deref())
    }

    pub fn held(&self) -> impl Iterator<Item = Lanes> {
        self.replicas().map(|replica| replica.held(self.moment()))
    }

    /// A lane in two hands, in flight or to be started.
    pub fn broken(&self) -> bool {
        overlap(self.held()).is_some()
    }

    /// Every lane is owned by somebody.
    pub fn whole(&self, routes: &Routes) -> bool {
        covered(
            routes,
            self.replicas().map(|replica| replica.owned(self.moment())),
        )
    }

    /// From here on nothing goes wrong any more: after how many half beats is every lane owned? None when not within
    /// `bound`, or when nobody is left to own any.
    pub fn recovers(&self, rules: &Rules, bound: u32) -> Option<u32> {
        let mut world = self.clone();
        world.troubles = 0;
        world.down = false;
        for i in world.index() {
            if world.seats[usize::from(i)].paused {
                world.act(Action::Resume(i), rules);
            }
        }
        let rules = Rules {
            until: u32::MAX,
            ..rules.clone()
        };
        world
            .mail
            .iter_mut()
            .for_each(|mail| mail.held_back = false);
        for spent in 0..=bound {
            while let Some(next) = world.prompt() {
                world.act(next, &rules);
            }
            if world.broken() {
                return None;
            }
            if world.whole(&rules.fewer) || world.replicas().next().is_none() {
                return Some(spent);
            }
            world.act(Action::Advance, &rules);
        }
        None
    }

    /// Lets everything go well until every lane is owned and nothing is on its way: a state to start from. Of the
    /// requests that `double` picks a copy stays behind.
    pub fn settled(mut self, seats: u8, rules: &Rules, double: fn(&Request) -> bool) -> World {
        let troubles = std::mem::replace(&mut self.troubles, u8::MAX);
        let rules = Rules {
            until: u32::MAX,
            ..rules.clone()
        };
        for i in 0..seats {
            self.act(Action::Start(i), &rules);
        }
        for _ in 0..200 {
            match self.prompt() {
                Some(Action::Deliver(i)) if self.picked(i, double) => {
                    self.act(Action::Double(i), &rules);
                    let prompt = self.prompt().unwrap_or(Action::Advance);
                    self.act(prompt, &rules);
                }
                Some(next) => self.act(next, &rules),
                None if self.whole(&rules.routes) => break,
                None => self.act(Action::Advance, &rules),
            }
        }
        assert!(
            self.whole(&rules.routes),
            "a fault-free group does not settle: {self:#?}"
        );
        self.troubles = troubles;
        self
    }

    fn picked(&self, i: u8, double: fn(&Request) -> bool) -> bool {
        matches!(&self.mail[usize::from(i)].what, What::Request(letter) if double(&letter.request))
    }

    /// What happens at once when nothing goes wrong.
    fn prompt(&self) -> Option<Action> {
        let ready = |mail: &Mail| !mail.held_back && self.deliverable(mail);
        let mail = self
            .mail
            .iter()
            .position(ready)
            .map(|i| Action::Deliver(small(i)));
        mail.or_else(|| self.index().find(|i| self.drainable(*i)).map(Action::Drain))
    }
}

/// What a look at the document calls news: not a beat.
pub fn news(document: &Document) -> (super::super::Epoch, Vec<Option<super::super::Epoch>>) {
    (
        document.epoch.clone(),
        document
            .members
            .iter()
            .map(|member| member.seen.clone())
            .collect(),
    )
}

fn small(i: usize) -> u8 {
    u8::try_from(i).unwrap_or(u8::MAX)
}
