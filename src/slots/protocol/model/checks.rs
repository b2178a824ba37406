//! Section 4 as written, against everything that may go wrong: never two owners, and always an owner soon after.
//!
//! `SOAK=1` goes further, to two million states a run, and belongs in a release build.

use super::super::Request;
use super::explore::{Found, Limits, explore};
use super::replica::{routes, timing};
use super::store::Variant;
use super::world::{BEAT, Rules, Trouble, UNIT, World};

use Trouble::{
    AnswerFailed, AnswerLate, AnswerStale, Crash, Double, Down, DrainLate, Drop, HoldBack, Leave,
    Pause, Restore, Withdraw,
};

const ALL: &[Trouble] = &[
    HoldBack,
    Double,
    AnswerLate,
    AnswerFailed,
    AnswerStale,
    DrainLate,
    Pause,
    Crash,
    Leave,
    Down,
    Drop,
];

/// Beats until every lane has an owner, from any state, once nothing goes wrong any more.
const RECOVERY: u32 = 8;

#[derive(Clone, Copy)]
pub struct Run {
    pub variant: Variant,
    pub seats: usize,
    /// How many of them are settled members at the beginning; whoever is not may start at any moment, and whoever
    /// crashed may start once more.
    pub settled: u8,
    pub troubles: u8,
    pub beats: u32,
    pub menu: &'static [Trouble],
    pub hints: bool,
    pub any_dump: bool,
    /// Requests of which a copy is still on its way at the beginning.
    pub copies: fn(&Request) -> bool,
    pub states: usize,
    pub sample: u64,
}

impl Run {
    pub fn of(
        seats: usize,
        settled: u8,
        troubles: u8,
        beats: u32,
        menu: &'static [Trouble],
    ) -> Run {
        Run {
            variant: Variant::Sound,
            seats,
            settled,
            troubles,
            beats,
            menu,
            hints: false,
            any_dump: false,
            copies: |_| false,
            states: soak(6_000_000, 2_000_000),
            sample: 50,
        }
    }

    pub fn explore(&self) -> Found {
        let all: &[&str] = if self.menu.contains(&Withdraw) {
            &["amqp/created", "amqp/updated"]
        } else {
            &["amqp/created"]
        };
        let mut rules = Rules {
            variant: self.variant,
            timing: timing(UNIT * BEAT, self.variant),
            routes: routes(all),
            fewer: routes(&all[..1]),
            until: 0,
            hints: self.hints,
            any_dump: self.any_dump,
            menu: self.menu,
        };
        let mut world = World::new(self.seats, 2, self.troubles);
        if self.settled > 0 {
            world = world.settled(self.settled, &rules, self.copies);
        }
        rules.until = world.now + self.beats * BEAT;
        let limits = Limits {
            states: self.states,
            sample: self.sample,
            bound: RECOVERY * BEAT,
        };
        explore(world, &rules, &limits)
    }

    fn holds(&self, name: &str) {
        let found = self.explore();
        let recovery = found.recovery.map(|most| f64::from(most) / f64::from(BEAT));
        println!(
            "{name}: {} states, depth {}, {:.1?}, all {}; slowest recovery {recovery:?} beats of {} tried",
            found.states, found.depth, found.took, found.complete, found.sampled
        );
        assert_eq!(found.broken, None, "two owners");
        assert_eq!(found.stuck, None, "no owner in time");
        assert!(found.complete || soak(false, true), "the run was cut short");
    }
}

fn soak<T>(short: T, long: T) -> T {
    if std::env::var_os("SOAK").is_some() {
        long
    } else {
        short
    }
}

#[test]
fn one_replica_from_nothing() {
    Run::of(1, 0, 2, soak(5, 10), ALL).holds("one replica from nothing");
}

#[test]
fn two_replicas_from_nothing() {
    Run::of(2, 0, soak(0, 1), soak(8, 6), ALL).holds("two replicas from nothing");
}

#[test]
fn two_settled_replicas() {
    Run::of(2, 2, 2, soak(3, 5), ALL).holds("two settled replicas, two troubles");
}

#[test]
fn two_settled_replicas_for_longer() {
    Run::of(2, 2, 1, soak(7, 12), ALL).holds("two settled replicas, one trouble");
}

#[test]
fn a_join() {
    Run::of(2, 1, soak(1, 2), soak(5, 4), ALL).holds("a second replica joins");
}

#[test]
fn three_settled_replicas() {
    Run::of(3, 3, 1, soak(3, 5), ALL).holds("three settled replicas");
}

#[test]
fn a_third_joins() {
    Run::of(3, 2, soak(0, 1), soak(6, 3), ALL).holds("a third replica joins");
}

#[test]
fn hints() {
    let run = Run {
        hints: true,
        ..Run::of(2, 2, 1, soak(3, 6), ALL)
    };
    run.holds("two settled replicas with hints");
}

#[test]
fn routes_change() {
    Run::of(2, 2, 2, soak(4, 8), &[Withdraw, HoldBack, Crash])
        .holds("two replicas, routes withdrawn");
}

#[test]
fn an_older_document() {
    Run::of(2, 2, 2, soak(3, 6), &[Pause, Restore]).holds("two replicas, an older document");
}

#[test]
fn an_older_document_after_a_join() {
    Run::of(2, 1, soak(1, 2), soak(4, 5), &[Pause, Restore, AnswerLate])
        .holds("a join, an older document");
}

#[test]
fn nonces() {
    let run = Run {
        copies: |sent| matches!(sent, Request::Create { .. } | Request::Ack { .. }),
        ..Run::of(3, 2, 1, soak(2, 4), &[Drop])
    };
    run.holds("copies of old acks, and a drop");
}
