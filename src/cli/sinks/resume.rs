//! `sinks resume`.

use std::time::{Duration, Instant};

use clap::Args;
use mongodb::Database;
use serde_json::json;
use tokio::time::sleep;

use super::{named, pausable};
use crate::{
    Error,
    cli::{
        argument::refuse,
        failure::{Failure, Outcome},
        limits::{LOOK, Limits},
        options::Options,
        output::Output,
    },
    store::{
        Debt, Store,
        registry::{Known, Pause, Registered, Registry},
    },
};

/// Have replicas deliver to a sink again.
///
/// They begin within TOA_OUTBOX_INTERVAL. It takes the very circuit it was paused by: whoever resumes it has looked why.
/// With --max-rows or --max-bytes it stays paused where it is owed more; with --canary, or --max-time, this command waits,
/// and pauses it again by the same circuit where nothing of it has been taken, or something is still owed after so long.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox sinks resume billing --circuit 0190163d8694739b8f0c1d3a9d2b6c11 --canary")]
pub(super) struct Resume {
    /// The sink, as `sinks list` prints it
    name: String,
    /// By which it was paused; `sinks list` shows it
    #[arg(long, value_name = "ID")]
    circuit: String,
    #[command(flatten)]
    limits: Limits,
}

/// A sink about to be resumed.
struct Paused<'a> {
    database: &'a Database,
    registry: &'a Registry,
    sinks: Vec<Registered>,
    pause: Pause,
}

impl Resume {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let registry = Registry::new(&database);
        pausable(&self.name)?;
        let mut known = registry.look().await?;
        let Some(pause) = known.paused.remove(&self.name) else {
            named(&self.name, &known, &database)?;
            return self.tell(false, options.json);
        };
        self.check_circuit(&pause)?;
        let paused = Paused {
            sinks: self.sinks(&known),
            database: &database,
            registry: &registry,
            pause,
        };
        let before = paused.debt().await?;
        self.check_size(&paused, &before).await?;
        if let Some(approval) = &self.limits.approval {
            registry
                .approve(&self.name, &self.circuit, approval)
                .await?;
        }
        if !registry.resume(&self.name, &self.circuit).await? {
            return self.tell(false, options.json);
        }
        self.watch(&paused, &before).await?;
        self.tell(true, options.json)
    }

    fn sinks(&self, known: &Known) -> Vec<Registered> {
        known.named(&self.name).cloned().collect()
    }

    fn check_circuit(&self, pause: &Pause) -> Result<(), Error> {
        match pause.circuit == self.circuit {
            true => Ok(()),
            false => Err(refuse(
                "--circuit",
                &self.circuit,
                "the sink is paused by another circuit and stays so; `toa-outbox sinks list` shows by which, and why",
            )),
        }
    }

    async fn check_size(&self, paused: &Paused<'_>, before: &Debt) -> Result<(), Error> {
        self.limits.allow(before.rows, "toa-outbox sinks list")?;
        if let Some(most) = self.limits.max_rows
            && (before.rows > most || before.is_more())
        {
            let expected = format!(
                "the sink is owed {} rows or more and stays paused",
                before.rows
            );
            return Err(refuse("--max-rows", &most.to_string(), expected));
        }
        if let Some(most) = self.limits.max_bytes {
            let bytes = paused.bytes().await?;
            if bytes > most || before.is_more() {
                let expected = format!("the sink is owed {bytes} bytes or more and stays paused");
                return Err(refuse("--max-bytes", &most.to_string(), expected));
            }
        }
        Ok(())
    }

    /// Waits for what was asked to be waited for.
    async fn watch(&self, paused: &Paused<'_>, before: &Debt) -> Outcome {
        let began = Instant::now();
        if self.limits.canary && before.rows > 0 {
            let is_taken = |now: &Debt| now.rows < before.rows || oldest(now) != oldest(before);
            let patience = self.limits.patience();
            if !self.wait(paused, began, patience, is_taken).await? {
                return self.again(paused, "nothing of it was taken").await;
            }
        }
        let Some(longest) = self.limits.max_time else {
            return Ok(());
        };
        match self
            .wait(paused, began, longest, |now| now.rows == 0)
            .await?
        {
            true => Ok(()),
            false => self.again(paused, "something is still owed").await,
        }
    }

    /// Whether it came to be as expected in time; an error where the destination asked for a pause meanwhile.
    async fn wait(
        &self,
        paused: &Paused<'_>,
        began: Instant,
        longest: Duration,
        expected: impl Fn(&Debt) -> bool,
    ) -> Result<bool, Failure> {
        loop {
            if let Some(pause) = paused.registry.look().await?.paused.get(&self.name) {
                return Err(Failure::Because(format!(
                    "{}: was paused again: {}; `toa-outbox sinks list` tells more",
                    self.name, pause.reason
                )));
            }
            if expected(&paused.debt().await?) {
                return Ok(true);
            }
            if began.elapsed() >= longest {
                return Ok(false);
            }
            sleep(LOOK).await;
        }
    }

    async fn again(&self, paused: &Paused<'_>, why: &str) -> Outcome {
        paused.registry.pause(&self.name, &paused.pause).await?;
        Err(Failure::Because(format!(
            "{}: {why} in time, it is paused again by the same circuit; see that a replica serves it, and its log",
            self.name
        )))
    }

    fn tell(&self, is_done: bool, is_json: bool) -> Outcome {
        let name = &self.name;
        let mut output = Output::to_whoever_reads(is_json);
        if output.is_json {
            return Ok(output.json(&json!({ "sink": name, "done": is_done }))?);
        }
        let what = match is_done {
            true => "resumed, replicas begin within TOA_OUTBOX_INTERVAL",
            false => "is not paused, nothing to do",
        };
        Ok(output.line(format_args!("{name}: {what}"))?)
    }
}

impl Paused<'_> {
    /// Of all collections together.
    async fn debt(&self) -> Result<Debt, Error> {
        let mut debt = Debt::default();
        for sink in &self.sinks {
            let store = Store::new(self.database, &sink.collection);
            debt.join(store.owed(&sink.names()).await?);
        }
        Ok(debt)
    }

    async fn bytes(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        for sink in &self.sinks {
            let store = Store::new(self.database, &sink.collection);
            bytes += store.owed_bytes(&sink.names()).await?;
        }
        Ok(bytes)
    }
}

fn oldest(debt: &Debt) -> Option<&str> {
    debt.oldest.as_ref().map(|oldest| oldest.row.as_str())
}
