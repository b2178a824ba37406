//! Long random histories of many replicas in real-valued time: clocks of unequal speed, every message with a delay
//! of its own.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use crate::clock::Moment;

use super::super::{Assignment, Document, Input, Outcome, Reason, Route, Routes, Timing};
use super::replica::{Replica, Sent, covered, overlap, routes};
use super::store::{Letter, Variant, apply};

pub const BEAT: Duration = Duration::from_secs(2);

/// What befalls the group; the index picks a seat, whatever sits there.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Start(usize),
    Crash(usize),
    Leave(usize),
    Pause(usize, Duration),
    /// The store is out of reach for one.
    Isolate(usize, Duration),
    /// There is no primary.
    Down(Duration),
    Drop,
    Dump,
    Restore,
    /// Serves the routes of this bit set from now on.
    Serve(usize, u8),
    /// Its clock jumped.
    Doubt(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Of a thousand messages: lost, doubled, slow (up to three seconds), answered with an error although applied,
    /// applied by a primary that loses it again.
    pub lost: u64,
    pub doubled: u64,
    pub slow: u64,
    pub denied: u64,
    pub stale: u64,
}

pub const FAIR: Weather = Weather {
    lost: 0,
    doubled: 0,
    slow: 0,
    denied: 0,
    stale: 0,
};

enum Due {
    Wake {
        seat: usize,
        start: u32,
        at: Moment,
    },
    Request {
        seat: usize,
        start: u32,
        number: u64,
        letter: Box<Letter>,
    },
    Reply {
        seat: usize,
        start: u32,
        number: u64,
        outcome: Box<Outcome>,
    },
    Drain {
        seat: usize,
        start: u32,
        order: u64,
    },
    Hint,
}

struct Seat {
    replica: Option<Replica>,
    start: u32,
    /// This clock: `offset + rate * now`.
    offset: Duration,
    rate: f64,
    paused: Duration,
    isolated: Duration,
    ordered: u64,
    writes: usize,
}

pub struct Sim {
    pub now: Duration,
    variant: Variant,
    weather: Weather,
    chance: Chance,
    doc: Option<Document>,
    dump: Option<(Duration, Option<Document>)>,
    down: Duration,
    seats: Vec<Seat>,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    dues: std::collections::HashMap<u64, Due>,
    serial: u64,
    /// The longest a host takes to stand down.
    pub drain: u64,
    pub events: usize,
}

impl Sim {
    pub fn new(seats: usize, seed: u64, weather: Weather, variant: Variant) -> Sim {
        let mut chance = Chance(seed | 1);
        let seats = (0..seats).map(|_| Seat {
            replica: None,
            start: 0,
            offset: Duration::from_millis(chance.below(1_000_000)),
            rate: 0.97 + chance.below(60) as f64 / 1000.0,
            paused: Duration::ZERO,
            isolated: Duration::ZERO,
            ordered: 0,
            writes: 0,
        });
        Sim {
            seats: seats.collect(),
            chance,
            now: Duration::ZERO,
            variant,
            weather,
            doc: None,
            dump: None,
            down: Duration::ZERO,
            queue: BinaryHeap::new(),
            dues: std::collections::HashMap::new(),
            serial: 0,
            drain: 10_000,
            events: 0,
        }
    }

    /// Runs until then; the lane that got two owners on the way.
    pub fn run(&mut self, until: Duration) -> Result<(), String> {
        while let Some(Reverse((at, serial))) = self
            .queue
            .peek()
            .copied()
            .filter(|Reverse((at, _))| *at <= until)
        {
            self.queue.pop();
            self.now = at;
            self.events += 1;
            if let Some(due) = self.dues.remove(&serial) {
                self.happen(due);
                self.check()?;
            }
        }
        self.now = until;
        self.check()
    }

    pub fn check(&self) -> Result<(), String> {
        let hands = self
            .seats
            .iter()
            .filter_map(|seat| Some(seat.replica.as_ref()?.held(self.clock(seat))));
        match overlap(hands) {
            None => Ok(()),
            Some(route) => Err(format!(
                "two owners of {route} at {:?}: {:#?}",
                self.now, self.doc
            )),
        }
    }

    pub fn befall(&mut self, event: Event) {
        let count = self.seats.len();
        match event {
            Event::Start(i) => self.start(i % count),
            Event::Crash(i) => self.seats[i % count].replica = None,
            Event::Leave(i) => self.tell(i % count, Input::Leave),
            Event::Pause(i, length) => self.seats[i % count].paused = self.now + length,
            Event::Isolate(i, length) => self.seats[i % count].isolated = self.now + length,
            Event::Down(length) => self.down = self.now + length,
            Event::Drop => self.doc = None,
            Event::Dump => self.dump = Some((self.now, self.doc.clone())),
            Event::Restore => self.restore(),
            Event::Serve(i, bits) => self.tell(i % count, Input::Serve(some(bits))),
            Event::Doubt(i) => self.tell(i % count, Input::Doubt),
        }
    }

