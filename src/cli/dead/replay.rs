//! `dead replay`.

use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use mongodb::Database;
use serde_json::json;
use tokio::time::sleep;

use super::selection::{Found, Selection};
use crate::{
    Error,
    cli::{
        failure::{Failure, Outcome},
        limits::{LOOK, Limits},
        options::Options,
        output::{Output, bar},
    },
    store::registry::{Known, Registry},
};

/// Have deliveries that were given up tried again at once, as if they had never been.
///
/// From the copy that is kept, also where the row has expired; to that sink alone. Whoever replays the same at the same time
/// has it sent once. For what is not dead it does nothing, and says so. More than 100 take an --approval.
#[derive(Args)]
#[command(after_help = "Examples:
  toa-outbox dead replay 0190163d-8694-739b-8f0c-1d3a9d2b6c11
  toa-outbox dead replay --sink billing --since 2h --limit 0 --canary --approval OPS-17")]
pub(super) struct Replay {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    limits: Limits,
    /// Say what would be replayed, and replay nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Default)]
struct Counts {
    replayed: u64,
    bytes: u64,
    /// Taken, discarded or replayed by others since they were found, or without a copy.
    skipped: u64,
}

impl Replay {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        self.selection.check()?;
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.selection.aims(&configuration, &database).await?;
        let found = self.selection.find(&aims).await?;
        let mut output = Output::to_whoever_reads(options.json);
        if !self.dry_run {
            self.allow(&found)?;
        }
        let bar = bar(found.len() as u64, "deliveries replayed");
        let mut counts = Counts::default();
        let ended = self.each(&found, &mut counts, &bar, &mut output).await;
        bar.finish_and_clear();
        for line in self.selection.rest(&database, &aims, &found).await? {
            output.note(&line)?;
        }
        for line in idle(&database, &found).await? {
            output.note(&line)?;
        }
        self.tell(&counts, found.len() as u64, &mut output)?;
        ended
    }

    /// Whether so many may go.
    fn allow(&self, found: &[Found]) -> Result<(), Error> {
        let most = self.limits.max_rows.unwrap_or(u64::MAX);
        let rows = most.min(found.len() as u64);
        self.limits.allow(rows, "toa-outbox dead list")
    }

    async fn each(
        &self,
        found: &[Found],
        counts: &mut Counts,
        bar: &ProgressBar,
        output: &mut Output,
    ) -> Outcome {
        let began = Instant::now();
        let mut is_canary = self.limits.canary && !self.dry_run;
        for one in found {
            if !self.has_room(counts, one)
                || self
                    .limits
                    .max_time
                    .is_some_and(|most| began.elapsed() >= most)
            {
                break;
            }
            let approval = self.limits.approval.as_deref();
            if self.dry_run {
                bar.suspend(|| output.told(&one.name(), "would be replayed"))?;
                counts.add(one);
            } else if one.deliveries.replay(&one.delivery, approval).await? {
                counts.add(one);
                if is_canary {
                    bar.set_message(format!("waits for {}", one.name()));
                    self.canary(one).await?;
                    bar.set_message("");
                    is_canary = false;
                }
            } else {
                counts.skipped += 1;
                let why = match one.delivery.bytes {
                    None => "has no copy of its row to be sent from, and was left alone",
                    Some(_) => "is not dead any more, and was left alone",
                };
                bar.suspend(|| output.told(&one.name(), why))?;
            }
            bar.inc(1);
        }
        Ok(())
    }

    fn has_room(&self, counts: &Counts, one: &Found) -> bool {
        let bytes = counts.bytes + size(one);
        let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        counts.replayed < most(self.limits.max_rows) && bytes <= most(self.limits.max_bytes)
    }

    /// Waits until it is taken.
    async fn canary(&self, one: &Found) -> Outcome {
        let (began, patience) = (Instant::now(), self.limits.patience());
        loop {
            match one.deliveries.again(&one.delivery).await? {
                None => return Ok(()),
                Some(now) if now.is_given_up() => {
                    return Err(Failure::Because(format!(
                        "the canary, {}, was given up again, and nothing else was replayed: {}",
                        one.name(),
                        now.error
                    )));
                }
                Some(_) if began.elapsed() >= patience => {
                    return Err(Failure::Because(format!(
                        "the canary, {}, was not taken within {} s, and nothing else was replayed; see that a replica serves \
                         its sink, and its log",
                        one.name(),
                        patience.as_secs()
                    )));
                }
                Some(_) => sleep(LOOK).await,
            }
        }
    }

    fn tell(&self, counts: &Counts, found: u64, output: &mut Output) -> std::io::Result<()> {
        let left = found - counts.replayed - counts.skipped;
        if output.is_json {
            return output.json(&json!({
                "found": found,
                "replayed": counts.replayed,
                "skipped": counts.skipped,
                "left": left,
                "bytes": counts.bytes,
                "dryRun": self.dry_run,
            }));
        }
        let replayed = if self.dry_run {
            "would replay"
        } else {
            "replayed"
        };
        output.line(format_args!(
            "{replayed} {} deliveries, {} bytes; {} were not dead any more, {left} are left",
            counts.replayed, counts.bytes, counts.skipped
        ))?;
        output.flush()
    }
}

impl Counts {
    fn add(&mut self, one: &Found) {
        self.replayed += 1;
        self.bytes += size(one);
    }
}

fn size(one: &Found) -> u64 {
    one.delivery.bytes.unwrap_or_default().unsigned_abs()
}

/// Sinks of which nobody will send what is replayed for now, a line each.
async fn idle(database: &Database, found: &[Found]) -> Result<Vec<String>, Error> {
    let mut sinks: Vec<&str> = found.iter().map(|one| one.delivery.parts().0).collect();
    sinks.sort_unstable();
    sinks.dedup();
    let known = match sinks.as_slice() {
        [] => Known::default(),
        _ => Registry::new(database).look_if_allowed().await?,
    };
    let lines = sinks.into_iter().filter_map(|sink| {
        if let Some(pause) = known.paused.get(sink) {
            return Some(format!(
                "{sink} is paused, and is sent nothing until it is resumed: {}",
                pause.reason
            ));
        }
        let is_there = known.named(sink).next().is_some();
        (!is_there).then(|| {
            format!("{sink} is not registered: what is replayed waits until a service has it again")
        })
    });
    Ok(lines.collect())
}
