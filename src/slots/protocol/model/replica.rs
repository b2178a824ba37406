//! One process: the protocol, and a host that works on whatever it owns for as long as it may.

use std::time::Duration;

use crate::clock::Moment;

use super::super::{Assignment, Input, Outcome, Output, Protocol, Route, Routes, Timing};
use super::store::{Letter, Variant, distort, misread};
use crate::lane::LANES;

/// Lanes as bits, per route.
pub type Lanes = Vec<(Route, u128)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    pub machine: Protocol,
    /// Everything handed out and not let go since the host last stood down.
    holds: Lanes,
    /// An order to stand down that the host has not carried out yet.
    pub draining: Option<u64>,
    variant: Variant,
}

pub struct Sent {
    pub number: u64,
    pub letter: Letter,
}

impl Replica {
    pub fn new(
        process: &str,
        routes: Routes,
        timing: Timing,
        now: Moment,
        variant: Variant,
    ) -> Replica {
        let machine = Protocol::new(process, routes, timing, now);
        Replica {
            machine,
            holds: Vec::new(),
            draining: None,
            variant,
        }
    }

    /// One step, and what the host does at once about it; what is to be sent is returned.
    pub fn step(&mut self, now: Moment, input: Input) -> Option<Sent> {
        let mut sent = None;
        let mut inputs = vec![self.bend(input)];
        if self.variant.forgets() {
            inputs.push(Input::Tick);
        }
        while let Some(input) = inputs.pop() {
            let outputs = self.machine.step(now, input);
            for output in outputs {
                match output {
                    Output::Send { number, request } => {
                        assert!(sent.is_none(), "two requests in one step");
                        let absolute = self.me().map_or(1, |me| me.beat + 1);
                        let letter = Letter {
                            request: distort(request, self.variant),
                            absolute,
                            routes: self.machine.routes.clone(),
                        };
                        sent = Some(Sent { number, letter });
                    }
                    Output::StandDown { order } if self.variant == Variant::DrainedTooEarly => {
                        inputs.push(Input::Drained { order });
                    }
                    Output::StandDown { order } => self.draining = Some(order),
                    Output::Cut { order } => {
                        self.let_go();
                        inputs.push(Input::Drained { order });
                    }
                    Output::Assigned(_) => {}
                }
            }
            self.bend_state();
        }
        self.work(now);
        sent
    }

    fn me(&self) -> Option<&super::super::Member> {
        let super::super::Place::Member(member) = &self.machine.place else {
            return None;
        };
        self.machine.known()?.member(&member.id)
    }

    fn bend(&self, input: Input) -> Input {
        match input {
            Input::Reply { number, outcome } => Input::Reply {
                number,
                outcome: misread(outcome, self.me(), self.variant),
            },
            other => other,
        }
    }

    fn bend_state(&mut self) {
        if let super::super::Place::Member(member) = &mut self.machine.place {
            member.lapsed &= !self.variant.forgets();
        }
    }

    pub fn drain(&mut self, now: Moment) -> Option<Sent> {
        let order = self.draining?;
        self.let_go();
        self.step(now, Input::Drained { order })
    }

    fn let_go(&mut self) {
        self.holds.clear();
        self.draining = None;
    }

    /// The host hands over something in every lane it owns, at every chance it gets.
    fn work(&mut self, now: Moment) {
        for (route, lanes) in self.owned(now) {
            match self.holds.iter_mut().find(|(held, _)| *held == route) {
                Some((_, held)) => *held |= lanes,
                None => self.holds.push((route, lanes)),
            }
        }
    }

    /// What it may start at this moment.
    pub fn owned(&self, now: Moment) -> Lanes {
        let Assignment::Own(own) = self.machine.assignment() else {
            return Vec::new();
        };
        if now >= own.until && self.variant != Variant::FlagNotDeadline {
            return Vec::new();
        }
        let lanes = |slot: crate::lane::Slot| {
            (0..LANES)
                .filter(|lane| slot.owns(*lane))
                .fold(0, |lanes, lane| lanes | 1u128 << lane)
        };
        own.slots
            .iter()
            .map(|(route, slot)| (route.clone(), lanes(*slot)))
            .collect()
    }

    /// What it may have in flight at this moment: let go, or cut by the clock, whichever came first.
    pub fn held(&self, now: Moment) -> Lanes {
        let flag = self.variant == Variant::FlagNotDeadline
            && matches!(self.machine.assignment(), Assignment::Own(_));
        if flag || self.machine.cut_at().is_some_and(|cut| now < cut) {
            self.holds.clone()
        } else {
            Vec::new()
        }
    }

    pub fn leaving(&self) -> bool {
        self.machine.leaving
    }

    pub fn reply(&mut self, now: Moment, number: u64, outcome: Outcome) -> Option<Sent> {
        self.step(now, Input::Reply { number, outcome })
    }
}

/// The same lane of one route in two hands.
pub fn overlap<'a>(hands: impl Iterator<Item = Lanes> + 'a) -> Option<Route> {
    let mut all: Lanes = Vec::new();
    for (route, lanes) in hands.flatten() {
        match all.iter_mut().find(|(other, _)| *other == route) {
            Some((_, taken)) if *taken & lanes != 0 => return Some(route),
            Some((_, taken)) => *taken |= lanes,
            None => all.push((route, lanes)),
        }
    }
    None
}

/// Every lane of every route in somebody's hand.
pub fn covered<'a>(routes: &Routes, hands: impl Iterator<Item = Lanes> + 'a) -> bool {
    let all: Vec<(Route, u128)> = hands.flatten().collect();
    routes.iter().all(|route| {
        all.iter()
            .filter(|(other, _)| other == route)
            .fold(0, |lanes, (_, more)| lanes | more)
            == u128::MAX
    })
}

pub fn routes(names: &[&str]) -> Routes {
    Routes::new(names.iter().map(|name| Route::from(*name)).collect())
}

pub fn timing(beat: Duration, variant: Variant) -> Timing {
    let timing = Timing::new(beat);
    match variant {
        Variant::LeaseIsStop => Timing {
            lease: timing.stop,
            ..timing
        },
        _ => timing,
    }
}
