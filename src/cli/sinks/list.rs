//! `sinks list`.

use clap::Args;

use super::facts::{self, Sink};
use crate::{
    cli::{
        failure::Outcome,
        options::Options,
        output::{Output, span, time},
        target::Target,
    },
    slots::Census,
    store::registry::Registry,
};

/// List every sink: who serves it, what it is owed, and which row it pins.
///
/// A row that a sink is owed is kept until it has it, however long that takes: PINS is the oldest of them, and since when.
/// A replica says every five minutes that it has a sink: one that nobody serves may have been served for so long after it was
/// seen. Rows are counted up to 10 000 of a kind. Replicas are watched for one and a half beats (TOA_ATOMICITY_INTERVAL).
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox sinks list --json | jq 'select(.paused or (.served | not))'")]
pub(super) struct List {
    #[command(flatten)]
    target: Target,
}

impl List {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.target.aims(&configuration, &database).await?;
        let census = Census::take(&database, configuration.settings.beat).await?;
        let known = Registry::new(&database).look().await?;
        let sinks = facts::sinks(&database, &aims, &census, &known).await?;
        let mut output = Output::new(options.json);
        match output.is_json {
            true => sinks
                .iter()
                .try_for_each(|sink| output.json(&sink.json()))?,
            false => table(&mut output, &sinks)?,
        }
        Ok(output.flush()?)
    }
}

const HEADER: [&str; 12] = [
    "SINK",
    "COLLECTION",
    "KIND",
    "MODE",
    "LABELS",
    "SINCE",
    "SERVED",
    "OWED",
    "PINS",
    "RETRYING",
    "DEAD",
    "ABANDONED",
];

fn table(output: &mut Output, sinks: &[Sink]) -> std::io::Result<()> {
    output.table(&HEADER, sinks.iter().map(row))?;
    let mut told: Vec<&str> = Vec::new();
    for sink in sinks {
        if told.contains(&sink.name.as_str()) {
            continue;
        }
        if let Some(line) = paused(sink) {
            output.line(format_args!("\n{line}"))?;
            told.push(&sink.name);
        }
    }
    Ok(())
}

fn row(sink: &Sink) -> Vec<String> {
    let since = sink.since();
    vec![
        sink.name.clone(),
        sink.collection.clone(),
        sink.kind().to_owned(),
        sink.mode().to_owned(),
        sink.labels().join(","),
        since.map_or_else(|| "-".into(), |since| time(since.timestamp_millis())),
        served(sink),
        sink.rows(),
        pins(sink),
        sink.count.retrying.to_string(),
        sink.count.dead.to_string(),
        sink.count.abandoned.to_string(),
    ]
}

/// By how many, or how long ago by anybody.
fn served(sink: &Sink) -> String {
    match (sink.members.len(), sink.ago) {
        (0, Some(ago)) => {
            let ago = span(ago.as_millis().try_into().unwrap_or(i64::MAX));
            match sink.is_served() {
                true => format!("{ago} ago"),
                false => format!("by nobody, seen {ago} ago"),
            }
        }
        (0, None) => "by nobody".into(),
        (members, _) => format!("by {members}"),
    }
}

pub(in crate::cli) fn pins(sink: &Sink) -> String {
    match &sink.debt.oldest {
        Some(oldest) if oldest.age < 0 => "-".into(),
        Some(oldest) => format!("{} {}", span(oldest.age), oldest.row),
        None => "-".into(),
    }
}

/// How it came to be, and how it ends.
pub(in crate::cli) fn paused(sink: &Sink) -> Option<String> {
    let pause = sink.pause.as_ref()?;
    let advice = pause.advice.map(|advice| {
        let advice = span(advice.as_millis().try_into().unwrap_or(i64::MAX));
        format!("; the destination asked to be left alone for {advice}")
    });
    Some(format!(
        "{} is paused since {}: {}{}; to resume it: toa-outbox sinks resume {} --circuit {}",
        sink.name,
        time(pause.since.timestamp_millis()),
        pause.reason,
        advice.unwrap_or_default(),
        sink.name,
        pause.circuit
    ))
}
