//! A backlog: how fast it drains, whether that depends on its size, and what several replicas make of it.

use std::time::Duration;

use futures::future::join_all;

use crate::{
    Size, raw,
    report::{Aim, Figure, micros},
    sidecar::Sidecar,
    stage::{Stage, own_time},
};

/// What one drain took.
struct Drained {
    took: Duration,
    /// Of MongoDB, the broker, and ours.
    spent: [Duration; 3],
    peak: f64,
}

pub async fn drain(size: &Size) -> Vec<Figure> {
    vec![
        beside_raw("drain", size, false)
            .await
            .aim(Aim::AtLeast(0.85)),
    ]
}

pub async fn consumed(size: &Size) -> Vec<Figure> {
    let figure = beside_raw("drain-consumed", size, true).await;
    vec![figure.aim(Aim::AtLeast(0.75))]
}

async fn beside_raw(name: &str, size: &Size, is_consumed: bool) -> Figure {
    let stage = Stage::new().await;
    let rows = size.rows(50_000, 100_000);
    let rate = |took: Duration| rows as f64 / took.as_secs_f64();
    let (mut pairs, mut costs, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    let mut limits = Vec::new();
    for _ in 0..size.pairs() {
        let ours = ours(&stage, rows, is_consumed).await;
        let ([_, broker], own) = (stage.spent(), own_time());
        let raw = raw::publish(&stage, rows, is_consumed).await;
        bare.push([stage.spent()[1] - broker, own_time() - own]);
        let limit = side_by_side(&stage, rows, is_consumed).await;
        limits.push((rate(ours.took), rate(limit)));
        pairs.push((rate(ours.took), rate(raw)));
        costs.push(ours);
    }
    let spent: Vec<_> = costs.iter().map(|cost| cost.spent).collect();
    let [mongo, broker, own] = micros(&spent, rows);
    let [bare_broker, client] = micros(&bare, rows);
    let limit = Figure::of_pairs("", "rows/s", &limits);
    Figure::of_pairs(name, "rows/s", &pairs)
        .note(limit.as_limit("reading, marking and publishing"))
        .note(format!(
            "µs of a core for a row: MongoDB {mongo:.0}, broker {broker:.0}, ours {own:.0}; raw: broker {bare_broker:.0}, client {client:.0}"
        ))
        .note(format!(
            "peak memory {:.0} MiB",
            costs.iter().map(|cost| cost.peak).fold(0.0, f64::max)
        ))
}

/// As many rows read and marked by the driver alone while as many messages are published, and neither waits for the other:
/// what the servers do of the same work on one machine.
async fn side_by_side(stage: &Stage, rows: usize, is_consumed: bool) -> Duration {
    let town = stage.town().await;
    town.seed(rows).await;
    let publishing = raw::publish(stage, rows, is_consumed);
    let (published, marked) = tokio::join!(publishing, raw::mark(&town));
    stage.delete(&town.exchange).await;
    town.drop().await;
    published.max(marked)
}

async fn ours(stage: &Stage, rows: usize, is_consumed: bool) -> Drained {
    let town = stage.town().await;
    let reader = match is_consumed {
        true => Some(stage.consumer(&town.exchange).await),
        false => None,
    };
    town.seed(rows).await;
    let before = stage.spent();
    let sidecar = Sidecar::pump(stage, &town);
    let begun = sidecar.works().await;
    let ended = sidecar.has_marked(rows).await;
    let after = stage.spent();
    let drained = Drained {
        took: ended - begun,
        spent: [after[0] - before[0], after[1] - before[1], sidecar.spent()],
        peak: sidecar.peak(),
    };
    if let Some(reader) = reader {
        reader.has(rows).await;
    }
    drop(sidecar);
    stage.delete(&town.exchange).await;
    town.drop().await;
    drained
}

/// The rate and the memory of ever larger backlogs, by turns, beside those of the smallest.
pub async fn growth(size: &Size) -> Vec<Figure> {
    let stage = Stage::new().await;
    let least = 10_000;
    let larger: &[usize] = match size.is_full() {
        true => &[100_000, 1_000_000],
        false => &[100_000],
    };
    let mut pairs = vec![Vec::new(); larger.len()];
    let mut peaks = vec![0.0_f64; larger.len() + 1];
    for round in 0..size.pairs() {
        let small = ours(&stage, least, false).await;
        peaks[0] = peaks[0].max(small.peak);
        for (index, &rows) in larger.iter().enumerate() {
            // The largest takes minutes a round.
            if rows == 1_000_000 && round >= 3 {
                continue;
            }
            let large = ours(&stage, rows, false).await;
            peaks[index + 1] = peaks[index + 1].max(large.peak);
            let rate = |rows: usize, drained: &Drained| rows as f64 / drained.took.as_secs_f64();
            pairs[index].push((rate(rows, &large), rate(least, &small)));
        }
    }
    let figures = larger.iter().zip(&pairs).zip(&peaks[1..]);
    figures
        .map(|((rows, pairs), peak)| {
            let note = format!(
                "peak memory {peak:.0} MiB, {:.0} MiB with {least} rows",
                peaks[0]
            );
            let figure = Figure::of_pairs(format!("growth-{}k", rows / 1000), "rows/s", pairs);
            figure.aim(Aim::AtLeast(0.9)).note(note)
        })
        .collect()
}

/// The rate of several processes, and the shares they have of it, beside one alone.
pub async fn replicas(size: &Size) -> Vec<Figure> {
    let stage = Stage::new().await;
    let rows = size.rows(50_000, 200_000);
    let (mut pairs, mut spreads) = ([Vec::new(), Vec::new()], [0.0_f64; 2]);
    for _ in 0..size.pairs() {
        let (alone, _) = shared(&stage, rows, 1).await;
        for (index, count) in [2, 4].into_iter().enumerate() {
            let (rate, spread) = shared(&stage, rows, count).await;
            pairs[index].push((rate, alone));
            spreads[index] = spreads[index].max(spread);
        }
    }
    let figure = |index: usize, count: usize| {
        Figure::of_pairs(format!("replicas-{count}"), "rows/s", &pairs[index])
            .aim(Aim::AtLeast(1.0))
            .note(format!(
                "shares differ by {:.1} % at most",
                spreads[index] * 100.0
            ))
    };
    vec![figure(0, 2), figure(1, 4)]
}

/// Rows a second, and by how much of an equal share the largest and the smallest differ from it.
async fn shared(stage: &Stage, rows: usize, count: usize) -> (f64, f64) {
    let town = stage.town().await;
    town.seed(rows).await;
    let slots: Vec<String> = (0..count).map(|slot| format!("{slot}/{count}")).collect();
    let replicas: Vec<Sidecar> = slots
        .iter()
        .map(|slot| Sidecar::start(stage, &town, &[("SLOT", slot), ("DEFER", "1")]))
        .collect();
    let begun = join_all(replicas.iter().map(Sidecar::works)).await;
    crate::support::eventually(crate::stage::PATIENCE, "all is marked", async || {
        replicas.iter().map(Sidecar::marked).sum::<usize>() >= rows
    })
    .await;
    let ended = join_all(replicas.iter().map(|replica| replica.has_marked(0))).await;
    let took = *ended.iter().max().unwrap() - *begun.iter().min().unwrap();
    let share = |replica: &Sidecar| replica.marked() as f64 * count as f64 / rows as f64 - 1.0;
    let spread = replicas.iter().map(share).map(f64::abs);
    let spread = spread.fold(0.0, f64::max);
    drop(replicas);
    stage.delete(&town.exchange).await;
    town.drop().await;
    (rows as f64 / took.as_secs_f64(), spread)
}
