//! `status`: what waits, for how long, and who sees to it.

use std::collections::BTreeMap;

use clap::Args;
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

use super::{
    failure::Outcome,
    options::Options,
    output::{Output, span},
    sinks::{
        facts::{self, Sink},
        list::pins,
    },
    target::{Aim, Target},
};
use crate::{
    Error, Settings,
    lane::LANES,
    sinks::amqp::Survey,
    slots::{Census, Group},
    store::{inspect::Backlog, registry::Registry},
};

/// How many components are counted at a time.
const ABREAST: usize = 8;

/// Show what waits in each component, for how long, and who sees to it.
///
/// Unpublished rows are counted one by one, by the index that pumps read by: a million take some seconds. Published
/// ones are not: they are all the rows there are, by the server's statistics, less those. Replicas are watched for
/// one and a half beats (TOA_ATOMICITY_INTERVAL); where they know different labels, a lane is that of several. The broker is asked where --amqp or TOA_OUTBOX_AMQP says where it is.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox status --json | jq 'select(.oldestSeconds > 60)'")]
pub(super) struct Status {
    #[command(flatten)]
    target: Target,
}

/// One component.
struct State<'a> {
    aim: &'a Aim,
    backlog: Backlog,
    pumped_by: Option<String>,
    group: Option<Group>,
}

/// A member of a group, or nobody, and what waits in its lanes.
struct Share<'a> {
    member: Option<&'a str>,
    is_alive: bool,
    lanes: usize,
    unpublished: u64,
}

impl Share<'_> {
    fn add(&mut self, unpublished: u64) {
        self.lanes += 1;
        self.unpublished += unpublished;
    }
}

impl Status {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let settings = &configuration.settings;
        let database = configuration.database().await?;
        let aims = self.target.aims(&configuration, &database).await?;
        let (backlogs, census, nodes) = tokio::try_join!(
            backlogs(&aims),
            Census::take(&database, settings.beat),
            nodes(settings)
        )?;
        let known = Registry::new(&database).look_if_allowed().await?;
        let sinks = match known.sinks.is_empty() {
            // The broker alone is told of by its nodes.
            true => Vec::new(),
            false => facts::sinks(&database, &aims, &census, &known).await?,
        };
        let states: Vec<State<'_>> = aims
            .iter()
            .zip(backlogs)
            .map(|(aim, backlog)| State::of(aim, backlog, &census))
            .collect();
        let mut output = Output::new(options.json);
        match output.is_json {
            true => documents(&mut output, &states, &sinks, &nodes)?,
            false => tables(&mut output, &states, &sinks, &nodes)?,
        }
        Ok(output.flush()?)
    }
}

async fn backlogs(aims: &[Aim]) -> Result<Vec<Backlog>, Error> {
    let counting = futures::stream::iter(aims).map(|aim| aim.store.backlog());
    counting.buffered(ABREAST).try_collect().await
}

/// Each node of the broker, and how it is.
async fn nodes(settings: &Settings) -> Result<Vec<(String, String)>, Error> {
    if settings.amqp.is_empty() {
        return Ok(Vec::new());
    }
    let mut states = Vec::new();
    for (address, survey) in Survey::each(settings).await? {
        let state = match survey {
            Err(reason) => format!("away: {reason}"),
            Ok(survey) => {
                let is_blocked = survey.is_blocked();
                survey.close().await;
                if is_blocked {
                    "blocked".into()
                } else {
                    "up".into()
                }
            }
        };
        states.push((address, state));
    }
    Ok(states)
}

impl<'a> State<'a> {
    fn of(aim: &'a Aim, backlog: Backlog, census: &Census) -> Self {
        let rows = aim.component.rows();
        Self {
            aim,
            backlog,
            pumped_by: census.pumped_by(&rows).map(str::to_owned),
            group: census.group_of(&rows),
        }
    }

    fn oldest(&self) -> Option<i64> {
        self.backlog.oldest
    }

    /// By member, and what is in lanes that nobody owns last. A lane may be that of several, each for other labels.
    fn shares(&self) -> Vec<Share<'_>> {
        let Some(group) = &self.group else {
            return Vec::new();
        };
        let mut nobody = Share {
            member: None,
            is_alive: false,
            lanes: 0,
            unpublished: 0,
        };
        let mut shares: BTreeMap<&str, Share<'_>> = BTreeMap::new();
        for member in &group.members {
            let share = Share {
                member: Some(&member.id),
                is_alive: member.is_alive,
                lanes: 0,
                unpublished: 0,
            };
            shares.insert(&member.id, share);
        }
        for lane in 0..LANES {
            let unpublished = self.backlog.by_lane.get(&lane).copied().unwrap_or(0);
            let mut owners = group.owners(lane).peekable();
            if owners.peek().is_none() {
                nobody.add(unpublished);
            }
            for owner in owners {
                if let Some(share) = shares.get_mut(owner.id.as_str()) {
                    share.add(unpublished);
                }
            }
        }
        let nobody = (nobody.lanes > 0).then_some(nobody);
        shares.into_values().chain(nobody).collect()
    }

    fn replicas(&self) -> String {
        match &self.group {
            Some(group) if group.foreign.is_some() => "another version's".into(),
            Some(group) => format!("{} of {} alive", group.alive(), group.members.len()),
            None if self.pumped_by.is_some() => "static".into(),
            None => "nobody".into(),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.aim.component.id(),
            self.backlog.unpublished.to_string(),
            self.backlog.due.to_string(),
            self.oldest().map_or_else(|| "-".into(), age),
            self.backlog.published.to_string(),
            self.pumped_by.clone().unwrap_or_else(|| "-".into()),
            self.replicas(),
        ]
    }

    fn json(&self) -> Value {
        let shares = self.shares();
        let owner = |share: &Share<'_>| {
            json!({
                "replica": share.member,
                "alive": share.is_alive,
                "lanes": share.lanes,
                "unpublished": share.unpublished,
            })
        };
        json!({
            "component": self.aim.component.id(),
            "collection": self.aim.component.rows(),
            "unpublished": self.backlog.unpublished,
            "due": self.backlog.due,
            "oldestSeconds": self.oldest().map(|millis| millis / 1000),
            "published": self.backlog.published,
            "pumpedBy": self.pumped_by,
            "replicas": self.group.as_ref().map(|group| group.members.len()),
            "alive": self.group.as_ref().map(Group::alive),
            "owners": shares.iter().map(owner).collect::<Vec<_>>(),
        })
    }
}

