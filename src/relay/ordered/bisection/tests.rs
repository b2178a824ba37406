use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::SinkOptions;

fn ordered() -> Bisection {
    let options = SinkOptions::ordered();
    Bisection::new(Order::USUAL, options.policy)
}

/// A destination with rows it does not take, and outages that begin and end while nothing is sent.
struct Destination {
    failing: BTreeSet<usize>,
    rejected: BTreeSet<usize>,
    /// How many waits it is up and down for, by turns.
    turns: Vec<usize>,
    waits: usize,
    taken: Vec<usize>,
}

impl Destination {
    fn is_down(&self) -> bool {
        let mut waits = self.waits;
        for (turn, &length) in self.turns.iter().enumerate() {
            match waits.checked_sub(length) {
                Some(left) => waits = left,
                None => return turn % 2 == 1,
            }
        }
        false
    }

    fn deliver(&mut self, rows: &[usize]) -> Outcome {
        if self.is_down() || rows.iter().any(|row| self.failing.contains(row)) {
            return Outcome::Failed;
        }
        if rows.iter().any(|row| self.rejected.contains(row)) {
            return Outcome::Rejected;
        }
        self.taken.extend(rows);
        Outcome::Taken
    }
}

/// Delivers so many rows; which were parked.
fn run(bisection: &mut Bisection, to: &mut Destination, count: usize) -> BTreeSet<usize> {
    let mut queue: Vec<usize> = (0..count).collect();
    let mut parked = BTreeSet::new();
    for _ in 0..100_000 {
        if queue.is_empty() {
            return parked;
        }
        let asked = match bisection.ask() {
            Ask::First(size) => 0..size.min(queue.len()),
            Ask::Neighbour if queue.len() < 2 => 0..0,
            Ask::Neighbour => 1..2,
        };
        let outcome = match asked.is_empty() {
            true => Outcome::None,
            false => to.deliver(&queue[asked.clone()]),
        };
        match bisection.told(outcome, asked.len()) {
            Then::Park => drop(parked.insert(queue.remove(0))),
            Then::ParkNeighbour => drop(parked.insert(queue.remove(1))),
            Then::Wait(_) => to.waits += 1,
            Then::Go => {}
        }
        queue.retain(|row| to.taken.last() < Some(row) || !to.taken.contains(row));
    }
    panic!("it does not come to an end: {queue:?}");
}

proptest! {
    #[test]
    fn just_those_that_are_to_blame_are_parked_and_the_others_come_once_and_in_order(
        failing in prop::collection::btree_set(0..200_usize, 0..6),
        rejected in prop::collection::btree_set(0..400_usize, 0..6),
        turns in prop::collection::vec(1..9_usize, 0..6),
    ) {
        // Two neighbours that both fail are taken for an outage.
        let failing: BTreeSet<_> = failing.into_iter().map(|row| row * 2).collect();
        let after = |row: &usize| (row + 1..).find(|row| !rejected.contains(row) || failing.contains(row));
        prop_assume!(failing.iter().all(|row| after(row).is_none_or(|row| !failing.contains(&row))));
        let rejected: BTreeSet<_> = rejected.difference(&failing).copied().collect();
        let bad: BTreeSet<_> = failing.union(&rejected).copied().collect();
        let mut to = Destination { failing, rejected, turns, waits: 0, taken: Vec::new() };
        // The last one has no neighbour, and is taken.
        let parked = run(&mut ordered(), &mut to, 401);
        let good: Vec<usize> = (0..401).filter(|row| !bad.contains(row)).collect();
        prop_assert_eq!(&parked, &bad);
        prop_assert_eq!(&to.taken, &good);
    }
}

#[test]
fn what_fails_is_halved_until_it_is_alone_and_grows_again() {
    let mut bisection = ordered();
    for size in [128, 64, 32, 16, 8, 4, 2] {
        assert_eq!(bisection.ask(), Ask::First(size));
        assert_eq!(bisection.told(Outcome::Failed, size), Then::Go);
    }
    for size in [1, 2, 4, 8, 16, 32, 64, 128, 128] {
        assert_eq!(bisection.ask(), Ask::First(size));
        assert_eq!(bisection.told(Outcome::Taken, size), Then::Go);
    }
}

