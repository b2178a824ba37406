//! The product beside the raw servers, in one run and by turns, since machines differ and drift: what counts is the ratio.
//!
//! ```text
//! make bench              the quick ones, in under ten minutes
//! make bench-full         all of them, at their full sizes
//! make bench BENCH=drain  one
//! ```
//!
//! Every figure is the median of its pairs with the 95 % interval of that median; an aim is reached if the interval
//! includes it. Bodies are of 1 KB, persistent, on a durable fanout with one durable queue. Each row of the table has
//! servers of its own, and each run fresh data.

#[path = "../../tests/support/mod.rs"]
mod support;

mod drain;
mod idle;
mod live;
mod many;
mod outage;
mod raw;
mod report;
mod sidecar;
mod sinks;
mod stage;
mod tail;
mod write;

use futures::future::LocalBoxFuture;

/// How much is measured.
pub struct Size {
    is_full: bool,
}

impl Size {
    fn is_full(&self) -> bool {
        self.is_full
    }

    fn rows(&self, quick: usize, full: usize) -> usize {
        let rows = if self.is_full { full } else { quick };
        number("ROWS").unwrap_or(rows)
    }

    /// The length of a run.
    fn seconds(&self, quick: u64, full: u64) -> u64 {
        if self.is_full { full } else { quick }
    }

    fn pairs(&self) -> usize {
        number("PAIRS").unwrap_or(if self.is_full { 9 } else { 5 })
    }
}

fn number(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect(name))
}

struct Bench {
    name: &'static str,
    /// Whether it is of the quick run too.
    is_quick: bool,
    run: for<'a> fn(&'a Size) -> LocalBoxFuture<'a, Vec<report::Figure>>,
}

const fn quick(
    name: &'static str,
    run: for<'a> fn(&'a Size) -> LocalBoxFuture<'a, Vec<report::Figure>>,
) -> Bench {
    Bench {
        name,
        is_quick: true,
        run,
    }
}

const fn full(
    name: &'static str,
    run: for<'a> fn(&'a Size) -> LocalBoxFuture<'a, Vec<report::Figure>>,
) -> Bench {
    Bench {
        name,
        is_quick: false,
        run,
    }
}

const BENCHES: &[Bench] = &[
    quick("drain", |size| Box::pin(drain::drain(size))),
    quick("drain-consumed", |size| Box::pin(drain::consumed(size))),
    quick("growth", |size| Box::pin(drain::growth(size))),
    quick("write", |size| Box::pin(write::deferred(size))),
    full("write-live", |size| Box::pin(write::live(size))),
    quick("live", |size| Box::pin(live::library(size))),
    quick("tail", |size| Box::pin(tail::tail(size))),
    quick("tail-live", |size| Box::pin(live::sidecar(size))),
    full("sinks", |size| Box::pin(sinks::sinks(size))),
    full("replicas", |size| Box::pin(drain::replicas(size))),
    full("idle", |size| Box::pin(idle::idle(size))),
    full("idle-after", |size| Box::pin(idle::after(size))),
    full("outage", |size| Box::pin(outage::outage(size))),
    full("many", |size| Box::pin(many::many(size))),
];

#[tokio::main]
async fn main() {
    live::relay().await;
    let only = std::env::var("BENCH").ok().filter(|name| !name.is_empty());
    let is_full = std::env::var_os("FULL").is_some();
    let size = Size { is_full };
    let chosen: Vec<&Bench> = match &only {
        Some(name) => BENCHES.iter().filter(|bench| bench.name == name).collect(),
        None => BENCHES
            .iter()
            .filter(|bench| is_full || bench.is_quick)
            .collect(),
    };
    let names: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
    assert!(!chosen.is_empty(), "BENCH is one of {}", names.join(", "));
    report::header();
    let mut figures = Vec::new();
    for bench in chosen {
        for figure in (bench.run)(&size).await {
            figure.print();
            figures.push(figure);
        }
    }
    println!("{}", report::write(&figures));
}
