//! A transaction of the caller's, with everything the drivers' rules ask for around it.
//!
//! The rules are those of the drivers' convenient API for transactions: an error labelled transient runs
//! the body again, an unknown outcome of the commit repeats the commit alone, both within a deadline.
//! <https://github.com/mongodb/specifications/blob/master/source/transactions-convenient-api/transactions-convenient-api.md>

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use backon::{BackoffBuilder, ExponentialBuilder};
use bson::Document;
use futures::{FutureExt, future::join_all};
use mongodb::{
    ClientSession, Collection, Database,
    error::UNKNOWN_TRANSACTION_COMMIT_RESULT,
    options::{ReadPreference, SelectionCriteria, WriteConcern},
};

use super::{Entry, Mode, Outbox, Written};
use crate::{
    clock::Term,
    error::{Error, Result},
    routes::Rendering,
    row::{Row, RowId},
    sinks::{Answer, Message, Outlet},
};

/// What the body of [`Outbox::transaction`] works with.
pub struct Transaction {
    outbox: Outbox,
    session: ClientSession,
    /// The ids of the rows, the same every time the body is repeated.
    ids: Vec<RowId>,
    /// How many rows this run of the body has emitted.
    emitted: usize,
    written: Vec<Written>,
    /// Events to publish inline, where there are no rows.
    inline: Vec<Entry>,
}

impl Transaction {
    /// The driver's session; pass it to every operation that belongs to the transaction.
    pub fn session(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    /// The database of the outbox.
    pub fn database(&self) -> &Database {
        &self.outbox.inner.database
    }

    /// The collection of the entities.
    pub fn entities(&self) -> Collection<Document> {
        self.outbox.inner.entities.clone()
    }

    /// Writes the row of `event` in this transaction. It is published once the commit has returned. With an [`Entry`]
    /// instead of the event the caller chooses the row's id, or when it is published.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Unencodable`] and [`Error::Ceiling`] before anything is sent; [`Error::Store`] after,
    /// which the body must return for the transaction to be retried. [`Error::IdTaken`] if there is another event under the
    /// id of the entry. On a standalone server, [`Error::Unfit`] for an entry that is to be published later.
    pub async fn emit(&mut self, event: impl Into<Entry>) -> Result<()> {
        let entry = event.into();
        let index = self.emitted;
        self.emitted += 1;
        if self.ids.len() == index {
            self.ids.push(RowId::new());
        }
        match self.outbox.inner.mode {
            Mode::Rows(..) => {
                let id = self.ids[index].clone();
                let written = self.outbox.write(&mut self.session, entry, id).await?;
                self.written.extend(written);
            }
            Mode::Inline(_) if entry.later().is_some() => {
                return Err(Error::Unfit {
                    database: self.outbox.inner.database.name().to_owned(),
                    problem: "a standalone server keeps no row that could be published later; run MongoDB as a replica \
                              set, one member is enough"
                        .into(),
                });
            }
            Mode::Inline(_) => {
                let event = self.outbox.redacted(entry.event)?;
                self.inline.push(Entry { event, ..entry });
            }
            Mode::Nothing => {}
        }
        Ok(())
    }
}

/// Around one run of the body.
impl Transaction {
    async fn new(outbox: &Outbox) -> Result<Self> {
        let started = outbox.inner.database.client().start_session().await;
        let failed = |error| outbox.failed("starting a session", error);
        Ok(Self {
            outbox: outbox.clone(),
            session: started.map_err(failed)?,
            ids: Vec::new(),
            emitted: 0,
            written: Vec::new(),
            inline: Vec::new(),
        })
    }

    async fn start(&mut self) -> Result<()> {
        // What an earlier run wrote is gone, and the ledger forgets it.
        self.written.clear();
        self.emitted = 0;
        let started = self
            .session
            .start_transaction()
            // A transaction reads from the primary only, whatever the connection string says.
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .write_concern(WriteConcern::majority());
        let failed = |error| self.outbox.failed("starting a transaction", error);
        started.await.map_err(failed)
    }

    /// Commits, and repeats the commit while its outcome is unknown.
    async fn commit(&mut self, attempts: &mut Attempts) -> Result<()> {
        loop {
            let Err(error) = self.session.commit_transaction().await else {
                return Ok(());
            };
            if !error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
                return Err(self.outbox.failed("committing a transaction", error));
            }
            if !attempts.again().await {
                return Err(Error::OutcomeUnknown {
                    collection: self.outbox.inner.store.name(),
                    seconds: self.outbox.inner.settings.deadline.as_secs(),
                    source: Box::new(error),
                });
            }
        }
    }

    /// Explicitly, since a session that is dropped aborts only some time later, and its locks with it.
    async fn abort(&mut self) {
        // The server aborts by itself what it can no longer be told to.
        if let Err(error) = self.session.abort_transaction().await {
            tracing::debug!(%error, "aborting a transaction");
        }
    }
}

