//! `check`: what is wrong, and how to mend it.

mod broker;
mod replicas;
mod rows;
mod server;
mod sinks;

use clap::{Args, builder::styling::AnsiColor};
use serde::Serialize;

use super::{
    failure::{Failure, Outcome},
    options::{Configuration, Options},
    output::{Output, coloured},
    target::{Aim, Target},
};

/// Say what is wrong and how to mend it: settings, servers, rights, indexes, rows, replicas.
///
/// Nothing is changed, neither in the database nor at the broker. Ends with 1 if something is wrong; a warning is
/// not. Takes a few seconds, as replicas are watched for one and a half beats.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox check --mongodb 'mongodb://localhost/tea?replicaSet=rs0' --amqp amqp://localhost")]
pub(super) struct Check {
    #[command(flatten)]
    target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Wrong,
}

#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    /// What it is about.
    subject: String,
    finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn fine(&mut self, subject: &str, finding: impl Into<String>) {
        self.add(Level::Ok, subject, finding.into(), None);
    }

    fn warn(&mut self, subject: &str, finding: impl Into<String>, remedy: impl Into<String>) {
        self.add(Level::Warning, subject, finding.into(), Some(remedy.into()));
    }

    fn wrong(&mut self, subject: &str, finding: impl Into<String>, remedy: impl Into<String>) {
        self.add(Level::Wrong, subject, finding.into(), Some(remedy.into()));
    }

    fn add(&mut self, level: Level, subject: &str, finding: String, remedy: Option<String>) {
        self.0.push(Finding {
            level,
            subject: subject.to_owned(),
            finding,
            remedy,
        });
    }
}

impl Check {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let mut findings = Findings::default();
        let mut aims = Vec::new();
        let mut is_without = !configuration.sinks.is_empty();
        if server::look(&database, &mut findings).await {
            match self.target.aims(&configuration, &database).await {
                Ok(found) => aims = found,
                Err(error @ crate::Error::Setting { .. }) => return Err(error.into()),
                Err(error) => findings.wrong(
                    "components",
                    error.to_string(),
                    "mend the declaration, or what keeps the collections from being listed",
                ),
            }
            if !self.target.is_narrowed() {
                consumed(&configuration, &aims, &mut findings);
                sinks::wanted(&configuration, &aims, &mut findings);
            }
            let beat = configuration.settings.beat;
            let census = replicas::census(&database, beat, &mut findings).await;
            let known = sinks::known(&database, &mut findings).await;
            is_without = sinks::replace_broker(&configuration, &aims, &known);
            let wants = server::Wants {
                configuration: &configuration,
                aims: &aims,
                census: census.as_ref(),
                known: &known,
            };
            server::rights(wants, &database, &mut findings).await;
            replicas::look(
                &configuration,
                &database,
                &aims,
                (census.as_ref(), &known),
                is_without,
                &mut findings,
            )
            .await;
            if let Some(census) = &census {
                sinks::look(&database, &aims, (census, &known), &mut findings).await;
            }
        }
        broker::look(&configuration.settings, &aims, is_without, &mut findings).await?;
        tell(&findings, Output::to_whoever_reads(options.json))
    }
}

/// Whether each list of consumed labels is that of a component here: a misspelt one is no error anywhere else.
fn consumed(configuration: &Configuration, aims: &[Aim], findings: &mut Findings) {
    for name in configuration.settings.events.keys() {
        if !aims.iter().any(|aim| aim.component.variable() == *name) {
            findings.warn(
                name,
                "no component here is called so, and nothing reads it",
                "correct the name: TOA_EVENTS_<NAMESPACE>_<NAME>, or remove it",
            );
        }
    }
}

fn tell(findings: &Findings, mut output: Output) -> Outcome {
    for finding in &findings.0 {
        if output.is_json {
            output.json(finding)?;
            continue;
        }
        let level = match finding.level {
            Level::Ok => coloured(AnsiColor::Green, "ok"),
            Level::Warning => coloured(AnsiColor::Yellow, "warning"),
            Level::Wrong => coloured(AnsiColor::Red, "wrong"),
        };
        let remedy = finding.remedy.as_ref();
        let remedy = remedy
            .map(|remedy| format!("; {remedy}"))
            .unwrap_or_default();
        // What a server says may have lines of its own.
        let text = format!("{}: {}{remedy}", finding.subject, finding.finding).replace('\n', " ");
        output.line(format_args!("{level}: {text}"))?;
    }
    output.flush()?;
    match findings
        .0
        .iter()
        .any(|finding| finding.level == Level::Wrong)
    {
        true => Err(Failure::Said),
        false => Ok(()),
    }
}
