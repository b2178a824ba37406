//! A sidecar behind a writer at full speed.

use std::time::{Duration, Instant};

use crate::{
    Size, raw,
    report::{Aim, Figure},
    sidecar::Sidecar,
    stage::Stage,
};

/// From the first insert to the last mark, beside the slower of what the servers do alone: a change stream that is
/// read behind the same writer, and the publication of as many messages.
pub async fn tail(size: &Size) -> Vec<Figure> {
    let stage = Stage::new().await;
    let rows = size.rows(50_000, 50_000);
    let rate = |took: Duration| rows as f64 / took.as_secs_f64();
    let (mut pairs, mut peak) = (Vec::new(), 0.0_f64);
    for _ in 0..size.pairs() {
        let town = stage.town().await;
        let sidecar = Sidecar::start(&stage, &town, &[]);
        sidecar.owns().await;
        // So that the tail is open.
        raw::insert(&town, 1).await;
        sidecar.has_marked(1).await;
        let begun = Instant::now();
        let (_, ended) = tokio::join!(raw::insert(&town, rows), sidecar.has_marked(rows + 1));
        let ours = ended - begun;
        peak = peak.max(sidecar.peak());
        drop(sidecar);
        stage.delete(&town.exchange).await;
        town.drop().await;

        let town = stage.town().await;
        let followed = raw::follow(&town, rows).await;
        stage.delete(&town.exchange).await;
        town.drop().await;
        let published = raw::publish(&stage, rows, false).await;
        pairs.push((rate(ours), rate(followed.max(published))));
    }
    let figure = Figure::of_pairs("tail", "rows/s", &pairs);
    vec![
        figure
            .aim(Aim::AtLeast(0.8))
            .note(format!("peak memory {peak:.0} MiB")),
    ]
}
