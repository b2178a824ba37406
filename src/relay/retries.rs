//! Tries again what failed for itself, each at a time of its own.
//!
//! Whatever replica has the sink: what is due is claimed for as long as an attempt may take, so lanes have no meaning here. Of a
//! sink to which the order of the commits is kept, only what is replayed comes here, and only to its owner.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bson::RawDocument;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{ordered::Owner, owed::Owed};
use crate::{
    clock::{Moment, Term, every},
    error::Result,
    metrics::Meters,
    report::Reports,
    routes::{RouteSet, Routes},
    row::{Row, RowId, now},
    sinks::{Answer, Message, Mode, Outlet, Policy},
    store::{
        Marking, Store,
        deliveries::{Claimed, Deliveries, Failure, retrying},
        row_id,
    },
};

/// From one look for what is due to the next, where few collections are looked at.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// How many are few.
pub(super) const FEW: usize = 20;

/// How many are claimed at once.
const MOST: u32 = 100;

/// What a claim lasts beyond the attempt.
const MARGIN: Duration = Duration::from_secs(30);

/// How long until one is tried that could not be.
const AGAIN: Duration = Duration::from_millis(500);

/// From one look for rows that wait for what nobody knows of to the next.
const CARE: Duration = Duration::from_secs(300);

/// How long until one is looked at whose label this replica does not know; another may.
const STRANGE: Duration = Duration::from_secs(60);

pub(super) struct Retries {
    pub(super) store: Store,
    pub(super) deliveries: Deliveries,
    pub(super) routes: Arc<Routes>,
    /// Those of them that go to the sink.
    pub(super) own: RouteSet,
    pub(super) owed: Owed,
    pub(super) sink: Outlet,
    pub(super) policy: Policy,
    /// From one look for what is due to the next.
    pub(super) look: Duration,
    pub(super) meters: Meters,
    pub(super) reports: Reports,
    /// Where only one replica delivers: whether it is this one.
    pub(super) owner: Option<Owner>,
}

/// Rows, or why one cannot be read.
type Rows = HashMap<RowId, Result<Row, String>>;

/// What became of one that was claimed.
enum Fate {
    Taken,
    /// It was not tried; again after this long.
    Left(Duration),
    Failed(String),
    Rejected(String),
}

