//! `dead discard`.

use clap::Args;
use serde_json::json;

use super::selection::Selection;
use crate::cli::{
    failure::Outcome,
    options::Options,
    output::{Output, bar},
};

/// Delete deliveries that were given up, and the copies of their rows, for good.
///
/// For what is not dead it does nothing, and says so.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox dead discard --sink billing --until 90d --dry-run")]
pub(super) struct Discard {
    #[command(flatten)]
    selection: Selection,
    /// Say what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
}

impl Discard {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        self.selection.check()?;
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.selection.aims(&configuration, &database).await?;
        let found = self.selection.find(&aims).await?;
        let mut output = Output::to_whoever_reads(options.json);
        let mut discarded = 0;
        let bar = bar(found.len() as u64, "deliveries discarded");
        for one in &found {
            if self.dry_run {
                bar.suspend(|| output.told(&one.name(), "would be discarded"))?;
            } else if one.deliveries.discard(&one.delivery).await? {
                discarded += 1;
            } else {
                bar.suspend(|| {
                    output.told(&one.name(), "is not dead any more, and was left alone")
                })?;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        for line in self.selection.rest(&database, &aims, &found).await? {
            output.note(&line)?;
        }
        match output.is_json {
            true => output.json(&json!({
                "found": found.len(),
                "discarded": discarded,
                "dryRun": self.dry_run,
            }))?,
            false if self.dry_run => {
                output.line(format_args!("would discard {} deliveries", found.len()))?;
            }
            false => output.line(format_args!("discarded {discarded} deliveries"))?,
        }
        Ok(output.flush()?)
    }
}