#[test]
fn the_neighbour_is_asked_after_five_failures_and_nothing_is_parked_while_it_fails_too() {
    let mut bisection = ordered();
    bisection.size = 1;
    for failure in 1..5 {
        let then = bisection.told(Outcome::Failed, 1);
        assert!(matches!(then, Then::Wait(_)), "{failure}: {then:?}");
    }
    for _ in 0..100 {
        assert_eq!(bisection.told(Outcome::Failed, 1), Then::Go);
        assert_eq!(bisection.ask(), Ask::Neighbour);
        let then = bisection.told(Outcome::Failed, 1);
        assert!(matches!(then, Then::Wait(_)), "{then:?}");
        assert_eq!(bisection.ask(), Ask::First(1));
    }
    bisection.told(Outcome::Failed, 1);
    assert_eq!(bisection.told(Outcome::Taken, 1), Then::Park);
}

#[test]
fn a_last_row_goes_on_and_nobody_is_to_blame_for_an_absence() {
    let mut bisection = ordered();
    bisection.size = 1;
    for _ in 0..50 {
        let outcome = match bisection.ask() {
            Ask::First(_) => Outcome::Failed,
            Ask::Neighbour => Outcome::None,
        };
        assert_ne!(bisection.told(outcome, 1), Then::Park);
    }
    let mut bisection = ordered();
    for _ in 0..50 {
        assert_eq!(bisection.ask(), Ask::First(128));
        let then = bisection.told(Outcome::Away, 128);
        assert!(matches!(then, Then::Wait(_)), "{then:?}");
    }
    assert_eq!(bisection.failures(), 0);
}

#[test]
fn an_audit_neither_halves_nor_parks() {
    let mut bisection = Bisection::new(Order::AUDIT, SinkOptions::audit().policy);
    for outcome in [Outcome::Failed, Outcome::Rejected, Outcome::Stopped].repeat(20) {
        assert_eq!(bisection.ask(), Ask::First(500));
        let then = bisection.told(outcome, 500);
        assert!(matches!(then, Then::Wait(_)), "{then:?}");
    }
    let Then::Wait(longest) = bisection.told(Outcome::Failed, 1) else {
        panic!("given up");
    };
    // Less a fifth at most, by chance.
    assert!(longest >= Duration::from_secs(240), "{longest:?}");
}

#[test]
fn a_destination_is_down_where_nobody_is_there_where_the_neighbour_fails_too_and_where_it_says_so_twice()
 {
    let asked = Outcome::Asked(Duration::from_secs(1));
    let down = |bisection: &mut Bisection, outcomes: &[Outcome]| {
        let told = outcomes.iter().map(|&outcome| {
            bisection.told(outcome, 1);
            bisection.is_down()
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(
        down(&mut ordered(), &[Outcome::Away, Outcome::Taken]),
        [true, false]
    );
    assert_eq!(
        down(&mut ordered(), &[asked, Outcome::Taken, asked, asked]),
        [false, false, false, true]
    );
    // Five times alone, and then its neighbour.
    assert_eq!(
        down(&mut ordered(), &[Outcome::Failed; 6]),
        [false, false, false, false, false, true]
    );
    let by_itself = [[Outcome::Failed; 5].as_slice(), &[Outcome::None]].concat();
    assert_eq!(down(&mut ordered(), &by_itself), [false; 6]);
    let mut audit = Bisection::new(Order::AUDIT, SinkOptions::audit().policy);
    assert_eq!(down(&mut audit, &[Outcome::Failed; 2]), [false, true]);
    assert_eq!(
        down(&mut audit, &[Outcome::Rejected; 3]),
        [false; 3],
        "that is the row's"
    );
}

#[test]
fn who_takes_over_goes_on_counting() {
    let mut bisection = ordered();
    bisection.after(0);
    assert_eq!(bisection.ask(), Ask::First(128));
    bisection.after(4);
    assert_eq!((bisection.ask(), bisection.failures()), (Ask::First(1), 4));
    assert_eq!(bisection.told(Outcome::Failed, 1), Then::Go);
    assert_eq!(bisection.ask(), Ask::Neighbour);
    assert_eq!(bisection.told(Outcome::Taken, 1), Then::Park);
}
