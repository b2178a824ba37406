//! One component's rows on their way.

use std::time::Duration;

use bson::RawDocument;

use crate::{
    Amqp,
    cli::target::Aim,
    clock::Term,
    routes::RouteSet,
    row::{Row, RowId},
    sinks::{Message, Pace},
    store::inspect::Glance,
};

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
    /// Whether it is known what else a row owes, so that it can be marked.
    pub(super) marks: bool,
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
    pub(super) mark: Option<(RowId, RouteSet)>,
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
        let row = match self.aim.store.decode(raw) {
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
                    let message = rendering.message(row, body, &Term::Endless);
                    let delivered = self.deliver(message).await;
                    delivered.map(|()| sent.exchanges.push(rendering.route.exchange.clone()))
                }
                Err(unrendered) => Err(format!("cannot be rendered: {unrendered}")),
            };
            match sending {
                Ok(()) => done.insert(index),
                Err(problem) => sent.problems.push(format!("{}: {problem}", rendering.name)),
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
            match sink.deliver(message.clone()).await.into_owed() {
                None => return Ok(()),
                Some((reason, Pace::AtOnce)) => why = reason,
                Some((reason, _)) => return Err(reason),
            }
        }
        Err(why)
    }
}
