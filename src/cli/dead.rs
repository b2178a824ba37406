//! `dead`: deliveries that were given up, each kept with a copy of its row.

mod discard;
mod list;
mod replay;
mod selection;
mod show;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{failure::Outcome, options::Options, output::time};
use crate::store::deliveries::inspect::Delivery;

/// List, show, replay and discard what sinks did not take, and what was abandoned.
#[derive(Args)]
#[command(after_help = "Examples:
  toa-outbox dead list --sink billing --since 2h
  toa-outbox dead replay --sink billing --canary")]
pub(super) struct Dead {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::List),
    Show(show::Show),
    Replay(replay::Replay),
    Discard(discard::Discard),
}

impl Dead {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        match self.command {
            Command::List(list) => list.run(options).await,
            Command::Show(show) => show.run(options).await,
            Command::Replay(replay) => replay.run(options).await,
            Command::Discard(discard) => discard.run(options).await,
        }
    }
}

/// What is told of one everywhere.
pub(super) fn as_json(component: &str, delivery: &Delivery) -> Value {
    let (sink, label) = delivery.parts();
    let date = |date: Option<bson::DateTime>| date.map(|date| time(date.timestamp_millis()));
    json!({
        "id": delivery.row,
        "component": component,
        "sink": sink,
        "label": label,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "error": delivery.error,
        "first": date(delivery.first),
        "next": date(delivery.next),
        "deadAt": date(delivery.dead_at),
        "expires": date(delivery.expires),
        "replayed": delivery.is_replay,
        "approval": delivery.approval,
        "bytes": delivery.bytes,
    })
}
