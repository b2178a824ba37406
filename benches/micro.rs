//! The steps of a row within this process, one by one: by the clock, and by the instruction, which a busy machine does not
//! change.
//!
//! ```text
//! make micro         nanoseconds, with their intervals and how they have changed
//! make instructions  instructions of one step, counted by callgrind, and how they have changed
//! ```

use std::{collections::BTreeMap, env, fs, path::Path, process::Command};

use criterion::Criterion;
use toa_outbox::micro::steps;

/// Rounds of the shorter run; the longer has twice as many, so that what they differ by has no start in it.
const ROUNDS: u64 = 5000;

/// Where the counts of the last time are kept.
const REPORT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/bench/instructions.json"
);

fn main() {
    if let (Ok(name), Ok(rounds)) = (env::var("STEP"), env::var("ROUNDS")) {
        repeat(&name, rounds.parse().expect("ROUNDS"));
    } else if env::var_os("INSTRUCTIONS").is_some() {
        count();
    } else {
        time();
    }
}

fn time() {
    let mut criterion = Criterion::default().configure_from_args();
    for (name, mut step) in steps() {
        criterion.bench_function(name, |bencher| bencher.iter(&mut step));
    }
    criterion.final_summary();
}

fn repeat(name: &str, rounds: u64) {
    let (_, mut step) = steps()
        .into_iter()
        .find(|(known, _)| *known == name)
        .expect(name);
    (0..rounds).for_each(|_| step());
}

fn count() {
    let before: BTreeMap<String, u64> = fs::read(REPORT)
        .ok()
        .and_then(|report| serde_json::from_slice(&report).ok())
        .unwrap_or_default();
    let mut counts = BTreeMap::new();
    for (name, _) in steps() {
        let count = (instructions(name, ROUNDS * 2) - instructions(name, ROUNDS)) / ROUNDS;
        let change = before.get(name).map_or_else(String::new, |&before| {
            let percent = (count as f64 / before as f64 - 1.0) * 100.0;
            format!(", {percent:+.1} %")
        });
        println!("{name:<8} {count:>7} instructions{change}");
        counts.insert(name, count);
    }
    fs::create_dir_all(Path::new(REPORT).parent().expect("it is in a folder")).expect(REPORT);
    let report = serde_json::to_vec_pretty(&counts).expect("numbers by name");
    fs::write(REPORT, report).expect(REPORT);
}

/// Of a process that does so many rounds, all in all.
fn instructions(name: &str, rounds: u64) -> u64 {
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().expect("this program"))
        .env("STEP", name)
        .env("ROUNDS", rounds.to_string())
        .output()
        .expect("valgrind, which is a package of that name");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    let (_, collected) = collected.expect(&said);
    collected.trim().parse().expect(&said)
}
