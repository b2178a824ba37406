//! What it costs when there is nothing to do.

use std::time::Duration;

use bson::{Document, doc};
use futures::TryStreamExt;
use tokio::time::{Instant, sleep};

use crate::{
    Size,
    report::Figure,
    sidecar::Sidecar,
    stage::{Stage, Town},
};

/// With many published rows and none due: processor time, and what the pump's reads examine.
pub async fn idle(size: &Size) -> Vec<Figure> {
    let stage = Stage::new().await;
    let town = stage.town().await;
    let rows = size.rows(100_000, 2_000_000);
    let published = |mut row: Document| {
        row.extend(doc! { "published": true, "publishedAt": bson::DateTime::now() });
        row
    };
    town.seed_as(rows, published).await;
    let sidecar = Sidecar::start(&stage, &town, &[]);
    sidecar.owns().await;
    profile(&town, 2).await;
    let (before, own) = (stage.spent(), sidecar.spent());
    let minute = Duration::from_secs(size.seconds(20, 60));
    sleep(minute).await;
    let (after, own) = (stage.spent(), sidecar.spent() - own);
    profile(&town, 0).await;
    let reads = reads(&town).await;
    let examined: i64 = reads.iter().map(|read| number(read, "docsExamined")).sum();
    let share = |spent: Duration| spent.as_secs_f64() / minute.as_secs_f64() * 100.0;
    let figure = Figure::alone("idle", "% of a core", vec![share(own)]);
    vec![figure.note(format!(
        "{} reads beside {rows} published rows examined {examined} documents; MongoDB {:.1} %, broker {:.1} %",
        reads.len(),
        share(after[0] - before[0]),
        share(after[1] - before[1])
    ))]
}

/// How long the reads of a cycle take after a large backlog has been drained: the keys that marking took from the index
/// are passed over until the server forgets them.
pub async fn after(size: &Size) -> Vec<Figure> {
    let backlogs: &[usize] = match size.is_full() {
        true => &[50_000, 1_000_000],
        false => &[50_000],
    };
    let mut figures = Vec::new();
    for &rows in backlogs {
        let stage = Stage::new().await;
        let town = stage.town().await;
        town.seed(rows).await;
        let sidecar = Sidecar::pump(&stage, &town);
        sidecar.has_marked(rows).await;
        profile(&town, 2).await;
        let begun = Instant::now();
        sleep(Duration::from_secs(size.seconds(30, 300))).await;
        profile(&town, 0).await;
        let took: Vec<f64> = reads(&town)
            .await
            .iter()
            .map(|read| number(read, "millis") as f64)
            .collect();
        let most = took.iter().copied().fold(0.0, f64::max);
        let figure = Figure::alone(format!("idle-after-{}k", rows / 1000), "ms, a read", took);
        figures.push(figure.note(format!("{most} ms at most in {:.0?}", begun.elapsed())));
    }
    figures
}

/// Has the server write down every command on this database, or nothing any more.
async fn profile(town: &Town, level: i32) {
    let command = doc! { "profile": level };
    town.database.run_command(command).await.unwrap();
}

/// What was written down of the reads of the outbox.
async fn reads(town: &Town) -> Vec<Document> {
    let namespace = town.rows().namespace().to_string();
    let profile = town.database.collection::<Document>("system.profile");
    let reads = doc! { "ns": namespace, "op": "query" };
    let found = profile.find(reads).await.unwrap();
    found.try_collect().await.unwrap()
}

fn number(read: &Document, field: &str) -> i64 {
    let number = read.get(field).expect(field);
    number
        .as_i64()
        .or(number.as_i32().map(i64::from))
        .expect(field)
}
