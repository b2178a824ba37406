//! `dead show`.

use bson::{Bson, Document};
use clap::Args;
use serde_json::Value;

use super::as_json;
use crate::{
    cli::{
        failure::{Failure, Outcome},
        options::Options,
        output::Output,
        target::Target,
    },
    config::masked,
    store::deliveries::{Deliveries, inspect::Delivery},
};

/// Show all that is kept of the failed deliveries of a row, its copy included.
///
/// The row itself may have expired long ago.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox dead show 0190163d-8694-739b-8f0c-1d3a9d2b6c11")]
pub(super) struct Show {
    /// The row's _id as `dead list` prints it
    id: String,
    /// Only of this sink
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    #[command(flatten)]
    target: Target,
}

impl Show {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.target.aims(&configuration, &database).await?;
        let mut output = Output::new(options.json);
        let mut is_found = false;
        for aim in &aims {
            let found = Deliveries::new(&aim.store).of_row(&self.id, true).await?;
            for delivery in found.iter().filter(|one| self.wants(one)) {
                is_found = true;
                let shown = shown(&aim.component.id(), delivery);
                match output.is_json {
                    true => output.json(&shown)?,
                    false => output.line(format_args!("{shown:#}"))?,
                }
            }
        }
        match is_found {
            true => Ok(output.flush()?),
            false => Err(Failure::Because(format!(
                "no failed delivery of {} is kept in {}; `toa-outbox deliveries` tells what became of a row",
                masked(&self.id),
                database.name(),
            ))),
        }
    }

    fn wants(&self, delivery: &Delivery) -> bool {
        let sink = self.sink.as_deref();
        sink.is_none_or(|sink| delivery.parts().0 == sink)
    }
}

fn shown(component: &str, delivery: &Delivery) -> Value {
    let mut shown = as_json(component, delivery);
    let copy = delivery.copy.as_ref();
    let copy = copy.map(|copy| match Document::try_from(copy) {
        Ok(row) => Bson::Document(row).into_relaxed_extjson(),
        Err(error) => Value::String(format!("unreadable BSON: {error}")),
    });
    shown["row"] = copy.unwrap_or(Value::Null);
    shown
}
