//! Gives a sink the rows of a component in the order of their commits, from one replica at a time.
//!
//! ```text
//!   not the owner ──► taken over ──► pin ──► backlog ──► stream
//!         ▲                           (what is in the outbox)  │ lost history: what is still owed, from a new start
//!         └────── the right ended, or another took over ◄──────┘
//! ```
//!
//! **The order** is that of the change stream: a transaction that commits late with an older id is not passed over, as it would
//! be by who pages through ids. What was committed before the sink began is in no stream; that comes by id.
//!
//! **No hole.** `start`, a time before the sink was registered, parts the two: what was committed before it is in the outbox when
//! it is pinned, and what was committed after it the stream brings, whether some other replica has marked it published meanwhile or not.
//! Whatever is in both comes twice.
//!
//! **One owner** at a time, by the [right to a lane](owner). It ends before another has it, and a hand-over waits for the batch
//! that is on its way. Should there be two all the same, the cursor's epoch lets only the later one save.
//!
//! The rows of such a sink are neither held in a ledger nor claimed, and no cycle reads them for it.

mod bisection;
mod delivery;
mod doubt;
mod flight;
mod intake;
mod owner;
mod piece;
mod portion;
mod settle;
mod source;
mod went;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::owed::Owed;
use crate::{
    clock::Term,
    error::{Error, Result},
    metrics::Meters,
    report::Reports,
    routes::{RouteSet, Routes},
    sinks::{Batched, Order, Policy},
    store::{
        Store,
        cursors::{Cursor, Cursors, Phase},
        deliveries::Deliveries,
        feed,
    },
};
use bisection::Bisection;
use delivery::Delivery;
use doubt::Doubt;
use piece::Renderer;
use source::Source;

pub(super) use {flight::Flight, owner::Owner};

/// How long after something failed it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The loop of one ordered sink of one component.
pub(super) struct Ordered {
    pub(super) store: Store,
    pub(super) deliveries: Deliveries,
    pub(super) cursors: Cursors,
    pub(super) routes: Arc<Routes>,
    /// Those of them that go to the sink.
    pub(super) own: RouteSet,
    pub(super) order: Order,
    pub(super) policy: Policy,
    pub(super) batched: Batched,
    pub(super) owner: Owner,
    /// What rows are owed to besides.
    pub(super) others: Owed,
    pub(super) flight: Flight,
    pub(super) meters: Meters,
    pub(super) reports: Reports,
}

/// Why a replica delivers no more for now.
#[derive(Debug)]
pub(super) enum Ended {
    /// It is to stop, or its right has ended.
    Over,
    /// Another has taken over the cursor.
    Overtaken,
    /// The stream does not go on from where it was.
    Lost(String),
    /// A row can neither be delivered nor given up.
    Blocked(String),
    Failed(Error),
}

