//! A sidecar behind a writer at full speed.

use std::time::{Duration, Instant};

use crate::{
    Size, raw,
    report::{Aim, Figure, micros},
    sidecar::Sidecar,
    stage::Stage,
};

/// From the first insert to the last mark, beside the slower of what the servers do alone: a change stream that is
/// read behind the same writer, and the publication of as many messages.
pub async fn tail(size: &Size) -> Vec<Figure> {
    let stage = Stage::new().await;
    let rows = size.rows(50_000, 50_000);
    let rate = |took: Duration| rows as f64 / took.as_secs_f64();
    let (mut pairs, mut limits) = (Vec::new(), Vec::new());
    let (mut costs, mut peak) = (Vec::new(), 0.0_f64);
    for _ in 0..size.pairs() {
        let town = stage.town().await;
        let sidecar = Sidecar::start(&stage, &town, &[]);
        sidecar.owns().await;
        // So that the tail is open.
        raw::insert(&town, 1).await;
        sidecar.has_marked(1).await;
        let (before, own) = (stage.spent(), sidecar.spent());
        let begun = Instant::now();
        let (_, ended) = tokio::join!(raw::insert(&town, rows), sidecar.has_marked(rows + 1));
        let ours = ended - begun;
        let (after, own) = (stage.spent(), sidecar.spent() - own);
        costs.push([after[0] - before[0], after[1] - before[1], own]);
        peak = peak.max(sidecar.peak());
        drop(sidecar);
        stage.delete(&town.exchange).await;
        town.drop().await;

        let read = followed(&stage, rows, false).await;
        let published = raw::publish(&stage, rows, false).await;
        pairs.push((rate(ours), rate(read.max(published))));
        let (followed, published) = tokio::join!(
            followed(&stage, rows, true),
            raw::publish(&stage, rows, false)
        );
        limits.push((rate(ours), rate(followed.max(published))));
    }
    let limit = Figure::of_pairs("", "rows/s", &limits);
    let [mongo, broker, own] = micros(&costs, rows);
    let figure = Figure::of_pairs("tail", "rows/s", &pairs)
        .aim(Aim::AtLeast(0.8))
        .note(limit.as_limit("inserting, following, marking and publishing"))
        .note(format!(
            "µs of a core for a row: MongoDB {mongo:.0}, which inserts it too, broker {broker:.0}, ours {own:.0}"
        ))
        .note(format!("peak memory {peak:.0} MiB"));
    vec![figure]
}

async fn followed(stage: &Stage, rows: usize, is_marked: bool) -> Duration {
    let town = stage.town().await;
    let took = raw::follow(&town, rows, is_marked).await;
    stage.delete(&town.exchange).await;
    town.drop().await;
    took
}