impl Retries {
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut tick = every(self.look);
        let mut care = every(CARE);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = care.tick(), if self.owner.is_none() => if let Err(error) = self.adopt().await {
                    self.unknown(&error.to_string());
                },
                _ = tick.tick() => {}
            }
            while self.may() && !stop.is_cancelled() {
                match self.once().await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        self.unknown(&error.to_string());
                        break;
                    }
                }
            }
        }
    }

    /// Has those rows owe their route again.
    async fn adopt(&self) -> Result<()> {
        for route in self.routes.names(self.own) {
            let rows = self.deliveries.adopt(route).await?;
            if rows > 0 {
                tracing::warn!(
                    collection = self.store.name(),
                    route,
                    rows,
                    "rows waited for another attempt that nobody knows of; they are delivered as if they had not been tried"
                );
            }
        }
        Ok(())
    }

    fn may(&self) -> bool {
        let is_owner = |owner: &Owner| owner.right().is_some();
        self.sink.takes_backlog() && self.owner.as_ref().is_none_or(is_owner)
    }

    /// Tries some of what is due; whether there may be more.
    async fn once(&self) -> Result<bool> {
        let lease = self.sink.timeout() + MARGIN;
        // What begins within it has ended before the lease: those before it in the sink's queue may take a while.
        let term = Term::Until(Moment::now() + MARGIN / 2);
        let claimed = self.deliveries.claim(self.sink.name(), MOST, lease).await?;
        if claimed.is_empty() {
            return Ok(false);
        }
        let count = claimed.len();
        let (dead, due): (Vec<_>, Vec<_>) = claimed.into_iter().partition(|one| one.is_dead);
        self.bury(dead).await?;
        let rows = self.rows(&due).await?;
        let tried = due.iter().map(|one| self.attempt(one, &rows, &term));
        let fates = join_all(tried).await;
        self.settle(due, fates).await?;
        Ok(count >= MOST as usize)
    }

    /// The rows they are of, as they are in the outbox or as they were kept.
    async fn rows(&self, claimed: &[Claimed]) -> Result<Rows> {
        let kept = |one: &Claimed| Some((one.row.clone(), self.decoded(one.copy.as_ref()?)));
        let mut rows: Rows = claimed.iter().filter_map(kept).collect();
        let wanted = claimed.iter().filter(|one| one.copy.is_none());
        let wanted: Vec<RowId> = wanted.map(|one| one.row.clone()).collect();
        if wanted.is_empty() {
            return Ok(rows);
        }
        let mut cursor = self.store.unpublished(&wanted, MOST).await?;
        while self.store.advance(&mut cursor).await? {
            let raw = cursor.current();
            if let Some(id) = row_id(raw) {
                rows.insert(id, self.decoded(raw));
            }
        }
        Ok(rows)
    }

    fn decoded(&self, raw: &RawDocument) -> Result<Row, String> {
        let row = self.store.decode(raw);
        row.map_err(|malformed| malformed.to_string())
    }

    async fn attempt(&self, one: &Claimed, rows: &Rows, term: &Term) -> Fate {
        let spelled = retrying(&one.route);
        // None: all of its routes, and nothing is known of any failure.
        let owes = |row: &Row, route| row.outstanding.as_ref().map(|owed| owed.contains(route));
        let row = match rows.get(&one.row) {
            Some(Ok(row)) if one.copy.is_some() || owes(row, &spelled) == Some(true) => row,
            // It does not say so yet: a mark is on its way, or whoever was to write it died, and a cycle delivers this.
            Some(Ok(row)) if owes(row, &one.route) != Some(false) => return Fate::Left(AGAIN),
            // It was taken, and this process or another died before it said so here.
            Some(Ok(_)) | None => return Fate::Taken,
            Some(Err(malformed)) => return Fate::Rejected(malformed.clone()),
        };
        let mut known = self.routes.all.iter().enumerate();
        let known =
            known.find(|(index, route)| self.own.contains(*index) && route.name == one.route);
        let Some((index, route)) = known else {
            return Fate::Left(STRANGE);
        };
        let rendered = match self.sink.mode() {
            Mode::Ordered(order) if order.is_whole => {
                route.label.render_whole(&row.event, self.routes.encoding)
            }
            Mode::Ordered(_) | Mode::Lanes => route.label.render(&row.event, self.routes.encoding),
        };
        match rendered {
            Ok(None) => Fate::Taken,
            Ok(Some(body)) => {
                let message = Message {
                    attempt: one.attempts.saturating_add(1),
                    is_replay: one.is_replay,
                    is_live: false,
                    ..route.message(row, body, term)
                };
                self.deliver(index, row, message).await
            }
            Err(unrendered) => Fate::Failed(unrendered.to_string()),
        }
    }

    async fn deliver(&self, index: usize, row: &Row, message: Message) -> Fate {
        self.meters.retried();
        match self.sink.deliver(message).await {
            Answer::Taken => {
                self.meters
                    .published(index, row.id.time().map(|made| now() - made));
                Fate::Taken
            }
            Answer::Owed { .. } => Fate::Left(AGAIN),
            Answer::Failed { reason } => Fate::Failed(reason),
            Answer::Rejected { reason } => Fate::Rejected(reason),
        }
    }

    async fn settle(&self, claimed: Vec<Claimed>, fates: Vec<Fate>) -> Result<()> {
        let (mut taken, mut dead) = (Vec::new(), Vec::new());
        for (one, fate) in claimed.into_iter().zip(fates) {
            let attempts = one.attempts.saturating_add(1);
            let (next, reason) = match fate {
                Fate::Taken => {
                    taken.push(one);
                    continue;
                }
                Fate::Left(after) => {
                    self.deliveries.unclaim(&one, after).await?;
                    continue;
                }
                Fate::Rejected(reason) if self.policy.gives_up() => (self.policy.never(), reason),
                Fate::Failed(reason) | Fate::Rejected(reason) => {
                    (self.policy.next(attempts), reason)
                }
            };
            let failure = Failure::new(&one.row, &one.route, self.sink.name(), reason, next);
            let was_ours = self.deliveries.failed_again(&one, &failure).await?;
            if was_ours && failure.is_dead() {
                failure.say(attempts);
                self.meters.died();
                dead.push(one);
            }
        }
        self.mark(&taken).await?;
        for one in &taken {
            self.deliveries.taken(&one.row, &one.route).await?;
        }
        self.bury(dead).await
    }

    /// Has the rows know what is dead.
    async fn bury(&self, dead: Vec<Claimed>) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        self.mark(&dead).await?;
        let keys: Vec<_> = dead.into_iter().map(|one| (one.row, one.route)).collect();
        self.deliveries.buried(&keys).await
    }

    /// Takes the routes off what the rows owe, those of a route at once.
    async fn mark(&self, claimed: &[Claimed]) -> Result<()> {
        let mut by_route: HashMap<&str, Vec<RowId>> = HashMap::new();
        for one in claimed {
            by_route
                .entry(&one.route)
                .or_default()
                .push(one.row.clone());
        }
        let names = self.owed.names();
        let mut all = self.routes.names(self.routes.whole());
        all.extend(names.iter().map(|route| &**route));
        for (route, rows) in by_route {
            let done = [route, &retrying(route)];
            let marking = Marking {
                done: &done,
                later: &[],
                all: &all,
            };
            self.store.mark(&rows, &marking).await?;
        }
        Ok(())
    }

    fn unknown(&mut self, problem: &str) {
        self.reports.first(problem, |times| {
            tracing::warn!(
                collection = self.deliveries.name(),
                sink = self.sink.name(),
                times,
                "{problem}; what failed is tried again when this can be done"
            );
        });
    }
}