impl Ended {
    /// What ended a stream.
    fn of(error: Error) -> Self {
        match error.is_lost_history() {
            true => Self::Lost(error.to_string()),
            false => Self::Failed(error),
        }
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Ordered {
    pub(super) async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let Some(term) = self.owner.right() else {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.owner.changed() => continue,
                    // The clock ends a right and nobody tells.
                    () = tokio::time::sleep(AGAIN) => continue,
                }
            };
            if let Err(ended) = self.own(&term, &stop).await {
                self.report(&ended);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    /// As its owner, until that ends.
    async fn own(&mut self, term: &Term, stop: &CancellationToken) -> Result<(), Ended> {
        let mut cursor = self.take_over().await?;
        while self.is_owner(term) {
            match self.phase(&mut cursor, term, stop).await {
                Err(Ended::Lost(reason)) => self.lost(&mut cursor, &reason).await?,
                ended => ended?,
            }
        }
        Ok(())
    }

    async fn take_over(&self) -> Result<Cursor, Ended> {
        loop {
            if let Some(cursor) = self.cursors.take_over().await? {
                tracing::info!(
                    collection = self.store.name(),
                    sink = self.batched.name(),
                    phase = ?cursor.phase,
                    "an ordered sink is given its rows by this replica"
                );
                return Ok(cursor);
            }
            // Someone has deleted it: all anew is a repetition, and anything less might be a loss.
            let start = feed::fence_of(&self.store).await?;
            self.cursors.begin(start, false).await?;
        }
    }

    async fn phase(
        &mut self,
        cursor: &mut Cursor,
        term: &Term,
        stop: &CancellationToken,
    ) -> Result<(), Ended> {
        if cursor.phase == Phase::Pin {
            let pinned = self.pin();
            stop.run_until_cancelled(pinned)
                .await
                .ok_or(Ended::Over)??;
            // It may have taken long: by now the cursor may be another's.
            if !self.is_owner(term) {
                return Err(Ended::Over);
            }
            *cursor = self.take_over().await?;
            return Ok(());
        }
        self.deliver(cursor, term, stop).await?;
        match self.cursors.stream(cursor).await? {
            true => Ok(()),
            false => Err(Ended::Overtaken),
        }
    }

    async fn pin(&self) -> Result<(), Error> {
        let others = self.others.names();
        let mut all = self.routes.names(self.routes.whole());
        all.extend(others.iter().map(|route| &**route));
        self.cursors.pin(&self.routes.names(self.own), &all).await
    }

    /// Reads and delivers at the same time. Ends by itself at the end of a backlog, never of the stream.
    async fn deliver(
        &mut self,
        cursor: &mut Cursor,
        term: &Term,
        stop: &CancellationToken,
    ) -> Result<(), Ended> {
        let (reads, read) = mpsc::channel(self.order.batch);
        let source = self.source(term);
        let reading = source.run(cursor.clone(), reads);
        let delivery = Delivery {
            bisection: Bisection::new(self.order, self.policy.clone()),
            of: self,
            cursor,
            term,
            stop,
            reads: read,
            queue: VecDeque::new(),
            passed: None,
            saved: Instant::now(),
            began: None,
            doubt: Doubt::default(),
            is_fresh: true,
        };
        let delivering = delivery.run();
        tokio::pin!(reading, delivering);
        let mut is_read = false;
        loop {
            tokio::select! {
                ended = &mut reading, if !is_read => match ended {
                    Ok(()) => is_read = true,
                    // What is on its way is finished.
                    Err(ended) => return delivering.await.and(Err(ended)),
                },
                ended = &mut delivering => return ended,
            }
        }
    }

    fn source(&self, term: &Term) -> Source {
        Source {
            store: self.store.clone(),
            cursors: self.cursors.clone(),
            renderer: Renderer {
                routes: self.routes.clone(),
                own: self.own,
                order: self.order,
                gives_up: self.policy.gives_up(),
                meters: self.meters.clone(),
            },
            term: term.clone(),
            reports: Reports::default(),
        }
    }

    /// Goes on with what is still owed, by id, and then with what is committed from now on.
    async fn lost(&mut self, cursor: &mut Cursor, reason: &str) -> Result<(), Ended> {
        tracing::error!(
            collection = self.store.name(),
            sink = self.batched.name(),
            reason,
            "the change stream does not go on from where this ordered sink was, its history is lost; the sink is given what it is \
             still owed in the order of ids, which is not that of the commits, and then what is committed from now on"
        );
        let start = feed::fence_of(&self.store).await?;
        // Acknowledged by a majority, so that what was committed before the start can be read from here on.
        let mut is_ours = self.cursors.restart(cursor, start, None).await?;
        let upper = self.cursors.upper().await?;
        is_ours &= self.cursors.restart(cursor, start, upper).await?;
        match is_ours {
            true => Ok(()),
            false => Err(Ended::Overtaken),
        }
    }

    /// Whether it still has the right of this term.
    fn is_owner(&self, term: &Term) -> bool {
        term.holds() && self.owner.right().is_some()
    }

    /// Waits for something as the owner.
    async fn owned_until(
        &mut self,
        term: &Term,
        stop: &CancellationToken,
        until: impl Future<Output = ()>,
    ) -> Result<(), Ended> {
        tokio::pin!(until);
        while self.is_owner(term) {
            tokio::select! {
                () = stop.cancelled() => return Err(Ended::Over),
                () = &mut until => return Ok(()),
                () = self.owner.changed() => {}
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
        Err(Ended::Over)
    }

    fn report(&mut self, ended: &Ended) {
        let problem = match ended {
            Ended::Over => return,
            Ended::Overtaken => "another replica has taken over its cursor".to_owned(),
            Ended::Lost(reason) | Ended::Blocked(reason) => reason.clone(),
            Ended::Failed(error) => error.to_string(),
        };
        let (collection, sink) = (self.store.name(), self.batched.name());
        self.reports.first(&problem, |times| {
            tracing::warn!(
                collection,
                sink,
                times,
                "{problem}; the ordered sink goes on from where it was saved last"
            );
        });
    }
}
