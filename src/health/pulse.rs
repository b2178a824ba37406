//! Whether MongoDB answers, found out by asking.

use std::time::Duration;

use bson::doc;
use mongodb::Database;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Health;
use crate::clock::every;

const EVERY: Duration = Duration::from_secs(2);

/// Together with the interval it is less than the ten seconds in which a fault is to be told.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks until it is stopped. The primary, since it is the one that rows are read from and marked on.
pub(crate) async fn pulse(database: Database, health: Health, stop: CancellationToken) {
    let mut tick = every(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            answer = once(&database) => health.mongodb(answer),
        }
    }
}

async fn once(database: &Database) -> Result<(), String> {
    let asked = timeout(PATIENCE, database.run_command(doc! { "ping": 1 })).await;
    match asked {
        Ok(Ok(_)) => Ok(()),
        // Without what the driver adds, the raw reply above all.
        Ok(Err(error)) => Err(error.kind.to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}
