//! Tea pots are made, boiled, poured and retired, and whoever is interested is told over AMQP.
//!
//! `make demo` runs this file as a stage that starts the service below, consumes its events, kills it
//! once, takes the broker away for some seconds, and counts. The service is what an application looks
//! like; it knows nothing of the stage.

#[path = "teapots/stage.rs"]
mod stage;

use std::time::Duration;

use bson::{Document, doc, oid::ObjectId};
use toa_outbox::{Component, Error, Label, Outbox, Settings};
use tokio_util::sync::CancellationToken;

/// How many pots are at work at a time.
const TASKS: u32 = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(std::env::var("RUST_LOG").unwrap_or_else(|_| "off".into()))
        .with_writer(std::io::stderr)
        .init();
    match std::env::args().nth(1).as_deref() {
        Some("service") => service().await,
        _ => stage::play().await,
    }
}

/// The component: what is published of it, and under which names.
fn pots() -> Component {
    let boiling = |pot: &Document| pot.get_i32("temperature").unwrap_or_default() >= 100;
    Component::new("tea", "pots")
        .labels(Label::system())
        .labels([Label::new("boiled")
            .when(move |event| {
                Ok(boiling(&event.state) && !event.origin.as_ref().is_some_and(boiling))
            })
            .payload(|event| Ok(doc! { "pot": event.state.get_object_id("_id")? }.into()))])
}

/// Makes changes until it is ended, and tells of each on standard output once it has committed.
async fn service() -> Result<(), Box<dyn std::error::Error>> {
    let settings = Settings::from_env()?;
    let uri = settings
        .mongodb
        .clone()
        .ok_or("TOA_OUTBOX_MONGODB is not set")?;
    let database = mongodb::Client::with_uri_str(uri)
        .await?
        .database("teapots");
    let outbox = Outbox::open(&database, pots(), settings).await?;
    let enough = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (outbox, enough) = (outbox.clone(), enough.clone());
        tasks.spawn(async move {
            while !enough.is_cancelled() {
                live(&outbox).await?;
            }
            Ok::<(), Error>(())
        });
    }
    // The stage closes our standard input when it has seen enough.
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    tokio::spawn(async move {
        let _ = closed.await;
        enough.cancel();
    });
    // As a service does with its requests: what has begun is finished, and then the outbox is shut down.
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    outbox.shutdown().await;
    Ok(())
}

/// The life of one pot.
async fn live(pots: &Outbox) -> Result<(), Error> {
    let pot = pots
        .create(
            doc! { "temperature": 20, "cups": 0 },
            doc! { "material": "glass" },
        )
        .await?;
    told(&pot).await;
    let id = pot.get_object_id("_id").unwrap_or_else(|_| ObjectId::new());
    let boil = doc! { "$set": { "temperature": 100 } };
    told(&pots.assign(doc! { "_id": id }, boil, "boil").await?).await;
    for cups in 1..=3 {
        let poured = pots.transit(id, doc! { "cups": cups }, move |pot, trailers| {
            pot.insert("cups", cups);
            trailers.insert("spilled", false);
            Ok(())
        });
        told(&poured.await?).await;
    }
    told(&pots.terminate(id, "retire").await?).await;
    Ok(())
}

/// Tells which change committed, and takes a breath.
async fn told(pot: &Document) {
    let now = stage::micros();
    if let (Ok(id), Ok(version)) = (pot.get_object_id("_id"), pot.get_i64("_version")) {
        println!("{id} {version} {now}");
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
}