    /// As in the essay: older than a lease, and somebody in it still is there.
    fn restore(&mut self) {
        let Some((at, Some(dump))) = &self.dump else {
            return;
        };
        let old = self.now > *at + Timing::new(BEAT).lease * 11 / 10;
        let kept = |document: &Document| {
            dump.members
                .iter()
                .any(|member| document.member(&member.id).is_some())
        };
        if old && self.doc.as_ref().is_none_or(kept) {
            self.doc = Some(dump.clone());
        }
    }

    fn start(&mut self, i: usize) {
        if self.seats[i].replica.is_some() {
            return;
        }
        let at = self.clock(&self.seats[i]);
        let seat = &mut self.seats[i];
        seat.start += 1;
        seat.paused = self.now;
        seat.ordered = 0;
        let name = format!("{i}-{}", seat.start);
        let timing = super::replica::timing(BEAT, self.variant);
        seat.replica = Some(Replica::new(&name, some(3), timing, at, self.variant));
        self.tell(i, Input::Tick);
    }

    /// An input to a process that may be asleep: then it has to be lost, which only ever happens to events here.
    fn tell(&mut self, i: usize, input: Input) {
        if self.seats[i].paused <= self.now {
            self.step(i, |replica, at| replica.step(at, input));
        }
    }

    fn clock(&self, seat: &Seat) -> Moment {
        Moment(seat.offset + self.now.mul_f64(seat.rate))
    }

    fn step(&mut self, i: usize, step: impl FnOnce(&mut Replica, Moment) -> Option<Sent>) {
        let at = self.clock(&self.seats[i]);
        let seat = &mut self.seats[i];
        let Some(replica) = &mut seat.replica else {
            return;
        };
        let sent = step(replica, at);
        let next = replica.machine.next();
        let start = seat.start;
        let length = next
            .since(at)
            .max(Duration::from_millis(1))
            .div_f64(seat.rate);
        let drain = replica.draining.filter(|order| *order > seat.ordered);
        seat.ordered = drain.unwrap_or(seat.ordered);
        if replica.machine.gone() {
            seat.replica = None;
        }
        self.put(
            length,
            Due::Wake {
                seat: i,
                start,
                at: next,
            },
        );
        if let Some(order) = drain {
            let length = self.chance.skewed(self.drain);
            self.put(
                length,
                Due::Drain {
                    seat: i,
                    start,
                    order,
                },
            );
        }
        if let Some(Sent { number, letter }) = sent {
            self.send(i, start, number, letter);
        }
    }

    fn send(&mut self, seat: usize, start: u32, number: u64, letter: Letter) {
        self.seats[seat].writes += 1;
        if self.chance.hits(self.weather.doubled) {
            let letter = Box::new(letter.clone());
            let length = self.chance.skewed(20_000);
            self.put(
                length,
                Due::Request {
                    seat,
                    start,
                    number,
                    letter,
                },
            );
        }
        if !self.chance.hits(self.weather.lost) && self.seats[seat].isolated <= self.now {
            let length = self.delay();
            self.put(
                length,
                Due::Request {
                    seat,
                    start,
                    number,
                    letter: Box::new(letter),
                },
            );
        }
    }

    fn delay(&mut self) -> Duration {
        if self.chance.hits(self.weather.slow) {
            self.chance.skewed(20_000)
        } else {
            Duration::from_micros(200 + self.chance.below(4_000))
        }
    }

    fn put(&mut self, length: Duration, due: Due) {
        self.serial += 1;
        self.queue.push(Reverse((self.now + length, self.serial)));
        self.dues.insert(self.serial, due);
    }

    fn happen(&mut self, due: Due) {
        let reader = match &due {
            Due::Wake { seat, start, .. }
            | Due::Reply { seat, start, .. }
            | Due::Drain { seat, start, .. } => Some((*seat, *start)),
            Due::Request { .. } | Due::Hint => None,
        };
        if let Some((seat, start)) = reader {
            let seat = &self.seats[seat];
            if seat.replica.is_none() || seat.start != start {
                return;
            }
            if seat.paused > self.now {
                self.put(seat.paused - self.now, due);
                return;
            }
        }
        match due {
            Due::Wake { seat, at, .. } => {
                // Only the last wake a replica asked for counts.
                if self.seats[seat]
                    .replica
                    .as_ref()
                    .is_some_and(|replica| replica.machine.next() <= at)
                {
                    self.step(seat, |replica, now| replica.step(now, Input::Tick));
                }
            }
            Due::Request {
                seat,
                start,
                number,
                letter,
            } => self.arrive(seat, start, number, &letter),
            Due::Reply {
                seat,
                number,
                outcome,
                ..
            } => {
                self.step(seat, |replica, now| replica.reply(now, number, *outcome));
            }
            Due::Drain { seat, order, .. } => self.step(seat, |replica, now| {
                if replica.draining == Some(order) {
                    replica.drain(now)
                } else {
                    None
                }
            }),
            Due::Hint => {
                for i in 0..self.seats.len() {
                    if self.seats[i].isolated <= self.now {
                        self.tell(i, Input::Hint);
                    }
                }
            }
        }
    }

