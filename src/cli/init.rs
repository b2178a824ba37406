//! `init`: the collections, their indexes and their validators.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{
    argument::refuse,
    failure::{Failure, Outcome},
    options::{Configuration, Options},
    output::Output,
    target::Target,
};
use crate::{Component, Error, init, store::Store, store::survey::Lack};

/// Create outbox collections with their indexes, retention and validator.
///
/// For a user that may, where the service itself may not. Retention comes from TOA_OUTBOX_RETENTION.
/// Safe to repeat.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox init --mongodb 'mongodb://localhost/tea?replicaSet=rs0' --dry-run tea_pots_outbox")]
pub(super) struct Init {
    /// The outbox collections, such as tea_pots_outbox [default: those of all components]
    #[arg(value_name = "COLLECTION")]
    collections: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// With what services with sinks of their own need: where failed deliveries are kept, and an index more
    #[arg(long)]
    sinks: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

impl Init {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let retention = configuration.settings.retention;
        for name in &self.collections {
            named(name, &configuration, database.name())?;
        }
        let mut collections = self.collections.clone();
        if collections.is_empty() || self.target.is_narrowed() {
            let components = self.target.components(&configuration, &database).await?;
            collections.extend(components.iter().map(crate::Component::rows));
        }
        if collections.is_empty() {
            return Err(Failure::Because(format!(
                "no component is configured and {} has no outbox collection: name one, such as tea_pots_outbox",
                database.name()
            )));
        }
        let mut output = Output::to_whoever_reads(options.json);
        for collection in &collections {
            let store = Store::new(&database, collection);
            let lacks = self.lacks(&store, retention).await;
            if !self.dry_run {
                init(&database, collection, retention).await?;
                if self.sinks {
                    store.init_for_sinks().await?;
                }
            }
            self.tell(&mut output, collection, lacks)?;
        }
        Ok(())
    }

    async fn lacks(&self, store: &Store, retention: Duration) -> Result<Vec<Lack>, Error> {
        let mut lacks = store.lacks(retention).await?;
        if self.sinks {
            lacks.extend(store.lacks_for_sinks().await?);
        }
        Ok(lacks)
    }

    fn tell(
        &self,
        output: &mut Output,
        collection: &str,
        lacks: Result<Vec<Lack>, Error>,
    ) -> Outcome {
        // Once it is done, what it took may stay unknown.
        let lacks = match lacks {
            Err(error) if self.dry_run => return Err(error.into()),
            lacks => lacks.unwrap_or_default(),
        };
        let work: Vec<String> = lacks.iter().map(Lack::work).collect();
        if output.is_json {
            return Ok(output.json(&json!({
                "collection": collection,
                "work": work,
                "done": !self.dry_run,
            }))?);
        }
        if !self.dry_run {
            return Ok(output.line(format_args!("{collection}: ready"))?);
        }
        if work.is_empty() {
            output.line(format_args!("{collection}: nothing to do"))?;
        }
        for work in work {
            output.line(format_args!("{collection}: would {work}"))?;
        }
        Ok(())
    }
}

/// Whether a collection is one for rows: on any other the validator would refuse what belongs there.
fn named(name: &str, configuration: &Configuration, database: &str) -> Result<(), Error> {
    let declared = &configuration.components;
    if declared.iter().any(|component| component.rows() == name)
        || Component::of_rows(database, name).is_some()
    {
        return Ok(());
    }
    let meant = declared
        .iter()
        .find(|component| component.entities() == name || component.id() == name);
    let meant = meant.map_or_else(|| suggestion(name), Component::rows);
    let expected = format!("this is no outbox collection; did you mean {meant}?");
    Err(refuse("COLLECTION", name, expected))
}

/// Made of no more than a name: a connection string in its place is not repeated.
fn suggestion(name: &str) -> String {
    let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    match !name.is_empty() && name.chars().all(is_name) {
        true => format!("{}_outbox", name.replace('.', "_")),
        false => "tea_pots_outbox".into(),
    }
}
