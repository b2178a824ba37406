//! What the outbox costs whoever writes: transactions of an entity and its row, by the library and by hand.

use std::time::{Duration, Instant};

use bson::Document;
use futures::future::try_join_all;
use mongodb::Collection;
use toa_outbox::{Builder, Component, Event, Label, Outbox, Settings, Slot};

use crate::{
    Size,
    report::{Aim, Figure},
    stage::{Stage, Town, own_time, row, state},
};

/// Writers at a time.
const TASKS: usize = 8;

/// Longer than any run: what is deferred stays where it is.
const NEVER: Duration = Duration::from_secs(3600);

/// Publication is left to a pump that does not come.
pub async fn deferred(size: &Size) -> Vec<Figure> {
    let settings = Settings {
        defer: true,
        interval: NEVER,
        ..Settings::default()
    };
    vec![
        beside_hand("write", size, settings)
            .await
            .aim(Aim::AtLeast(0.95)),
    ]
}

/// Published at once, which by hand is not.
pub async fn live(size: &Size) -> Vec<Figure> {
    vec![beside_hand("write-live", size, Settings::default()).await]
}

async fn beside_hand(name: &str, size: &Size, settings: Settings) -> Figure {
    let stage = Stage::new().await;
    let town = stage.town().await;
    // With the same indexes, and there before the first transaction.
    town.prepare("hand").await;
    for entities in ["pots", "hand"] {
        let name = format!("{}_{entities}", town.namespace);
        town.database.create_collection(name).await.unwrap();
    }
    let pots = open(&stage, &town, settings).await;
    let seconds = size.seconds(4, 10);
    let (mut pairs, mut costs) = (Vec::new(), [[Duration::ZERO; 3]; 2]);
    let mut counts = [0.0; 2];
    for round in 0..=size.pairs() {
        let mut rates = [0.0; 2];
        for side in 0..2 {
            let ([mongo, broker], own) = (stage.spent(), own_time());
            let (count, took) = match side {
                0 => many(seconds, async || by_library(&pots).await).await,
                _ => many(seconds, async || by_hand(&town).await).await,
            };
            rates[side] = count as f64 / took.as_secs_f64();
            let ([mongo_after, broker_after], own_after) = (stage.spent(), own_time());
            let spent = [mongo_after - mongo, broker_after - broker, own_after - own];
            (0..3).for_each(|of| costs[side][of] += spent[of]);
            counts[side] += count as f64;
        }
        // The first warms up.
        if round > 0 {
            pairs.push((rates[0], rates[1]));
        }
    }
    let cost = |side: usize| {
        let micros = costs[side].map(|spent| spent.as_secs_f64() * 1e6 / counts[side]);
        format!(
            "MongoDB {:.0}, broker {:.0}, client {:.0}",
            micros[0], micros[1], micros[2]
        )
    };
    pots.shutdown().await;
    Figure::of_pairs(name, "tx/s", &pairs)
        .note(format!("µs of a core for a transaction: {}", cost(0)))
        .note(format!("by hand: {}", cost(1)))
}

/// The outbox of `pots`, with all lanes.
pub async fn open(stage: &Stage, town: &Town, settings: Settings) -> Outbox {
    open_with(stage, town, settings, |builder| builder).await
}

/// The same with more than the broker.
pub async fn open_with(
    stage: &Stage,
    town: &Town,
    settings: Settings,
    more: impl FnOnce(Builder) -> Builder,
) -> Outbox {
    let settings = Settings {
        amqp: vec![stage.rabbit.uri()],
        slot: Some(Slot::WHOLE),
        ..settings
    };
    let component = Component::new(&town.namespace, "pots").labels([Label::created()]);
    let builder = Outbox::builder(&town.database, component, settings);
    more(builder).open().await.unwrap()
}

/// Runs writers for some time; how many transactions that were, and how long it took.
async fn many(
    seconds: u64,
    once: impl AsyncFn() -> mongodb::error::Result<()>,
) -> (usize, Duration) {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds);
    let tasks = (0..TASKS).map(|_| async {
        let mut count = 0;
        while Instant::now() < until {
            once().await?;
            count += 1;
        }
        Ok::<_, mongodb::error::Error>(count)
    });
    let counts: Vec<usize> = try_join_all(tasks).await.unwrap();
    (counts.iter().sum(), begun.elapsed())
}

pub async fn by_library(pots: &Outbox) -> mongodb::error::Result<()> {
    let written = pots.transaction(async move |tx| {
        let pot = state();
        tx.entities().insert_one(&pot).session(tx.session()).await?;
        tx.emit(Event::created(pot)).await
    });
    written.await.map_err(mongodb::error::Error::custom)
}

/// The same two inserts.
pub async fn by_hand(town: &Town) -> mongodb::error::Result<()> {
    let name = format!("{}_hand", town.namespace);
    let entities: Collection<Document> = town.database.collection(&name);
    let rows: Collection<Document> = town.database.collection(&format!("{name}_outbox"));
    let mut session = town.database.client().start_session().await?;
    session.start_transaction().await?;
    entities.insert_one(state()).session(&mut session).await?;
    rows.insert_one(row()).session(&mut session).await?;
    session.commit_transaction().await
}
