//! The promises of `features/*.feature`, kept against real servers.
//!
//! A scenario has a database, exchanges and a cable to the broker of its own, so they run side by side.
//! `cargo test --test features -- 'standalone'` runs the scenarios whose names fit an expression.

#[path = "support/mod.rs"]
mod support;

mod steps {
    mod amqp;
    mod arrive;
    mod change;
    mod consumer;
    mod crowd;
    mod declare;
    mod deliveries;
    mod json;
    mod retention;
    mod row;
    mod seed;
    mod service;
    mod settings;
    mod sinks;
    mod stored;
    mod subscribe;
    mod transaction;
    pub mod world;
}

use cucumber::{World, cli, parser, runner, writer, writer::Stats};
use steps::world::Tea;

type Options = cli::Opts<parser::basic::Cli, runner::basic::Cli, writer::basic::Cli>;

/// More would wait for the two servers rather than for each other.
const AT_A_TIME: usize = 8;

#[tokio::main]
async fn main() {
    let results = Tea::cucumber()
        .max_concurrent_scenarios(AT_A_TIME)
        .fail_on_skipped()
        .with_cli(options())
        .run(concat!(env!("CARGO_MANIFEST_DIR"), "/features"))
        .await;
    // The servers end with the process.
    std::process::exit(results.execution_has_failed().into());
}

/// What `cargo test` passes to every test binary is taken as it is meant: a word is a filter, the
/// options of the usual harness change nothing here.
fn options() -> Options {
    let usual = [
        "--nocapture",
        "--no-capture",
        "--quiet",
        "-q",
        "--include-ignored",
    ];
    let mut args: Vec<String> = std::env::args()
        .filter(|arg| !usual.contains(&arg.as_str()))
        .collect();
    if args.get(1).is_some_and(|word| !word.starts_with('-')) {
        args.insert(1, "--name".into());
    }
    <Options as cli::Parser>::parse_from(args)
}
