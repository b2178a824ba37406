//! `sinks`: what destinations there are, which are paused, and what each keeps from being deleted.

pub(super) mod facts;
pub(super) mod list;
mod pause;
mod remove;
mod resume;

use clap::{Args, Subcommand};
use mongodb::Database;

use super::{argument::refuse, failure::Outcome, options::Options};
use crate::{Error, sinks::AMQP, store::registry::Known};

/// List the sinks of services, pause and resume one, remove one that is gone.
///
/// For all replicas at once, and for as long as nothing else is said: it stands in the database, and each replica looks
/// there every TOA_OUTBOX_INTERVAL.
#[derive(Args)]
#[command(after_help = "Examples:
  toa-outbox sinks list
  toa-outbox sinks pause billing --reason 'the ledger is being migrated'")]
pub(super) struct Sinks {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::List),
    Pause(pause::Pause),
    Resume(resume::Resume),
    Remove(remove::Remove),
}

impl Sinks {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        match self.command {
            Command::List(list) => list.run(options).await,
            Command::Pause(pause) => pause.run(options).await,
            Command::Resume(resume) => resume.run(options).await,
            Command::Remove(remove) => remove.run(options).await,
        }
    }
}

/// Refuses a name that no sink has.
fn named(name: &str, known: &Known, database: &Database) -> Result<(), Error> {
    match stranger(name, known, database) {
        None => Ok(()),
        Some(expected) => Err(refuse("NAME", name, expected)),
    }
}

/// What to say of a name that no sink has.
pub(super) fn stranger(name: &str, known: &Known, database: &Database) -> Option<String> {
    if known.named(name).next().is_some() {
        return None;
    }
    let mut names: Vec<&str> = known.sinks.iter().map(|sink| sink.sink.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    Some(match names.as_slice() {
        [] => format!("no sink is registered in the database {}", database.name()),
        names => format!("there is no such sink; there are {}", names.join(", ")),
    })
}

/// Refuses the broker, which nobody pauses here.
fn pausable(name: &str) -> Result<(), Error> {
    match name {
        AMQP => Err(refuse(
            "NAME",
            name,
            "the broker cannot be paused; stop the replicas, or set TOA_OUTBOX_AMQP for none",
        )),
        _ => Ok(()),
    }
}
