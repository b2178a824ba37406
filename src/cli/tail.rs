//! `tail`: rows as they are written.

use bson::{Bson, Document, RawDocument};
use clap::Args;
use mongodb::Database;
use serde_json::{Value, json};

use super::{
    failure::{Failure, Outcome, say},
    options::{Configuration, Options},
    output::{Output, time},
    target::Target,
};
use crate::{
    Component,
    store::{
        decode,
        feed::{Collections, Feed},
        inspect::Glance,
        server::Server,
    },
};

/// Follow rows live, from now on, until Ctrl-C.
///
/// Reads a change stream of its own: nothing is published, and nobody's work is touched.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox tail --component tea.pots --state --json | jq .state.material")]
pub(super) struct Tail {
    #[command(flatten)]
    target: Target,
    /// With the new state of each entity
    #[arg(long)]
    state: bool,
}

impl Tail {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        if Server::ask(&database).await?.is_standalone {
            return Err(Failure::Because(format!(
                "following {}: a standalone server has no change streams; run it as a replica set, one member is enough",
                database.name()
            )));
        }
        tokio::select! {
            ended = self.follow(&configuration, &database, Output::new(options.json)) => ended,
            // Without a way to be told, it is ended the hard way.
            Ok(()) = tokio::signal::ctrl_c() => Ok(()),
        }
    }

    async fn follow(
        &self,
        configuration: &Configuration,
        database: &Database,
        mut output: Output,
    ) -> Outcome {
        let components = self.target.components(configuration, database).await?;
        let is_open = configuration.components.is_empty() && !self.target.is_narrowed();
        let collections = match is_open {
            true => Collections::All,
            false => Collections::These(components.iter().map(Component::rows).collect()),
        };
        let mut feed = Feed::of_all(database, &collections, self.state).await?;
        say(&match &collections {
            Collections::All => format!("following every outbox collection of {}", database.name()),
            Collections::These(named) => format!("following {}", named.join(", ")),
        });
        loop {
            let Some(inserted) = feed.next().await? else {
                continue;
            };
            if let (Some(collection), Some(row)) = (inserted.collection(), inserted.row()) {
                let component = name(&components, database, collection);
                self.tell(&mut output, component, row)?;
            }
        }
    }

    fn tell(
        &self,
        output: &mut Output,
        component: String,
        raw: &RawDocument,
    ) -> std::io::Result<()> {
        let row = Glance::of(raw);
        let state = self.state.then(|| state(raw));
        if output.is_json {
            output.json(&json!({
                "id": row.id,
                "component": component,
                "lane": row.lane,
                "pending": row.pending.map(time),
                "state": state,
            }))?;
        } else {
            let lane = row.lane.map_or_else(|| "-".into(), |lane| lane.to_string());
            let pending = row.pending.map_or_else(|| "-".into(), time);
            let state = state.map(|state| format!("\t{state}")).unwrap_or_default();
            output.line(format_args!(
                "{}\t{component}\t{lane}\t{pending}{state}",
                row.id
            ))?;
        }
        output.flush()
    }
}

/// One that has appeared meanwhile is named by its collection.
fn name(components: &[Component], database: &Database, collection: &str) -> String {
    let known = components
        .iter()
        .find(|component| component.rows() == collection);
    match known {
        Some(component) => component.id(),
        None => Component::of_rows(database.name(), collection)
            .map_or_else(|| collection.to_owned(), |component| component.id()),
    }
}

fn state(raw: &RawDocument) -> Value {
    let state = decode(raw).map_or_else(|_| Document::new(), |row| row.event.state);
    Bson::Document(state).into_relaxed_extjson()
}
