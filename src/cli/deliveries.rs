//! `deliveries`: what became of one row, sink by sink.

use std::collections::BTreeMap;

use bson::RawDocument;
use clap::Args;
use serde_json::json;

use super::{
    failure::{Failure, Outcome},
    options::Options,
    output::{Output, span, time},
    target::{Aim, Target},
};
use crate::{
    Error,
    config::masked,
    row::now,
    slots::Census,
    store::{
        deliveries::{Deliveries, inspect::Delivery, retrying},
        inspect::{self, Glance},
        registry::{Known, Registry},
    },
};

/// Show what became of a row: to each sink by name and label, whether it was taken, is outstanding, is tried again, was given up or
/// abandoned.
///
/// Works where the row itself has expired, as long as a failed delivery of it is kept. A label whose condition does not hold
/// is skipped, or taken where that condition is not known here.
#[derive(Args)]
#[command(name = "deliveries")]
#[command(after_help = "Example:
  toa-outbox deliveries 0190163d-8694-739b-8f0c-1d3a9d2b6c11")]
pub(super) struct OfRow {
    /// Its _id as `list` prints it; a UUID without its hyphens too
    id: String,
    #[command(flatten)]
    target: Target,
}

/// What became of one route.
struct State {
    route: String,
    state: String,
    failed: Option<Delivery>,
}

impl OfRow {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let aims = self.target.aims(&configuration, &database).await?;
        let census = Census::glance(&database).await?;
        let known = Registry::new(&database).look_if_allowed().await?;
        let mut output = Output::new(options.json);
        let mut is_found = false;
        for aim in &aims {
            if let Some(states) = self.states(aim, &census, &known).await? {
                is_found = true;
                tell(aim, &states, &mut output)?;
            }
        }
        match is_found {
            true => Ok(output.flush()?),
            false => Err(Failure::Because(format!(
                "neither a row {} nor a failed delivery of it in {} of {} components; a row that all sinks took is kept for the \
                 retention only",
                masked(&self.id),
                database.name(),
                aims.len()
            ))),
        }
    }

    /// By route; none where nothing is known of the row.
    async fn states(
        &self,
        aim: &Aim,
        census: &Census,
        known: &Known,
    ) -> Result<Option<Vec<State>>, Error> {
        let rows = aim.store.with_ids(&inspect::ids(&self.id)).await?;
        let row = rows.first().map(|row| Glance::of(row));
        let failed = Deliveries::new(&aim.store).of_row(&self.id, false).await?;
        if row.is_none() && failed.is_empty() {
            return Ok(None);
        }
        let unmet = rows.first().map(|row| unmet(aim, row));
        let unmet = unmet.unwrap_or_default();
        let mut states: BTreeMap<String, State> = BTreeMap::new();
        for route in routes(aim, census, known, row.as_ref()) {
            let mut one = State {
                state: state(row.as_ref(), &route).to_owned(),
                route,
                failed: None,
            };
            if unmet.contains(&one.parts().1) {
                one.state = SKIPPED.to_owned();
            }
            states.insert(one.route.clone(), one);
        }
        for delivery in failed {
            let state = State {
                route: delivery.route.clone(),
                state: delivery.state.clone(),
                failed: Some(delivery),
            };
            states.insert(state.route.clone(), state);
        }
        Ok(Some(states.into_values().collect()))
    }
}

/// Every route that the row may have been owed to, as far as anybody knows.
fn routes(aim: &Aim, census: &Census, known: &Known, row: Option<&Glance>) -> Vec<String> {
    let rows = aim.component.rows();
    let group = census.group_of(&rows).unwrap_or_default();
    let live = group.routes().into_iter().map(str::to_owned);
    let registered = known.routes_of(&rows).map(str::to_owned);
    let owed = row.and_then(|row| row.outstanding.clone());
    let owed = owed.unwrap_or_default().into_iter();
    let owed = owed.map(|route| match route.strip_prefix(&retrying("")) {
        Some(route) => route.to_owned(),
        None => route,
    });
    let mut all: Vec<String> = live.chain(registered).chain(owed).collect();
    if all.is_empty() {
        // Nobody is there who knows better than what is configured here.
        let own = aim.routes.names(aim.routes.whole());
        all.extend(own.into_iter().map(str::to_owned));
    }
    all
}

