//! Replicas that agree on their lanes: real processes, killed, paused and cut off, and never two owners.
//!
//! The tests start this very program again for each replica, hence no usual harness.

#[path = "../support/mod.rs"]
mod support;

mod crew;
mod replica;
mod stage;
mod timeline;

mod clocks;
mod crowd;
mod document;
mod doubt;
mod evict;
mod flight;
mod poor;
mod suspend;
mod takeover;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if replica::is_one() {
        return replica::run();
    }
    let mut arguments = Arguments::from_args();
    // Each test has a dozen processes of its own.
    arguments.test_threads.get_or_insert(2);
    let groups = [
        clocks::tests(),
        crowd::tests(),
        document::tests(),
        doubt::tests(),
        evict::tests(),
        flight::tests(),
        poor::tests(),
        suspend::tests(),
        takeover::tests(),
    ];
    libtest_mimic::run(&arguments, groups.into_iter().flatten().collect()).exit_code()
}

/// A test by the name of its function.
macro_rules! trial {
    ($test:ident) => {
        $crate::named(stringify!($test), $test)
    };
}
pub(crate) use trial;

fn named<F: Future<Output = ()>>(name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.block_on(test());
        Ok(())
    })
}

/// The first in a normal run, the second in a long one.
fn dose<T>(normal: T, long: T) -> T {
    match std::env::var_os("SOAK") {
        Some(_) => long,
        None => normal,
    }
}
