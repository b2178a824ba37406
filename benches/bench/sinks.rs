//! What a sink that fails, or one that hangs, costs those beside it.
//!
//! Three outboxes with a connection to the broker each, and a commit to one of them after the other: how soon it is with the
//! broker's consumer where there is nothing beside it, and where there is such a sink, which is owed ever more.

use std::time::{Duration, Instant};

use toa_outbox::{BoxError, Builder, Message, Settings, Sink, Verdict};

use crate::{
    Size,
    live::{Timed, WARM, arrivals, commit, turns},
    report::{Aim, Figure},
    stage::Stage,
    write,
};

/// From one commit to the next, whichever side it is on.
const EVERY: Duration = Duration::from_millis(5);

struct Fails;

impl Sink for Fails {
    async fn deliver(&self, _: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        Err("the door is shut".into())
    }
}

struct Hangs;

impl Sink for Hangs {
    async fn deliver(&self, _: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        std::future::pending().await
    }
}

/// What stands beside the broker on each side.
const BESIDE: [fn(Builder) -> Builder; 3] = [
    |builder| builder.sink("beside", ["*"], Fails),
    |builder| builder,
    |builder| builder.sink("beside", ["*"], Hangs),
];

pub async fn sinks(size: &Size) -> Vec<Figure> {
    let stage = Stage::new().await;
    let (mut towns, mut outboxes) = (Vec::new(), Vec::new());
    for more in BESIDE {
        let town = stage.town().await;
        outboxes.push(write::open_with(&stage, &town, Settings::default(), more).await);
        towns.push(town);
    }
    let exchanges: Vec<&str> = towns.iter().map(|town| town.exchange.as_str()).collect();
    let mut arrivals = arrivals(&stage, &exchanges).await;
    let (turns, mut timed) = (turns(size), Timed::new(size));
    let pots = outboxes.clone();
    // As a service would, on a thread of the runtime.
    let measuring = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(EVERY);
        for turn in 0..WARM + turns {
            ticks.tick().await;
            let side = turn % pots.len();
            commit(&pots[side]).await;
            let begun = Instant::now();
            let (_, arrived) = arrivals.recv().await.unwrap();
            if turn >= WARM {
                let took = arrived.saturating_duration_since(begun);
                timed.record(side, turn - WARM, turns, took);
            }
        }
        timed
    });
    let timed = measuring.await.unwrap();
    for pots in outboxes {
        pots.shutdown().await;
    }
    let figure = |name, side| timed.figure(name, side, 1).aim(Aim::AtMost(1.1));
    vec![figure("beside-failing", 0), figure("beside-hanging", 2)]
}
