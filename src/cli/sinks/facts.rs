//! A sink of one collection as it stands: what is registered, who serves it, and what it is owed.

use std::{collections::BTreeSet, time::Duration};

use bson::DateTime;
use futures::{StreamExt, TryStreamExt, stream};
use mongodb::Database;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{output::time, target::Aim},
    relay::registrar::RENEWAL,
    sinks::AMQP,
    slots::Census,
    store::{
        Debt, Store,
        deliveries::{Count, Deliveries},
        registry::{Known, Pause, Registered, word},
    },
};

/// How many are counted at a time.
const ABREAST: usize = 4;

/// What says that it is served where no group says who is there: twice what is said at the latest.
const RECENTLY: Duration = Duration::from_secs(2 * RENEWAL.as_secs());

pub(in crate::cli) struct Sink {
    pub(in crate::cli) name: String,
    pub(in crate::cli) collection: String,
    kind: &'static str,
    mode: String,
    routes: Vec<String>,
    /// None for the broker, which nobody registers where it is alone.
    since: Option<DateTime>,
    /// How long ago somebody said that it is served; none for the broker.
    pub(in crate::cli) ago: Option<Duration>,
    /// The live members of the group that serve it.
    pub(in crate::cli) members: Vec<String>,
    /// Whether nobody can tell who is there, as the lanes are given by settings.
    is_fixed: bool,
    pub(in crate::cli) pause: Option<Pause>,
    pub(in crate::cli) debt: Debt,
    pub(in crate::cli) count: Count,
}

/// Every sink of these components, and the broker where a live member serves it.
pub(in crate::cli) async fn sinks(
    database: &Database,
    aims: &[Aim],
    census: &Census,
    known: &Known,
) -> Result<Vec<Sink>, Error> {
    let mut sinks = Vec::new();
    for aim in aims {
        let rows = aim.component.rows();
        let registered = known.sinks.iter().filter(|sink| sink.collection == rows);
        let mut own: Vec<Sink> = registered
            .map(|sink| Sink::registered(sink, census, known))
            .collect();
        if !own.iter().any(|sink| sink.name == AMQP) {
            sinks.extend(Sink::broker(&rows, census));
        }
        sinks.append(&mut own);
    }
    let counting = sinks.into_iter().map(|sink| sink.counted(database));
    stream::iter(counting).buffered(ABREAST).try_collect().await
}

impl Sink {
    fn new(name: &str, collection: &str, census: &Census) -> Self {
        let pumped_by = census.pumped_by(collection).unwrap_or_default();
        Self {
            name: name.to_owned(),
            collection: collection.to_owned(),
            kind: "broker",
            mode: "lanes".into(),
            routes: Vec::new(),
            since: None,
            ago: None,
            members: members(name, collection, census),
            is_fixed: pumped_by.starts_with("static"),
            pause: None,
            debt: Debt::default(),
            count: Count::default(),
        }
    }

    pub(in crate::cli) fn registered(sink: &Registered, census: &Census, known: &Known) -> Self {
        let new = Self::new(&sink.sink, &sink.collection, census);
        let kind = match sink.sink.as_str() {
            AMQP => new.kind,
            _ => word(sink.kind),
        };
        Self {
            kind,
            mode: sink.mode.clone(),
            routes: sink.names().into_iter().map(str::to_owned).collect(),
            since: Some(sink.since),
            ago: sink.routes.iter().map(|served| served.ago).min(),
            pause: known.paused.get(&sink.sink).cloned(),
            ..new
        }
    }

    /// As those members have it that serve it.
    fn broker(collection: &str, census: &Census) -> Option<Self> {
        let group = census.group_of(collection)?;
        let routes = group
            .routes()
            .into_iter()
            .filter(|route| is_of(route, AMQP));
        let routes: Vec<String> = routes.map(str::to_owned).collect();
        (!routes.is_empty()).then(|| Self {
            routes,
            ..Self::new(AMQP, collection, census)
        })
    }

    /// With what it is owed.
    pub(in crate::cli) async fn counted(mut self, database: &Database) -> Result<Self, Error> {
        let store = Store::new(database, &self.collection);
        let routes: Vec<&str> = self.routes.iter().map(String::as_str).collect();
        self.debt = store.owed(&routes).await?;
        self.count = Deliveries::new(&store).count(&self.name).await?;
        Ok(self)
    }

    /// Whether somebody serves it, as far as one can tell.
    pub(in crate::cli) fn is_served(&self) -> bool {
        !self.members.is_empty() || self.is_fixed && self.ago.is_none_or(|ago| ago < RECENTLY)
    }

    /// Whether somebody may be there who has to hear of a change.
    pub(in crate::cli) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    pub(in crate::cli) fn labels(&self) -> Vec<&str> {
        let labels = self.routes.iter().filter_map(|route| route.split_once('/'));
        let labels: BTreeSet<&str> = labels.map(|(_, label)| label).collect();
        labels.into_iter().collect()
    }

    pub(in crate::cli) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(in crate::cli) fn mode(&self) -> &str {
        &self.mode
    }

    pub(in crate::cli) fn since(&self) -> Option<DateTime> {
        self.since
    }

    /// How many rows it is owed, and whether there are more.
    pub(in crate::cli) fn rows(&self) -> String {
        let more = if self.debt.is_more() { "+" } else { "" };
        format!("{}{more}", self.debt.rows)
    }

    pub(in crate::cli) fn json(&self) -> Value {
        let date = |date: DateTime| time(date.timestamp_millis());
        let pause = self.pause.as_ref().map(|pause| {
            json!({
                "circuit": pause.circuit,
                "reason": pause.reason,
                "since": date(pause.since),
                "adviceSeconds": pause.advice.map(|advice| advice.as_secs()),
            })
        });
        let oldest = self.debt.oldest.as_ref().map(|oldest| {
            json!({
                "row": oldest.row,
                "since": time(oldest.since),
                "seconds": oldest.age / 1000,
            })
        });
        json!({
            "sink": self.name,
            "collection": self.collection,
            "kind": self.kind,
            "mode": self.mode,
            "labels": self.labels(),
            "since": self.since.map(date),
            "served": self.is_served(),
            "servedBy": self.members,
            "lastServedSeconds": self.ago.map(|ago| ago.as_secs()),
            "paused": pause,
            "owed": self.debt.rows,
            "owedMore": self.debt.is_more(),
            "pins": oldest,
            "retrying": self.count.retrying,
            "dead": self.count.dead,
            "abandoned": self.count.abandoned,
        })
    }
}

fn is_of(route: &str, sink: &str) -> bool {
    route.split_once('/').is_some_and(|(of, _)| of == sink)
}

/// The live members that serve a sink.
fn members(sink: &str, collection: &str, census: &Census) -> Vec<String> {
    let group = census.group_of(collection).unwrap_or_default();
    let serve = group
        .members
        .into_iter()
        .filter(|member| member.is_alive && member.routes.iter().any(|route| is_of(route, sink)));
    serve.map(|member| member.id).collect()
}
