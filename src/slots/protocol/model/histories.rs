use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::history::{BEAT, Event, FAIR, Sim, Weather};
use super::store::Variant;

fn event() -> impl Strategy<Value = Event> {
    let seat = 0..20usize;
    let length = |most: u64| (1..most).prop_map(Duration::from_millis);
    prop_oneof![
        6 => seat.clone().prop_map(Event::Start),
        3 => seat.clone().prop_map(Event::Crash),
        2 => seat.clone().prop_map(Event::Leave),
        5 => (seat.clone(), length(20_000)).prop_map(|(seat, length)| Event::Pause(seat, length)),
        3 => (seat.clone(), length(12_000)).prop_map(|(seat, length)| Event::Isolate(seat, length)),
        2 => length(14_000).prop_map(Event::Down),
        1 => Just(Event::Drop),
        1 => Just(Event::Dump),
        1 => Just(Event::Restore),
        2 => (seat.clone(), 0..4u8).prop_map(|(seat, bits)| Event::Serve(seat, bits)),
        1 => seat.prop_map(Event::Doubt),
    ]
}

fn weather() -> impl Strategy<Value = Weather> {
    (0..60u64, 0..100u64, 0..100u64, 0..30u64, 0..30u64).prop_map(
        |(lost, doubled, slow, denied, stale)| Weather {
            lost,
            doubled,
            slow,
            denied,
            stale,
        },
    )
}

fn history(
    seats: usize,
    seed: u64,
    weather: Weather,
    events: &[(u64, Event)],
    variant: Variant,
) -> Result<(f64, usize), String> {
    let mut sim = Sim::new(seats, seed, weather, variant);
    (0..seats.min(3)).for_each(|i| sim.befall(Event::Start(i)));
    for (after, event) in events {
        sim.run(sim.now + Duration::from_millis(*after))?;
        sim.befall(*event);
        sim.check()?;
    }
    let took = sim.recover(20)?;
    Ok((took, sim.events))
}

type Script = (usize, u64, Weather, Vec<(u64, Event)>);

fn script() -> impl Strategy<Value = Script> {
    (
        2..20usize,
        any::<u64>(),
        weather(),
        prop::collection::vec((0..9_000u64, event()), 5..80),
    )
}

fn runner(cases: u32, shrinks: u32) -> TestRunner {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: shrinks,
        ..Default::default()
    };
    TestRunner::new(config)
}

/// `CASES` says how many.
#[test]
fn random_histories() {
    let usual = if std::env::var_os("SOAK").is_some() {
        5_000
    } else {
        300
    };
    let cases = std::env::var("CASES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(usual);
    let worst = Cell::new((0.0f64, 0));
    let result = runner(cases, 2000).run(&script(), |(seats, seed, weather, events)| {
        let (took, steps) =
            history(seats, seed, weather, &events, Variant::Sound).map_err(TestCaseError::fail)?;
        let (most, sum) = worst.get();
        worst.set((most.max(took), sum + steps));
        Ok(())
    });
    let (most, steps) = worst.get();
    println!("{cases} histories, {steps} events, slowest recovery {most} beats");
    result.unwrap_or_else(|found| panic!("{found}"));
}

/// The histories are rough enough to tell.
#[test]
fn random_histories_tell() {
    for variant in [
        Variant::NoWaitForSeen,
        Variant::CreatorSees,
        Variant::CreatorHurries,
        Variant::FlagNotDeadline,
        Variant::DrainedTooEarly,
        Variant::LeaseIsStop,
    ] {
        let tried = Cell::new(0);
        let result = runner(2000, 0).run(&script(), |(seats, seed, weather, events)| {
            tried.set(tried.get() + 1);
            match history(seats, seed, weather, &events, variant) {
                Err(found) if found.starts_with("two owners") => Err(TestCaseError::fail(found)),
                _ => Ok(()),
            }
        });
        println!("{variant:?}: {} histories until two owners", tried.get());
        assert!(result.is_err(), "{variant:?} was not caught");
    }
}

#[test]
fn a_hundred_and_forty_replicas() {
    let mut sim = Sim::new(140, 7, FAIR, Variant::Sound);
    let run = |sim: &mut Sim, beats: u32| sim.run(sim.now + BEAT * beats).expect("one owner");
    let mut from = 0;
    for count in [2, 3, 5, 140] {
        (from..count).for_each(|i| sim.befall(Event::Start(i)));
        from = count;
        run(&mut sim, 15);
        assert!(sim.whole(), "{count}");
        let (most, least) = sim.shares();
        assert!(most - least <= 1, "{count}: {most} {least}");
        println!("{count}: {:?}, events {}", sim.count(), sim.events);
    }
    let (owners, spares, before) = sim.count();
    assert_eq!((owners, spares), (128, 12));
    run(&mut sim, 10);
    let writes = sim.count().2 - before;
    println!("140 replicas wrote {writes} times in 10 beats");
    (2..140).for_each(|i| sim.befall(Event::Leave(i)));
    run(&mut sim, 15);
    println!("2: {:?}, events {}", sim.count(), sim.events);
    assert!(sim.whole());
}

/// A group of that many in which nothing is in flight when it has to stand down.
fn quick(seats: usize, group: usize, seed: u64) -> Sim {
    let mut sim = Sim::new(seats, seed, FAIR, Variant::Sound);
    sim.drain = 5;
    (0..group).for_each(|i| sim.befall(Event::Start(i)));
    sim.run(BEAT * 12 + Duration::from_millis(seed * 67 % 2000))
        .expect("one owner");
    assert!(sim.whole());
    sim
}

/// Seconds from now on until every lane is owned, after it was not; none when it always was.
fn gap(sim: &mut Sim) -> f64 {
    let from = sim.now;
    let mut last = from;
    for _ in 0..4000 {
        sim.run(sim.now + Duration::from_millis(5))
            .expect("one owner");
        if !sim.whole() {
            last = sim.now;
        }
    }
    (last - from).as_secs_f64()
}

fn slowest(befall: impl Fn(&mut Sim)) -> f64 {
    (1..=30)
        .map(|seed| {
            let mut sim = quick(5, 3, seed);
            befall(&mut sim);
            gap(&mut sim)
        })
        .fold(0.0, f64::max)
}

#[test]
fn takeover() {
    let beat = BEAT.as_secs_f64();
    let join = slowest(|sim| sim.befall(Event::Start(3)));
    let leave = slowest(|sim| sim.befall(Event::Leave(1)));
    let crash = slowest(|sim| sim.befall(Event::Crash(1)));
    let dropped = slowest(|sim| sim.befall(Event::Drop));
    println!(
        "slowest of 30: join {join:.2} s, leave {leave:.2} s, crash {crash:.2} s, drop {dropped:.2} s"
    );
    assert!(join < 1.0 && leave < 1.0);
    // A lease by the slower clock, a beat, and what a few round trips take.
    assert!(crash < 4.3 * beat);
    assert!(dropped < 6.0 * beat);
}

#[test]
fn an_election_evicts_nobody() {
    for length in [1, 3, 5, 8, 12, 30] {
        let mut most = 0.0f64;
        for seed in 1..=10 {
            let mut sim = quick(5, 5, seed);
            let before = sim.members();
            sim.befall(Event::Down(Duration::from_secs(length)));
            sim.run(sim.now + Duration::from_secs(length))
                .expect("one owner");
            most = most.max(gap(&mut sim));
            assert_eq!(sim.members(), before, "evicted after {length} s");
        }
        println!("an election of {length} s: whole again within {most:.2} s");
        assert!(most < 2.0 * BEAT.as_secs_f64());
    }
}
