//! `dead list`.

use clap::Args;

use super::{
    as_json,
    selection::{Found, Selection},
};
use crate::cli::{
    failure::{Outcome, say},
    options::Options,
    output::{Output, columns, is_terminal, time},
};

/// List deliveries that were given up, and those that were abandoned.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox dead list --sink billing --newest --json | jq .error")]
pub(super) struct List {
    #[command(flatten)]
    selection: Selection,
}

const HEADER: [&str; 7] = ["ID", "SINK", "LABEL", "STATE", "ATTEMPTS", "SINCE", "WHY"];

impl List {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.selection.aims(&configuration, &database).await?;
        let found = self.selection.find(&aims).await?;
        let mut output = Output::new(options.json);
        if is_terminal() && !output.is_json {
            output.line(line(HEADER.map(str::to_owned)))?;
        }
        for one in &found {
            match output.is_json {
                true => output.json(&as_json(&one.component, &one.delivery))?,
                false => output.line(line(cells(one)))?,
            }
        }
        output.flush()?;
        // Not among the data.
        for line in self.selection.rest(&database, &aims, &found).await? {
            say(&line);
        }
        Ok(())
    }
}

fn cells(one: &Found) -> [String; 7] {
    let delivery = &one.delivery;
    let (sink, label) = delivery.parts();
    let since = delivery.dead_at.map(|at| time(at.timestamp_millis()));
    [
        delivery.row.clone(),
        sink.to_owned(),
        label.to_owned(),
        delivery.state.clone(),
        delivery.attempts.to_string(),
        since.unwrap_or_else(|| "-".into()),
        delivery.error.clone(),
    ]
}

/// In columns for people, between tabs for programs.
fn line(cells: [String; 7]) -> String {
    match is_terminal() {
        true => columns(&cells, &[36, 16, 12, 9, 8, 24, 0]),
        false => cells.join("\t"),
    }
}