/// Those labels of the row whose conditions are known here and do not hold.
fn unmet<'a>(aim: &'a Aim, row: &RawDocument) -> Vec<&'a str> {
    let Ok(row) = aim.store.decode(row) else {
        return Vec::new();
    };
    let encoding = aim.routes.encoding;
    let all = aim.routes.all.iter();
    all.filter(|rendering| matches!(rendering.label.render(&row.event, encoding), Ok(None)))
        .map(|rendering| rendering.label.name())
        .collect()
}

/// Nothing was to be sent.
const SKIPPED: &str = "skipped";

/// By what the row says; one that has expired was owed nothing any more.
fn state(row: Option<&Glance>, route: &str) -> &'static str {
    let Some(row) = row.filter(|row| !row.is_published) else {
        return "taken";
    };
    match &row.outstanding {
        None => "outstanding",
        Some(owed) if owed.iter().any(|owed| owed == route) => "outstanding",
        Some(owed) if owed.contains(&retrying(route)) => "retrying",
        Some(_) => "taken",
    }
}

const HEADER: [&str; 6] = ["SINK", "LABEL", "STATE", "ATTEMPTS", "WHEN", "WHY"];

fn tell(aim: &Aim, states: &[State], output: &mut Output) -> std::io::Result<()> {
    if !output.is_json {
        return output.table(&HEADER, states.iter().map(State::cells));
    }
    for state in states {
        let (sink, label) = state.parts();
        let failed = state.failed.as_ref();
        output.json(&json!({
            "component": aim.component.id(),
            "sink": sink,
            "label": label,
            "state": state.state,
            "attempts": failed.map(|failed| failed.attempts),
            "next": failed.and_then(|failed| failed.next).map(|next| time(next.timestamp_millis())),
            "deadAt": failed.and_then(|failed| failed.dead_at).map(|at| time(at.timestamp_millis())),
            "error": failed.map(|failed| failed.error.as_str()),
        }))?;
    }
    Ok(())
}

impl State {
    fn parts(&self) -> (&str, &str) {
        self.route.split_once('/').unwrap_or((&self.route, ""))
    }

    fn cells(&self) -> Vec<String> {
        let (sink, label) = self.parts();
        let failed = self.failed.as_ref();
        let when = failed.and_then(|failed| match (failed.dead_at, failed.next) {
            (Some(at), _) => Some(format!("since {}", time(at.timestamp_millis()))),
            (None, Some(next)) if next.timestamp_millis() > now() => {
                Some(format!("in {}", span(next.timestamp_millis() - now())))
            }
            (None, Some(_)) => Some("now".into()),
            (None, None) => None,
        });
        vec![
            sink.to_owned(),
            label.to_owned(),
            self.state.clone(),
            failed.map_or_else(|| "-".into(), |failed| failed.attempts.to_string()),
            when.unwrap_or_else(|| "-".into()),
            match (failed, self.state.as_str()) {
                (Some(failed), _) => failed.error.clone(),
                (None, SKIPPED) => "its condition does not hold".to_owned(),
                (None, _) => String::new(),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(is_published: bool, outstanding: Option<&[&str]>) -> Glance {
        let outstanding =
            outstanding.map(|owed| owed.iter().map(|&owed| owed.to_owned()).collect());
        Glance {
            id: "x".into(),
            lane: Some(1),
            is_published,
            pending: Some(0),
            published_at: None,
            outstanding,
        }
    }

    #[test]
    fn a_row_says_what_it_owes() {
        let owed: &[&str] = &["a/created", "retrying b/created"];
        let partly = row(false, Some(owed));
        for (route, expected) in [
            ("a/created", "outstanding"),
            ("b/created", "retrying"),
            ("c/created", "taken"),
        ] {
            assert_eq!(state(Some(&partly), route), expected);
        }
        assert_eq!(state(Some(&row(false, None)), "a/created"), "outstanding");
        assert_eq!(state(Some(&row(true, None)), "a/created"), "taken");
        assert_eq!(state(None, "a/created"), "taken");
    }
}
