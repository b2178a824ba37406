//! One component's rows on their way, and the marks of those that have left.

use std::{collections::HashMap, time::Duration};

use bson::RawDocument;

use crate::{
    Amqp, Error,
    cli::target::Aim,
    clock::Term,
    routes::RouteSet,
    row::{Row, RowId},
    sinks::{Message, Pace, Verdict},
    slots::Group,
    store::{decode, inspect::Glance},
};

/// The most rows of one marking.
const MOST: usize = 1000;
/// How often a message is given to a connection that was lost under it.
const ATTEMPTS: usize = 3;

pub(super) struct Sending<'a> {
    pub(super) aim: &'a Aim,
    /// None: nothing is sent, and nothing marked.
    pub(super) sink: Option<&'a Amqp>,
    /// Empty: all.
    pub(super) labels: &'a [String],
    /// Routes of replicas that know more than we do: rows are owed to them too.
    pub(super) others: Vec<String>,
    /// How long to wait for a connection that was lost.
    pub(super) patience: Duration,
}

/// What became of a row.
pub(super) struct Sent {
    pub(super) id: String,
    /// Where its messages went.
    pub(super) exchanges: Vec<String>,
    pub(super) problems: Vec<String>,
    /// Which row to mark, and what of it is done.
    mark: Option<(RowId, RouteSet)>,
}

/// The routes of a group's replicas that a component does not have here.
pub(super) fn others(aim: &Aim, group: Option<&Group>) -> Vec<String> {
    let own = aim.routes.names(aim.routes.whole());
    let routes = group.map(Group::routes).unwrap_or_default();
    let strange = routes.into_iter().filter(|route| !own.contains(route));
    strange.map(str::to_owned).collect()
}

impl Sending<'_> {
    /// Sends what is wanted of a row, and answers once the fate of all of it is known.
    pub(super) async fn send(&self, raw: &RawDocument) -> Sent {
        let glance = Glance::of(raw);
        let mut sent = Sent {
            id: glance.id,
            exchanges: Vec::new(),
            problems: Vec::new(),
            mark: None,
        };
        let row = match decode(raw) {
            Ok(row) => row,
            Err(malformed) => {
                sent.problems.push(malformed.to_string());
                return sent;
            }
        };
        let done = self.routes(&row, glance.is_published, &mut sent).await;
        // Without a label that anything consumes a row owes nothing here, and nothing of it is done.
        if !glance.is_published && !done.is_empty() && self.sink.is_some() {
            sent.mark = Some((row.id, done));
        }
        sent
    }

    async fn routes(&self, row: &Row, is_published: bool, sent: &mut Sent) -> RouteSet {
        let routes = &self.aim.routes;
        let owed = row.outstanding.as_deref().filter(|_| !is_published);
        let past = routes.done(owed);
        let mut done = RouteSet::default();
        for (index, rendering) in routes.all.iter().enumerate() {
            if past.contains(index) || !self.wants(rendering.label.name()) {
                continue;
            }
            let rendered = rendering.label.render(&row.event, routes.encoding);
            let sending = match rendered {
                Ok(None) => Ok(()),
                Ok(Some(body)) => {
                    sent.exchanges.push(rendering.route.exchange.clone());
                    self.deliver(rendering.message(row, body, &Term::Endless))
                        .await
                }
                Err(unrendered) => Err(format!("cannot be rendered: {unrendered}")),
            };
            match sending {
                Ok(()) => done.insert(index),
                Err(problem) => {
                    sent.exchanges
                        .retain(|exchange| *exchange != rendering.route.exchange);
                    sent.problems.push(format!("{}: {problem}", rendering.name));
                }
            }
        }
        done
    }

    fn wants(&self, label: &str) -> bool {
        self.labels.is_empty() || self.labels.iter().any(|wanted| wanted == label)
    }

    async fn deliver(&self, message: Message) -> Result<(), String> {
        let Some(sink) = self.sink else {
            return Ok(());
        };
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            // One that stays away is found by the attempt itself.
            let _ = tokio::time::timeout(self.patience, sink.up()).await;
            match sink.deliver(message.clone()).await {
                Verdict::Accepted => return Ok(()),
                Verdict::Retry {
                    reason,
                    pace: Pace::AtOnce,
                } => why = reason,
                Verdict::Retry { reason, .. } => return Err(reason),
            }
        }
        Err(why)
    }
}

/// Rows that have left and are to be marked, those together of which the same is done.
#[derive(Default)]
pub(super) struct Marks {
    alike: HashMap<RouteSet, Vec<RowId>>,
}

impl Marks {
    pub(super) fn add(&mut self, sent: Sent) {
        if let Some((id, done)) = sent.mark {
            self.alike.entry(done).or_default().push(id);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.alike.values().map(Vec::len).sum::<usize>() >= MOST
    }

    /// Marks them as a relay does; how many there were.
    pub(super) async fn flush(&mut self, sending: &Sending<'_>) -> Result<u64, Error> {
        let routes = &sending.aim.routes;
        let mut all = routes.names(routes.whole());
        all.extend(sending.others.iter().map(String::as_str));
        let mut marked = 0;
        for (done, ids) in self.alike.drain() {
            sending
                .aim
                .store
                .mark(&ids, &routes.names(done), &all)
                .await?;
            marked += ids.len() as u64;
        }
        Ok(marked)
    }
}
