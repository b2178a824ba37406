//! Which of the dead deliveries a command is about.

use bson::DateTime;
use clap::Args;
use mongodb::Database;

use crate::{
    Error,
    cli::{
        argument::{self, refuse},
        options::Configuration,
        sinks::stranger,
        target::{Aim, Target},
    },
    config::masked,
    store::{
        deliveries::{
            Deliveries,
            inspect::{Delivery, Wanted},
        },
        registry::Registry,
    },
};

/// The oldest first, of all components together.
#[derive(Args)]
pub(super) struct Selection {
    /// Only those of these rows, by their _id as `dead list` prints it
    #[arg(value_name = "ID")]
    pub(super) ids: Vec<String>,
    /// Only those of this sink
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// Only those of this label
    #[arg(long, value_name = "LABEL")]
    label: Option<String>,
    /// Only those given up since then: a time, or how long ago, such as 2h
    #[arg(long, value_name = "TIME", value_parser = argument::moment)]
    since: Option<DateTime>,
    /// Only those given up before then
    #[arg(long, value_name = "TIME", value_parser = argument::moment)]
    until: Option<DateTime>,
    /// Whatever is dead
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// At most so many; 0: all
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// The latest first
    #[arg(long)]
    newest: bool,
    #[command(flatten)]
    target: Target,
}

/// A delivery that is given up, and where it is kept.
pub(super) struct Found {
    pub(super) component: String,
    pub(super) deliveries: Deliveries,
    pub(super) delivery: Delivery,
}

impl Selection {
    /// Refuses to mean everything without a word.
    pub(super) fn check(&self) -> Result<(), Error> {
        let is_narrowed = self.sink.is_some()
            || self.label.is_some()
            || self.since.is_some()
            || self.until.is_some()
            || self.target.is_narrowed();
        match is_narrowed || self.all || !self.ids.is_empty() {
            true => Ok(()),
            false => Err(refuse(
                "ID",
                "",
                "name rows, or narrow by --sink, --label, --since, --until or --component; or pass --all if all is meant",
            )),
        }
    }

    pub(super) async fn aims(
        &self,
        configuration: &Configuration,
        database: &Database,
    ) -> Result<Vec<Aim>, Error> {
        self.target.aims(configuration, database).await
    }

    /// Those that are wanted, in order.
    pub(super) async fn find(&self, aims: &[Aim]) -> Result<Vec<Found>, Error> {
        let wanted = self.wanted();
        let mut all = Vec::new();
        for aim in aims {
            let deliveries = Deliveries::new(&aim.store);
            let found = deliveries.select(&wanted).await?;
            all.extend(found.into_iter().map(|delivery| Found {
                component: aim.component.id(),
                deliveries: deliveries.clone(),
                delivery,
            }));
        }
        all.sort_by_key(|found| found.delivery.dead_at);
        if self.newest {
            all.reverse();
        }
        if self.limit > 0 {
            all.truncate(self.limit as usize);
        }
        Ok(all)
    }

    /// A sink that is not known and of which nothing was `found`, and what is known of the rows that were named and have nothing
    /// dead among that, a line each.
    pub(super) async fn rest(
        &self,
        database: &Database,
        aims: &[Aim],
        found: &[Found],
    ) -> Result<Vec<String>, Error> {
        let mut lines = Vec::new();
        if let Some(sink) = self.sink.as_ref().filter(|_| found.is_empty()) {
            let known = Registry::new(database).look_if_allowed().await?;
            let told = stranger(sink, &known, database);
            lines.extend(told.map(|told| format!("{}: {told}", masked(sink))));
        }
        for id in &self.ids {
            let mut known = Vec::new();
            for aim in aims {
                known.extend(Deliveries::new(&aim.store).of_row(id, false).await?);
            }
            let is_found = |one: &Delivery| found.iter().any(|found| found.delivery.row == one.row);
            if known.iter().any(is_found) {
                continue;
            }
            let states: Vec<String> = known
                .iter()
                .map(|one| format!("{} is {}", one.route, one.state))
                .collect();
            lines.push(match states.as_slice() {
                [] => format!("{}: nothing is dead", masked(id)),
                states => format!(
                    "{}: nothing that is meant is dead, {}",
                    id,
                    states.join(", ")
                ),
            });
        }
        Ok(lines)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            rows: self.ids.clone(),
            sink: self.sink.clone(),
            label: self.label.clone(),
            since: self.since,
            until: self.until,
            is_newest_first: self.newest,
            limit: self.limit.into(),
        }
    }
}

impl Found {
    /// As a line names it.
    pub(super) fn name(&self) -> String {
        format!(
            "{} of {} to {}",
            self.delivery.row, self.component, self.delivery.route
        )
    }
}
