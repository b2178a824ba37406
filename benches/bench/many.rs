//! One sidecar for many components, beside one for one.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::{
    Size,
    report::Figure,
    sidecar::Sidecar,
    stage::{Stage, row},
};

const COMPONENTS: usize = 200;

/// What one sidecar made of it.
struct Seen {
    start: Duration,
    idle: f64,
    rate: f64,
}

/// Start, idle processor time, and the drain of as many rows.
pub async fn many(size: &Size) -> Vec<Figure> {
    let one = with(size, 1).await;
    let all = with(size, COMPONENTS).await;
    let pair = |name: &str, unit, of: fn(&Seen) -> f64| {
        Figure::of_pairs(name, unit, &[(of(&all), of(&one))])
    };
    vec![
        pair("many-start", "s", |seen| seen.start.as_secs_f64()),
        pair("many-idle", "% of a core", |seen| seen.idle),
        pair("many-drain", "rows/s", |seen| seen.rate),
    ]
}

async fn with(size: &Size, components: usize) -> Seen {
    let stage = Stage::new().await;
    let town = stage.town().await;
    let entities: Vec<String> = (0..components).map(|n| format!("pots-{n}")).collect();
    for entity in &entities {
        town.prepare(entity).await;
        let exchange = format!("{}.{entity}.created", town.namespace);
        stage.queue(&exchange).await;
    }
    // The first of a database waits a lease.
    let first = Sidecar::start(&stage, &town, &[]);
    first.owns().await;
    first.stop().await;
    let begun = Instant::now();
    let sidecar = Sidecar::start(&stage, &town, &[]);
    sidecar.owns().await;
    let start = begun.elapsed();
    let seconds = size.seconds(20, 60);
    let spent = sidecar.spent();
    sleep(Duration::from_secs(seconds)).await;
    let idle = (sidecar.spent() - spent).as_secs_f64() / seconds as f64 * 100.0;
    sidecar.stop().await;

    let rows = size.rows(20_000, 100_000);
    for entity in &entities {
        let share = (0..rows / components).map(|_| row());
        town.rows_of(entity).insert_many(share).await.unwrap();
    }
    let sidecar = Sidecar::start(&stage, &town, &[("DEFER", "1")]);
    sidecar.owns().await;
    let begun = Instant::now();
    let ended = sidecar.has_marked(rows / components * components).await;
    Seen {
        start,
        idle,
        rate: rows as f64 / (ended - begun).as_secs_f64(),
    }
}
