//! Webhooks, from rows in a database to a server that misbehaves; and what every sink has to do, tried for those there are.

#[path = "../faults/log.rs"]
mod log;
#[path = "../support/mod.rs"]
mod support;

mod answers;
mod conformance;
mod ordered;
mod outage;
mod secure;
mod sizes;
mod stdout;

use std::time::Duration;

use support::ReplicaSet;
use toa_outbox::{Http, HttpBuilder, Policy, SinkOptions};
use tokio::sync::OnceCell;

/// Long enough for anything that is going to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// What it signs with, and what nobody ever sees.
const SECRET: &str = "hunter2";

/// A path that is nobody's business.
const PATH: &str = "/hunter2";

/// The database all tests share.
async fn mongodb() -> String {
    static MONGODB: OnceCell<ReplicaSet> = OnceCell::const_new();
    MONGODB.get_or_init(|| ReplicaSet::start(1)).await.uri()
}

/// One that loses patience soon.
fn http(url: impl Into<String>) -> HttpBuilder {
    patient(url).timeout(Duration::from_millis(300))
}

/// One that sends nothing twice because the machine is busy.
fn patient(url: impl Into<String>) -> HttpBuilder {
    Http::builder(url).secret(SECRET)
}

/// As usual, but for a limit of what is sent.
fn unlimited() -> SinkOptions {
    SinkOptions::new().safety(None)
}

/// Nothing is given up either.
fn flat() -> SinkOptions {
    unlimited().policy(Policy::flat())
}
