//! A call of `publish` under way: what is sent, what has come of it, and the telling of that.

use futures::{StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use serde_json::json;

use super::{
    Rows,
    sending::{Marks, Sending, Sent},
};
use crate::cli::{failure::Outcome, output::Output};

#[derive(Default)]
pub(super) struct Counts {
    rows: u64,
    messages: u64,
    pub(super) failed: u64,
    marked: u64,
    pub(super) missing: u64,
}

/// What is going on, and what has come of it.
pub(super) struct Run {
    pub(super) output: Output,
    pub(super) bar: ProgressBar,
    pub(super) inflight: usize,
    pub(super) counts: Counts,
    pub(super) left: usize,
}

impl Run {
    pub(super) async fn component(&mut self, sending: &Sending<'_>, rows: Rows<'_>) -> Outcome {
        let mut marks = Marks::default();
        let mut sent = rows
            .take(self.left)
            .map_ok(|row| async move { Ok(sending.send(&row).await) })
            .try_buffer_unordered(self.inflight);
        while let Some(sent) = sent.try_next().await? {
            self.left -= 1;
            self.bar.inc(1);
            self.counts.messages += sent.exchanges.len() as u64;
            match sent.problems.is_empty() {
                true => self.counts.rows += 1,
                false => self.counts.failed += 1,
            }
            self.row(sending, &sent)?;
            marks.add(sent);
            if marks.is_full() {
                self.counts.marked += marks.flush(sending).await?;
            }
        }
        self.counts.marked += marks.flush(sending).await?;
        Ok(())
    }

    /// What was not sent, and in a dry run what would be.
    fn row(&mut self, sending: &Sending<'_>, sent: &Sent) -> std::io::Result<()> {
        let is_dry = sending.sink.is_none();
        if sent.problems.is_empty() && !is_dry {
            return Ok(());
        }
        let (component, id) = (sending.aim.component.id(), &sent.id);
        let (output, bar) = (&mut self.output, &self.bar);
        bar.suspend(|| {
            if output.is_json {
                return output.json(&json!({
                    "id": id,
                    "component": component,
                    "exchanges": sent.exchanges,
                    "problems": sent.problems,
                }));
            }
            for problem in &sent.problems {
                output.line(format_args!("{id} of {component}: not sent: {problem}"))?;
            }
            match (is_dry, sent.exchanges.as_slice()) {
                (false, _) => Ok(()),
                (true, []) => output.line(format_args!("{id} of {component}: nothing to send")),
                (true, to) => output.line(format_args!(
                    "{id} of {component}: would go to {}",
                    to.join(", ")
                )),
            }
        })
    }

    pub(super) fn missing<'a>(&mut self, ids: impl Iterator<Item = &'a String>) -> Outcome {
        for id in ids {
            self.counts.missing += 1;
            match self.output.is_json {
                true => self
                    .output
                    .json(&json!({ "id": id, "problems": ["there is no such row"] }))?,
                false => self
                    .output
                    .line(format_args!("{id}: there is no such row"))?,
            }
        }
        Ok(())
    }

    pub(super) fn tell(&mut self, is_dry: bool) -> std::io::Result<()> {
        let counts = &self.counts;
        if self.output.is_json {
            return self.output.json(&json!({
                "rows": counts.rows,
                "messages": counts.messages,
                "failed": counts.failed + counts.missing,
                "marked": counts.marked,
                "dryRun": is_dry,
            }));
        }
        let (would, failed) = (
            if is_dry { "would send" } else { "sent" },
            counts.failed + counts.missing,
        );
        self.output.line(format_args!(
            "{would} {} rows as {} messages, {failed} failed, {} marked published",
            counts.rows, counts.messages, counts.marked
        ))
    }
}