fn age(millis: i64) -> String {
    match millis {
        0.. => span(millis),
        _ => format!("due in {}", span(-millis)),
    }
}

fn documents(
    output: &mut Output,
    states: &[State<'_>],
    sinks: &[Sink],
    nodes: &[(String, String)],
) -> std::io::Result<()> {
    for state in states {
        output.json(&state.json())?;
    }
    for sink in sinks {
        output.json(&sink.json())?;
    }
    for (address, state) in nodes {
        output.json(&json!({ "sink": address, "state": state }))?;
    }
    Ok(())
}

fn tables(
    output: &mut Output,
    states: &[State<'_>],
    sinks: &[Sink],
    nodes: &[(String, String)],
) -> std::io::Result<()> {
    let header = [
        "COMPONENT",
        "UNPUBLISHED",
        "DUE",
        "OLDEST",
        "PUBLISHED",
        "PUMPED BY",
        "REPLICAS",
    ];
    output.table(&header, states.iter().map(State::row))?;
    let shares = by_group(states);
    if !shares.is_empty() {
        output.line("")?;
        output.table(
            &["PUMPED BY", "REPLICA", "ALIVE", "LANES", "UNPUBLISHED"],
            shares,
        )?;
    }
    if !sinks.is_empty() {
        output.line("")?;
        output.table(&SINKS, sinks.iter().map(sink))?;
    }
    output.line("")?;
    if nodes.is_empty() {
        output.line("broker: not asked, neither --amqp nor TOA_OUTBOX_AMQP says where it is")?;
    }
    for (address, state) in nodes {
        output.line(format_args!("broker {address}: {state}"))?;
    }
    Ok(())
}

const SINKS: [&str; 7] = [
    "SINK",
    "COLLECTION",
    "STATE",
    "OWED",
    "PINS",
    "RETRYING",
    "DEAD",
];

fn sink(sink: &Sink) -> Vec<String> {
    let state = match (&sink.pause, sink.is_served()) {
        (Some(_), _) => "paused",
        (None, true) => "served",
        (None, false) => "by nobody",
    };
    vec![
        sink.name.clone(),
        sink.collection.clone(),
        state.into(),
        sink.rows(),
        pins(sink),
        sink.count.retrying.to_string(),
        (sink.count.dead + sink.count.abandoned).to_string(),
    ]
}

/// What a member of a group, or nobody, has of all the components that the group pumps.
struct Sum {
    alive: &'static str,
    /// The fewest and the most of one component: they may be configured differently.
    lanes: (usize, usize),
    unpublished: u64,
}

impl Sum {
    fn of(share: &Share<'_>) -> Self {
        Self {
            alive: match share.member {
                None => "-",
                Some(_) if share.is_alive => "yes",
                Some(_) => "no",
            },
            lanes: (share.lanes, share.lanes),
            unpublished: 0,
        }
    }

    fn add(&mut self, share: &Share<'_>) {
        let (fewest, most) = self.lanes;
        self.lanes = (fewest.min(share.lanes), most.max(share.lanes));
        self.unpublished += share.unpublished;
    }

    fn columns(self) -> [String; 3] {
        let lanes = match self.lanes {
            (fewest, most) if fewest == most => most.to_string(),
            (fewest, most) => format!("{fewest} to {most}"),
        };
        [self.alive.into(), lanes, self.unpublished.to_string()]
    }
}

/// A line for each member of each group, nobody's last.
fn by_group(states: &[State<'_>]) -> Vec<Vec<String>> {
    let mut lines: BTreeMap<(&str, bool, &str), Sum> = BTreeMap::new();
    let all: Vec<(&str, Vec<Share<'_>>)> = states
        .iter()
        .map(|state| {
            (
                state.pumped_by.as_deref().unwrap_or_default(),
                state.shares(),
            )
        })
        .collect();
    for (group, shares) in &all {
        for share in shares {
            let member = share.member.unwrap_or("nobody");
            let line = lines.entry((group, share.member.is_none(), member));
            line.or_insert_with(|| Sum::of(share)).add(share);
        }
    }
    let line = |((group, _, member), sum): ((&str, bool, &str), Sum)| {
        let names = [group.to_owned(), member.to_owned()];
        names.into_iter().chain(sum.columns()).collect()
    };
    lines.into_iter().map(line).collect()
}
