//! `list`: rows, the oldest first.

use std::time::Duration;

use bson::{Document, RawDocumentBuf};
use clap::Args;
use serde_json::{Value, json};

use super::{
    argument,
    failure::Outcome,
    options::Options,
    output::{Output, columns, is_terminal, span, time},
    target::{Aim, Target},
};
use crate::{
    Error,
    routes::Rendering,
    row::now,
    store::inspect::{Glance, Kind, Rows, Wanted},
};

/// List rows: those that wait, those that are published, those that no pump can read.
///
/// Those that wait come first, the longest due before the others, of all components together.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox list --component tea.pots --older-than 5m --where '{\"event.state.material\": \"clay\"}'")]
pub(super) struct List {
    #[command(flatten)]
    target: Target,
    /// Those that wait and those that are published
    #[arg(long, conflicts_with_all = ["published", "unpublished", "unreadable"])]
    all: bool,
    /// Those that wait; the default
    #[arg(long, conflicts_with_all = ["published", "unreadable"])]
    unpublished: bool,
    /// Those that are published
    #[arg(long, conflicts_with = "unreadable")]
    published: bool,
    /// Those that no pump can read, and why
    #[arg(long)]
    unreadable: bool,
    /// Those in this lane
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..128))]
    lane: Option<u8>,
    /// Those that owe this label; repeat it for several
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// Those due for longer, such as 5m
    #[arg(long, value_name = "SPAN", value_parser = argument::span)]
    older_than: Option<Duration>,
    /// Those that fit a MongoDB filter
    #[arg(long = "where", value_name = "JSON", value_parser = argument::filter)]
    filter: Option<Document>,
    /// At most so many; 0: all
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
}

impl List {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.target.aims(&configuration, &database).await?;
        let mut output = Output::new(options.json);
        let mut left = match self.limit {
            0 => u32::MAX,
            limit => limit,
        };
        if is_terminal() && !output.is_json {
            output.line(line(HEADER.map(str::to_owned)))?;
        }
        for kind in self.kinds() {
            let mut sources = Vec::with_capacity(aims.len());
            for aim in &aims {
                sources.push(Source::open(aim, self.wanted(kind, left)).await?);
            }
            while left > 0
                && let Some(first) = first(&sources)
            {
                sources[first].tell(&mut output)?;
                sources[first].advance().await?;
                left -= 1;
            }
        }
        Ok(output.flush()?)
    }

    fn kinds(&self) -> Vec<Kind> {
        match (self.all, self.published, self.unreadable) {
            (true, _, _) => vec![Kind::Unpublished, Kind::Published],
            (_, true, _) => vec![Kind::Published],
            (_, _, true) => vec![Kind::Unreadable],
            _ => vec![Kind::Unpublished],
        }
    }

    fn wanted(&self, kind: Kind, limit: u32) -> Wanted {
        Wanted {
            kind,
            lane: self.lane,
            owing: self
                .labels
                .iter()
                .map(|label| Rendering::to_amqp(label))
                .collect(),
            due_for: self.older_than,
            filter: self.filter.clone(),
            limit: match self.limit {
                0 => 0,
                _ => limit.into(),
            },
        }
    }
}

/// The rows of one component that are still to be listed, the next of them at hand.
struct Source<'a> {
    aim: &'a Aim,
    kind: Kind,
    rows: Rows,
    head: Option<(Glance, RawDocumentBuf)>,
}

impl<'a> Source<'a> {
    async fn open(aim: &'a Aim, wanted: Wanted) -> Result<Self, Error> {
        let kind = wanted.kind;
        let mut source = Self {
            aim,
            kind,
            rows: aim.store.select(wanted, kind == Kind::Unreadable).await?,
            head: None,
        };
        source.advance().await?;
        Ok(source)
    }

    async fn advance(&mut self) -> Result<(), Error> {
        let row = self.aim.store.next(&mut self.rows).await?;
        self.head = row.map(|row| (Glance::of(&row), row));
        Ok(())
    }

    /// What the rows of a kind are ordered by.
    fn place(&self) -> Option<i64> {
        let (row, _) = self.head.as_ref()?;
        let place = match self.kind {
            Kind::Unpublished => row.pending,
            Kind::Published => row.published_at,
            Kind::Unreadable | Kind::Any => None,
        };
        Some(place.unwrap_or(i64::MIN))
    }

    fn tell(&self, output: &mut Output) -> std::io::Result<()> {
        let Some((row, raw)) = &self.head else {
            return Ok(());
        };
        let problem = match self.kind {
            Kind::Unreadable => self.aim.store.problem(raw),
            _ => None,
        };
        match output.is_json {
            true => output.json(&self.json(row, problem)),
            false => output.line(line(self.columns(row, problem))),
        }
    }

    fn json(&self, row: &Glance, problem: Option<String>) -> Value {
        json!({
            "id": row.id,
            "component": self.aim.component.id(),
            "collection": self.aim.component.rows(),
            "lane": row.lane,
            "published": row.is_published,
            "pending": row.pending.map(time),
            "publishedAt": row.published_at.map(time),
            "outstanding": row.outstanding,
            "problem": problem,
        })
    }

    fn columns(&self, row: &Glance, problem: Option<String>) -> [String; 5] {
        let state = match (row.published_at, row.pending) {
            (Some(at), _) => format!("published {}", time(at)),
            (None, Some(pending)) if pending > now() => format!("due in {}", span(pending - now())),
            (None, Some(pending)) => format!("due for {}", span(now() - pending)),
            (None, None) => "unreadable".into(),
        };
        let owes = match (&row.outstanding, row.is_published) {
            (_, true) => "nothing".into(),
            (Some(owed), _) => owed.join(","),
            (None, _) => "all".into(),
        };
        let lane = row.lane.map_or_else(|| "-".into(), |lane| lane.to_string());
        [
            row.id.clone(),
            self.aim.component.id(),
            lane,
            state,
            problem.unwrap_or(owes),
        ]
    }
}

const HEADER: [&str; 5] = ["ID", "COMPONENT", "LANE", "STATE", "OWES"];

/// In columns for people, between tabs for programs.
fn line(cells: [String; 5]) -> String {
    match is_terminal() {
        // Rows are told as they come, so the widths are those that most of them need.
        true => columns(&cells, &[36, 20, 4, 34, 0]),
        false => cells.join("\t"),
    }
}

fn first(sources: &[Source<'_>]) -> Option<usize> {
    let places = sources.iter().enumerate();
    let places = places.filter_map(|(index, source)| Some((source.place()?, index)));
    places.min().map(|(_, index)| index)
}