impl Outbox {
    /// Runs `body` in a transaction and publishes the rows it emitted once the commit has returned.
    ///
    /// The body may be run several times, until it succeeds or the [deadline](crate::Settings::deadline)
    /// has passed, so it must have no effects outside the transaction. Rows keep their ids when it is
    /// repeated. The commit has majority write concern whatever the connection string says. On any error
    /// the transaction is aborted explicitly; a panic of the body is passed on after that. Dropped before
    /// it resolves, the transaction is aborted in the background, unless the commit was on its way.
    ///
    /// The body owns what it captures (`async move`): the compiler cannot yet see that the future of an
    /// async closure that borrows its surroundings may move between threads, and refuses it within
    /// `tokio::spawn` as "not general enough" (rust-lang/rust#96865).
    ///
    /// Where no rows are written (see [`Outbox`]) the body runs once, without a transaction.
    ///
    /// ```no_run
    /// # use bson::doc;
    /// # use toa_outbox::{Event, Outbox, Result};
    /// # async fn example(pots: Outbox) -> Result<()> {
    /// pots.transaction(async move |tx| {
    ///     let pot = doc! { "_id": 1, "_version": 1, "material": "glass" };
    ///     tx.entities().insert_one(&pot).session(tx.session()).await?;
    ///     tx.emit(Event::created(pot)).await
    /// })
    /// .await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What the body returned; [`Error::Store`] if the transaction cannot be started or committed;
    /// [`Error::OutcomeUnknown`] if the commit was repeated until the deadline without an answer;
    /// on a standalone server [`Error::NotPublished`].
    pub async fn transaction<T, F>(&self, mut body: F) -> Result<T>
    where
        F: AsyncFnMut(&mut Transaction) -> Result<T>,
    {
        let mut tx = Transaction::new(self).await?;
        match &self.inner.mode {
            Mode::Rows(..) => self.commit(&mut tx, &mut body).await,
            Mode::Inline(sinks) => {
                let value = body(&mut tx).await?;
                self.publish_inline(sinks, tx.inline).await?;
                Ok(value)
            }
            Mode::Nothing => body(&mut tx).await,
        }
    }

    async fn commit<T, F>(&self, tx: &mut Transaction, body: &mut F) -> Result<T>
    where
        F: AsyncFnMut(&mut Transaction) -> Result<T>,
    {
        let mut attempts = Attempts::within(self.inner.settings.deadline);
        loop {
            tx.start().await?;
            let error = match AssertUnwindSafe(body(tx)).catch_unwind().await {
                Ok(Ok(value)) => match tx.commit(&mut attempts).await {
                    Ok(()) => {
                        tx.written
                            .drain(..)
                            .for_each(|written| self.publish(written));
                        return Ok(value);
                    }
                    Err(error) => error,
                },
                Ok(Err(error)) => {
                    tx.abort().await;
                    error
                }
                Err(panic) => {
                    tx.abort().await;
                    std::panic::resume_unwind(panic);
                }
            };
            if !error.is_transient() || !attempts.again().await {
                return Err(error);
            }
        }
    }

    /// Publishes every label of these events and waits until the sinks have them all. One that fails keeps
    /// none of the others back; the first failure is told.
    async fn publish_inline(&self, sinks: &[Outlet], entries: Vec<Entry>) -> Result<()> {
        let rows: Vec<Row> = entries
            .into_iter()
            .map(|entry| self.row(entry, RowId::new(), None))
            .collect();
        let routes = &self.inner.routes.all;
        let mut publications = Vec::new();
        for row in &rows {
            for route in routes {
                let sink = sinks.iter().find(|sink| *sink.name() == *route.sink);
                publications.extend(sink.map(|sink| self.publish_route(sink, row, route)));
            }
        }
        join_all(publications).await.into_iter().collect()
    }

    async fn publish_route(&self, sink: &Outlet, row: &Row, rendering: &Rendering) -> Result<()> {
        let deadline = self.inner.settings.deadline;
        let failed = |reason| Error::NotPublished {
            component: self.inner.component.clone(),
            seconds: deadline.as_secs(),
            reason,
        };
        let body = rendering
            .label
            .render(&row.event, self.inner.routes.encoding);
        let Some(body) = body.map_err(|unrendered| failed(unrendered.to_string()))? else {
            return Ok(());
        };
        let message = rendering.message(row, body, &Term::Endless);
        let mut last = format!("no answer from {}", sink.name());
        let published = tokio::time::timeout(deadline, async {
            while let Some((reason, _)) = deliver(sink, message.clone()).await.into_owed() {
                last = reason;
                tokio::time::sleep(self.inner.settings.interval / 10).await;
            }
        });
        published.await.map_err(|_| failed(last))
    }
}

async fn deliver(sink: &Outlet, message: Message) -> Answer {
    sink.up().await;
    sink.deliver(message).await
}

/// Attempts with growing pauses within a deadline.
struct Attempts {
    until: Instant,
    waits: backon::ExponentialBackoff,
}

impl Attempts {
    fn within(deadline: Duration) -> Self {
        let waits = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(5))
            .with_max_delay(Duration::from_millis(500))
            .with_factor(1.5)
            .without_max_times()
            .with_jitter()
            .build();
        Self {
            until: Instant::now() + deadline,
            waits,
        }
    }

    /// Waits for the next attempt; false if the deadline has passed.
    async fn again(&mut self) -> bool {
        let wait = self.waits.next().unwrap_or_default();
        if Instant::now() + wait >= self.until {
            return false;
        }
        tokio::time::sleep(wait).await;
        true
    }
}
