//! `publish`: sends rows again, whoever has sent them before.

mod broker;
mod marks;
mod run;
mod sending;
mod stop;

use std::{collections::BTreeSet, time::Duration};

use bson::Document;
use clap::Args;
use futures::{StreamExt, stream::BoxStream};
use indicatif::{ProgressBar, ProgressStyle};
use mongodb::Database;

use super::{
    argument::{self, refuse},
    failure::{Failure, Outcome},
    options::{Configuration, Options},
    output::Output,
    target::{Aim, Target},
};
use crate::{
    Amqp, Error,
    slots::Census,
    store::{
        inspect::{self, Kind, Wanted},
        registry::{Known, Registry},
    },
};
use broker::{connected, watch};
use run::{Counts, Run};
use sending::Sending;
use stop::Stop;

/// How long the broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the bar is drawn while nothing happens.
const TICK: Duration = Duration::from_millis(200);

type Rows<'a> = BoxStream<'a, Result<bson::RawDocumentBuf, Error>>;

/// Send rows again, also those that are published already.
///
/// Of a published row all labels are sent, of another those it owes; that one is then marked, if it is known what else
/// it owes: by the components declared here, or by a replica that runs. A replica that is sending a row at the same
/// moment repeats it: consumers tell by message_id and type.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox publish --component tea.pots --where '{\"event.state.material\": \"clay\"}' --dry-run")]
pub(super) struct Publish {
    /// Their _id as `list` prints it
    #[arg(
        value_name = "ID",
        required_unless_present = "filter",
        conflicts_with = "filter"
    )]
    ids: Vec<String>,
    /// All that fit a MongoDB filter
    #[arg(long = "where", value_name = "JSON", value_parser = argument::filter)]
    filter: Option<Document>,
    #[command(flatten)]
    target: Target,
    /// Only this label; repeat it for several
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// At most so many rows; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u32,
    /// Say what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Mark rows, though nothing says what else they owe
    #[arg(long)]
    mark: bool,
    /// Send everything there is, where the filter is {}
    #[arg(long)]
    yes: bool,
}

impl Publish {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        if self.filter.as_ref().is_some_and(Document::is_empty) && !self.yes && !self.dry_run {
            let expected = "every row there is would be sent again: add --yes if that is meant";
            return Err(refuse("--where", "{}", expected).into());
        }
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.target.aims(&configuration, &database).await?;
        self.check_labels(&aims)?;
        let mut run = Run {
            output: Output::to_whoever_reads(options.json),
            bar: self.bar(),
            inflight: configuration.settings.inflight as usize,
            counts: Counts::default(),
            left: match self.limit {
                0 => usize::MAX,
                limit => limit as usize,
            },
            stop: Stop::default(),
        };
        let sink = match self.dry_run {
            true => None,
            false => Some(connected(&configuration.settings).await?),
        };
        let (bar, stop) = (run.bar.clone(), run.stop.clone());
        let ended = tokio::select! {
            ended = self.all(&configuration, &database, &aims, sink.as_ref(), &mut run) => ended,
            () = stop.listen(PATIENCE) => Err(Failure::Because(
                "interrupted at once; what has left may not be marked, and is sent again".into(),
            )),
            () = watch(sink.as_ref(), &bar) => Ok(()),
        };
        bar.finish_and_clear();
        let told = run.tell(self.dry_run);
        ended?;
        told?;
        if stop.cut.is_cancelled() {
            return Err(Failure::Because(
                "interrupted; what was still on its way may arrive, and is not marked".into(),
            ));
        }
        if stop.asked.is_cancelled() {
            return Err(Failure::Because(
                "interrupted; what has left is marked".into(),
            ));
        }
        match run.counts.failed + run.counts.missing {
            0 => Ok(()),
            _ => Err(Failure::Said),
        }
    }

    async fn all(
        &self,
        configuration: &Configuration,
        database: &Database,
        aims: &[Aim],
        sink: Option<&Amqp>,
        run: &mut Run,
    ) -> Outcome {
        let census = match sink {
            Some(_) => Some(Census::glance(database).await?),
            None => None,
        };
        let known = match sink {
            Some(_) => Registry::new(database).look_if_allowed().await?,
            None => Known::default(),
        };
        let mut found = BTreeSet::new();
        let is_declared = !configuration.components.is_empty();
        let stop = run.stop.asked.clone();
        for aim in aims {
            let group = census
                .as_ref()
                .and_then(|census| census.group_of(&aim.component.rows()));
            let group = group.unwrap_or_default();
            let own = aim.routes.names(aim.routes.whole());
            let rows = aim.component.rows();
            let registered = known.routes_of(&rows).filter(|route| !own.contains(route));
            let mut others = group.strange(&own);
            others.extend(registered.map(str::to_owned));
            let sending = Sending {
                aim,
                sink,
                labels: &self.labels,
                others,
                marks: self.mark || is_declared || !group.routes().is_empty(),
                patience: configuration.settings.confirm_timeout,
            };
            let rows = stop.run_until_cancelled(self.rows(aim, &mut found));
            let Some(rows) = rows.await else {
                break;
            };
            run.component(&sending, rows?).await?;
        }
        if stop.is_cancelled() {
            return Ok(());
        }
        run.missing(self.ids.iter().filter(|id| !found.contains(*id)))
    }

    /// The rows of one component; `found` learns which of the ids are among them.
    async fn rows<'a>(
        &self,
        aim: &'a Aim,
        found: &mut BTreeSet<String>,
    ) -> Result<Rows<'a>, Error> {
        if self.filter.is_none() {
            let ids: Vec<Vec<_>> = self.ids.iter().map(|id| inspect::ids(id)).collect();
            let rows = aim.store.with_ids(&ids.concat()).await?;
            let is_one = |id: &&String| rows.iter().any(|row| inspect::is(row, id));
            found.extend(self.ids.iter().filter(is_one).cloned());
            return Ok(futures::stream::iter(rows).map(Ok).boxed());
        }
        let wanted = Wanted {
            kind: Kind::Any,
            lane: None,
            owing: Vec::new(),
            due_for: None,
            filter: self.filter.clone(),
            limit: self.limit.into(),
        };
        let selected = aim.store.select(wanted, true).await?;
        let next = async move |mut selected| {
            let row = aim.store.next(&mut selected).await?;
            Ok(row.map(|row| (row, selected)))
        };
        Ok(futures::stream::try_unfold(selected, next).boxed())
    }

    fn check_labels(&self, aims: &[Aim]) -> Result<(), Error> {
        let known: BTreeSet<&str> = aims
            .iter()
            .flat_map(|aim| aim.routes.all.iter().map(|route| route.label.name()))
            .collect();
        match self
            .labels
            .iter()
            .find(|label| !known.contains(label.as_str()))
        {
            None => Ok(()),
            Some(stranger) => {
                let known: Vec<&str> = known.into_iter().collect();
                let expected = format!("no component here has it; there are {}", known.join(", "));
                Err(refuse("--label", stranger, expected))
            }
        }
    }

    /// Drawn on a terminal only.
    fn bar(&self) -> ProgressBar {
        let (bar, sent) = match self.ids.len() {
            0 => (ProgressBar::new_spinner(), "{pos}"),
            ids => (ProgressBar::new(ids as u64), "{pos} of {len}"),
        };
        let style = format!("{{spinner}} {sent} rows sent, {{per_sec}}, {{elapsed}} {{msg}}");
        let bar = bar.with_style(
            ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.enable_steady_tick(TICK);
        bar
    }
}
