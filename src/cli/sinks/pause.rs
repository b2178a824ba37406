//! `sinks pause`.

use bson::DateTime;
use clap::Args;
use serde_json::json;

use super::{named, pausable};
use crate::{
    cli::{
        failure::{Failure, Outcome},
        options::Options,
        output::Output,
    },
    sinks::made_up,
    store::registry::{self, Registry},
};

/// The most of a reason that is kept, in characters.
const LONGEST_REASON: usize = 256;

/// Have no replica deliver to a sink until it is resumed.
///
/// Replicas stop within TOA_OUTBOX_INTERVAL. What the sink is owed is kept, and every row that owes it. One that is paused
/// already stays as it is.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox sinks pause billing --reason 'the ledger is being migrated'")]
pub(super) struct Pause {
    /// The sink, as `sinks list` prints it
    name: String,
    /// Why, for whoever looks at it later
    #[arg(long, value_name = "TEXT", default_value = "by an operator")]
    reason: String,
}

impl Pause {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let registry = Registry::new(&database);
        pausable(&self.name)?;
        named(&self.name, &registry.look().await?, &database)?;
        let wanted = self.wanted();
        registry.pause(&self.name, &wanted).await?;
        // Somebody else may have been first.
        let mut known = registry.look().await?;
        let Some(pause) = known.paused.remove(&self.name) else {
            return Err(Failure::Because(format!(
                "{}: was paused, and resumed by somebody else at once",
                self.name
            )));
        };
        self.tell(&pause, pause.circuit == wanted.circuit, options.json)
    }

    fn wanted(&self) -> registry::Pause {
        let reason = self.reason.chars().filter(|c| !c.is_control());
        registry::Pause {
            circuit: made_up(),
            reason: reason.take(LONGEST_REASON).collect(),
            since: DateTime::now(),
            advice: None,
        }
    }

    fn tell(&self, pause: &registry::Pause, is_new: bool, is_json: bool) -> Outcome {
        let (name, circuit) = (&self.name, &pause.circuit);
        let mut output = Output::to_whoever_reads(is_json);
        if output.is_json {
            output.json(&json!({
                "sink": name,
                "circuit": circuit,
                "reason": pause.reason,
                "done": is_new,
            }))?;
            return Ok(());
        }
        let what = match is_new {
            true => "paused, replicas stop within TOA_OUTBOX_INTERVAL".to_owned(),
            false => format!("was paused already: {}", pause.reason),
        };
        Ok(output.line(format_args!(
            "{name}: {what}; to resume it: toa-outbox sinks resume {name} --circuit {circuit}"
        ))?)
    }
}
