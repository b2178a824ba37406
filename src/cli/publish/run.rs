//! A call of `publish` under way: what is sent, what has come of it, and the telling of that.

use std::pin::pin;

use futures::StreamExt;
use indicatif::ProgressBar;
use serde_json::json;

use super::{
    Rows,
    marks::Marks,
    sending::{Sending, Sent},
    stop::Stop,
};
use crate::{
    Error,
    cli::{failure::Outcome, output::Output},
    config::masked,
};

#[derive(Default)]
pub(super) struct Counts {
    rows: u64,
    messages: u64,
    pub(super) failed: u64,
    marked: u64,
    /// Rows that were sent and left unpublished, as nothing says what else they owe.
    unmarked: u64,
    pub(super) missing: u64,
}

/// What is going on, and what has come of it.
pub(super) struct Run {
    pub(super) output: Output,
    pub(super) bar: ProgressBar,
    pub(super) inflight: usize,
    pub(super) counts: Counts,
    pub(super) left: usize,
    pub(super) stop: Stop,
}

impl Run {
    /// Sends rows, and marks what has left of them, however that ends.
    pub(super) async fn component(&mut self, sending: &Sending<'_>, rows: Rows<'_>) -> Outcome {
        let mut marks = Marks::default();
        let ended = self.each(sending, rows, &mut marks).await;
        ended.and(self.mark(sending, &mut marks).await)
    }

    /// After an error or an interruption nothing more is taken up, and what is on its way has its time.
    async fn each(&mut self, sending: &Sending<'_>, rows: Rows<'_>, marks: &mut Marks) -> Outcome {
        let enough = self.stop.asked.child_token();
        let sends = rows
            .take(self.left)
            .take_until(enough.cancelled())
            .map(async |row| Ok::<_, Error>(sending.send(&row?).await))
            .buffer_unordered(self.inflight);
        let mut sends = pin!(sends);
        let cut = self.stop.cut.clone();
        let mut outcome = Ok(());
        while let Some(Some(sent)) = cut.run_until_cancelled(sends.next()).await {
            let told = match sent {
                Ok(sent) => self.sent(sending, sent, marks).await,
                Err(error) => Err(error.into()),
            };
            if told.is_err() {
                enough.cancel();
            }
            outcome = outcome.and(told);
        }
        outcome
    }

    async fn sent(&mut self, sending: &Sending<'_>, sent: Sent, marks: &mut Marks) -> Outcome {
        self.left = self.left.saturating_sub(1);
        self.bar.inc(1);
        self.counts.messages += sent.exchanges.len() as u64;
        match sent.problems.is_empty() {
            true => self.counts.rows += 1,
            false => self.counts.failed += 1,
        }
        let told = self.row(sending, &sent);
        match sending.marks {
            true => marks.add(sent),
            false => self.counts.unmarked += u64::from(sent.mark.is_some()),
        }
        if marks.is_full() {
            self.mark(sending, marks).await?;
        }
        Ok(told?)
    }

    async fn mark(&mut self, sending: &Sending<'_>, marks: &mut Marks) -> Outcome {
        let marked = marks.flush(sending).await;
        self.counts.marked += marked.rows;
        for (rows, problem) in marked.problems {
            self.counts.failed += rows;
            self.counts.rows = self.counts.rows.saturating_sub(rows);
            self.problem(&sending.aim.component.id(), &problem)?;
        }
        Ok(())
    }

    fn problem(&mut self, component: &str, problem: &str) -> std::io::Result<()> {
        let (output, bar) = (&mut self.output, &self.bar);
        bar.suspend(|| match output.is_json {
            true => output.json(&json!({ "component": component, "problems": [problem] })),
            false => output.line(format_args!("{component}: {problem}")),
        })
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
            let id = masked(id);
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
                "unmarked": counts.unmarked,
                "dryRun": is_dry,
            }));
        }
        let (would, failed) = (
            if is_dry { "would send" } else { "sent" },
            counts.failed + counts.missing,
        );
        self.output.line(format_args!(
            "{would} {} rows as {} messages, {failed} failed, {} marked",
            counts.rows, counts.messages, counts.marked
        ))?;
        match counts.unmarked {
            0 => Ok(()),
            rows => self
                .output
                .line(format_args!("{rows} of them wait on: {UNMARKED}")),
        }
    }
}

const UNMARKED: &str = "no component is declared here and no replica says what it serves, so they may owe other \
                        labels; declare the components in toa-outbox.toml, or pass --mark if these labels are all";