    fn arrive(&mut self, seat: usize, start: u32, number: u64, letter: &Letter) {
        let outcome = if self.down > self.now {
            Outcome::Failed
        } else if self.chance.hits(self.weather.stale) {
            let shown = apply(&mut self.doc.clone(), letter, self.variant);
            if self.variant == Variant::Unacknowledged {
                shown
            } else {
                Outcome::Failed
            }
        } else {
            let before = self.doc.as_ref().map(super::world::news);
            let outcome = apply(&mut self.doc, letter, self.variant);
            if before != self.doc.as_ref().map(super::world::news) {
                let length = self.delay();
                self.put(length, Due::Hint);
            }
            if self.chance.hits(self.weather.denied) {
                Outcome::Failed
            } else {
                outcome
            }
        };
        if !self.chance.hits(self.weather.lost) && self.seats[seat].isolated <= self.now {
            let length = self.delay();
            self.put(
                length,
                Due::Reply {
                    seat,
                    start,
                    number,
                    outcome: Box::new(outcome),
                },
            );
        }
    }

    /// From here on nothing goes wrong: beats until every lane of every route that is served has an owner.
    pub fn recover(&mut self, beats: u32) -> Result<f64, String> {
        self.weather = FAIR;
        self.down = self.now;
        self.seats
            .iter_mut()
            .for_each(|seat| seat.isolated = self.now);
        self.seats
            .iter_mut()
            .for_each(|seat| seat.paused = seat.paused.min(self.now + BEAT));
        for tenth in 0..beats * 10 {
            if self.whole() {
                return Ok(f64::from(tenth) / 10.0);
            }
            self.run(self.now + BEAT / 10)?;
        }
        Err(format!("not whole after {beats} beats: {:#?}", self.doc))
    }

    pub fn members(&self) -> Vec<super::super::Name> {
        self.doc
            .iter()
            .flat_map(|document| &document.members)
            .map(|member| member.id.clone())
            .collect()
    }

    fn live(&self) -> impl Iterator<Item = (&Seat, &Replica)> {
        self.seats
            .iter()
            .filter_map(|seat| Some((seat, seat.replica.as_ref()?)))
    }

    pub fn whole(&self) -> bool {
        let served: BTreeSet<Route> = self
            .live()
            .filter(|(_, replica)| !replica.leaving())
            .flat_map(|(_, replica)| replica.machine.routes.iter().cloned())
            .collect();
        covered(
            &Routes::new(served),
            self.live()
                .map(|(seat, replica)| replica.owned(self.clock(seat))),
        )
    }

    /// Owners, spares, and requests sent so far.
    pub fn count(&self) -> (usize, usize, usize) {
        let told = |wanted: fn(&Assignment) -> bool| {
            self.live()
                .filter(|(_, replica)| wanted(replica.machine.assignment()))
                .count()
        };
        (
            told(|assignment| matches!(assignment, Assignment::Own(_))),
            told(|assignment| *assignment == Assignment::None(Reason::Spare)),
            self.seats.iter().map(|seat| seat.writes).sum(),
        )
    }

    /// The most and the least lanes of a route that an owner has.
    pub fn shares(&self) -> (u32, u32) {
        let lanes = |(seat, replica): (&Seat, &Replica)| {
            replica
                .owned(self.clock(seat))
                .iter()
                .map(|(_, lanes)| lanes.count_ones())
                .max()
        };
        let shares: Vec<u32> = self.live().filter_map(lanes).collect();
        (
            shares.iter().copied().max().unwrap_or(0),
            shares.iter().copied().min().unwrap_or(0),
        )
    }
}

fn some(bits: u8) -> Routes {
    let names = ["amqp/created", "amqp/updated"];
    routes(
        &names
            .iter()
            .enumerate()
            .filter(|(i, _)| bits >> i & 1 == 1)
            .map(|(_, name)| *name)
            .collect::<Vec<_>>(),
    )
}

/// Chance that a seed repeats.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn hits(&mut self, of_a_thousand: u64) -> bool {
        self.below(1000) < of_a_thousand
    }

    /// Mostly short, at times up to `most` milliseconds.
    fn skewed(&mut self, most: u64) -> Duration {
        let fraction = self.below(1000) as f64 / 1000.0;
        Duration::from_secs_f64(fraction.powi(4) * most as f64 / 1000.0)
    }
}
