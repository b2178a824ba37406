//! The broker is away while the service goes on writing, and comes back.

use std::time::{Duration, Instant};

use crate::{Size, raw, report::Figure, sidecar::Sidecar, stage::Stage, write};

/// Transactions a second.
const RATE: u64 = 300;

/// How long it takes to catch up, beside the publication of as many messages; and the memory meanwhile.
pub async fn outage(size: &Size) -> Vec<Figure> {
    let mut stage = Stage::new().await;
    let town = stage.town().await;
    town.prepare("hand").await;
    let exchange = format!("{}.hand.created", town.namespace);
    stage.queue(&exchange).await;
    let sidecar = Sidecar::start(&stage, &town, &[]);
    sidecar.owns().await;
    write::by_hand(&town).await.unwrap();
    sidecar.has_marked(1).await;
    let before = sidecar.memory();
    stage.rabbit.kill().await;

    let rows = size.seconds(30, 300) * RATE;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE as u32);
    let (mut tasks, mut most) = (tokio::task::JoinSet::new(), 0.0_f64);
    for row in 0..rows {
        ticks.tick().await;
        let town = town.clone();
        tasks.spawn(async move { write::by_hand(&town).await.unwrap() });
        if row % RATE == 0 {
            most = most.max(sidecar.memory());
        }
    }
    tasks.join_all().await;
    let waiting = sidecar.memory();
    stage.rabbit.start_again().await;
    let begun = Instant::now();
    let ended = sidecar.has_marked(rows as usize + 1).await;
    let ours = (ended - begun).as_secs_f64();
    let peak = sidecar.peak();
    drop(sidecar);
    stage.reconnect().await;
    let raw = raw::publish(&stage, rows as usize, false)
        .await
        .as_secs_f64();
    let figure = Figure::of_pairs("outage", "s to catch up", &[(ours, raw)]);
    vec![figure.note(format!(
        "{rows} rows; memory {before:.0} MiB before, {most:.0} at most while it was away, {waiting:.0} at the end of that, {peak:.0} at most at all"
    ))]
}
