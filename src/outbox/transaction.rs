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
use futures::FutureExt;
use mongodb::{
    ClientSession, Collection, Database, error::UNKNOWN_TRANSACTION_COMMIT_RESULT,
    options::WriteConcern,
};

use super::{Mode, Outbox, Written};
use crate::{
    error::{Error, Result},
    row::{Event, RowId},
    sinks::{Message, Verdict, amqp::Amqp},
};

/// What the body of [`Outbox::transaction`] works with.
pub struct Transaction<'a> {
    outbox: &'a Outbox,
    session: &'a mut ClientSession,
    /// The ids of the rows, the same every time the body is repeated.
    ids: &'a mut Vec<RowId>,
    written: Vec<Written>,
    /// Events to publish inline, where there are no rows.
    inline: Vec<Event>,
    emitted: usize,
}

impl Transaction<'_> {
    /// The driver's session; pass it to every operation that belongs to the transaction.
    pub fn session(&mut self) -> &mut ClientSession {
        self.session
    }

    /// The database of the outbox.
    pub fn database(&self) -> &Database {
        &self.outbox.inner.database
    }

    /// The collection of the entities.
    pub fn entities(&self) -> Collection<Document> {
        self.outbox.inner.entities.clone()
    }

    /// Writes the row of `event` in this transaction. It is published once the commit has returned.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] and [`Error::Unencodable`] before anything is sent; [`Error::Store`] after,
    /// which the body must return for the transaction to be retried.
    pub async fn emit(&mut self, event: Event) -> Result<()> {
        let index = self.emitted;
        self.emitted += 1;
        if self.ids.len() == index {
            self.ids.push(RowId::new());
        }
        match self.outbox.inner.mode {
            Mode::Rows(_) => {
                let id = self.ids[index].clone();
                let written = self.outbox.write(self.session, event, id).await?;
                self.written.extend(written);
            }
            Mode::Inline(_) => self.inline.push(event),
            Mode::Nothing => {}
        }
        Ok(())
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
    /// Where no rows are written (see [`Outbox`]) the body runs once, without a transaction.
    ///
    /// ```no_run
    /// # use bson::doc;
    /// # use toa_outbox::{Event, Outbox, Result};
    /// # async fn example(pots: Outbox) -> Result<()> {
    /// pots.transaction(async |tx| {
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
        F: AsyncFnMut(&mut Transaction<'_>) -> Result<T>,
    {
        let mut session = self.session().await?;
        match &self.inner.mode {
            Mode::Rows(_) => self.commit(&mut session, &mut body).await,
            Mode::Inline(sink) => {
                let (value, transaction) =
                    self.run(&mut session, &mut Vec::new(), &mut body).await?;
                for event in transaction.inline {
                    self.publish_inline(sink, event).await?;
                }
                Ok(value)
            }
            Mode::Nothing => {
                let (value, _) = self.run(&mut session, &mut Vec::new(), &mut body).await?;
                Ok(value)
            }
        }
    }

    async fn session(&self) -> Result<ClientSession> {
        let started = self.inner.database.client().start_session().await;
        started.map_err(|error| Error::store("starting a session", self.inner.store.name(), error))
    }

    /// One run of the body, with what it emitted.
    async fn run<T, F>(
        &self,
        session: &mut ClientSession,
        ids: &mut Vec<RowId>,
        body: &mut F,
    ) -> Result<(T, Emitted)>
    where
        F: AsyncFnMut(&mut Transaction<'_>) -> Result<T>,
    {
        let mut transaction = Transaction {
            outbox: self,
            session,
            ids,
            written: Vec::new(),
            inline: Vec::new(),
            emitted: 0,
        };
        let value = body(&mut transaction).await?;
        let Transaction {
            written, inline, ..
        } = transaction;
        Ok((value, Emitted { written, inline }))
    }

    async fn commit<T, F>(&self, session: &mut ClientSession, body: &mut F) -> Result<T>
    where
        F: AsyncFnMut(&mut Transaction<'_>) -> Result<T>,
    {
        let mut attempts = Attempts::within(self.inner.settings.deadline);
        let mut ids = Vec::new();
        loop {
            let started = session
                .start_transaction()
                .write_concern(WriteConcern::majority());
            let name = || self.inner.store.name();
            started
                .await
                .map_err(|error| Error::store("starting a transaction", name(), error))?;
            let run = AssertUnwindSafe(self.run(session, &mut ids, body))
                .catch_unwind()
                .await;
            let error = match run {
                Ok(Ok((value, emitted))) => match self.committed(session, &mut attempts).await {
                    Ok(()) => {
                        emitted
                            .written
                            .into_iter()
                            .for_each(|written| self.publish(written));
                        return Ok(value);
                    }
                    Err(error) => error,
                },
                Ok(Err(error)) => {
                    abort(session).await;
                    error
                }
                Err(panic) => {
                    abort(session).await;
                    std::panic::resume_unwind(panic);
                }
            };
            if !error.is_transient() || !attempts.again().await {
                return Err(error);
            }
        }
    }

    /// Commits, and repeats the commit while its outcome is unknown.
    async fn committed(&self, session: &mut ClientSession, attempts: &mut Attempts) -> Result<()> {
        loop {
            let Err(error) = session.commit_transaction().await else {
                return Ok(());
            };
            if !error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
                return Err(Error::store(
                    "committing a transaction",
                    self.inner.store.name(),
                    error,
                ));
            }
            if !attempts.again().await {
                return Err(Error::OutcomeUnknown {
                    collection: self.inner.store.name(),
                    seconds: self.inner.settings.deadline.as_secs(),
                    source: Box::new(error),
                });
            }
        }
    }

    /// Publishes every label of an event and waits until the broker has them all.
    async fn publish_inline(&self, sink: &Amqp, event: Event) -> Result<()> {
        let deadline = self.inner.settings.deadline;
        let row = self.row(event, RowId::new());
        let mut last = String::from("no answer from the broker");
        let published = tokio::time::timeout(deadline, async {
            for rendering in &self.inner.routes.all {
                let body = rendering
                    .label
                    .render(&row.event, self.inner.routes.encoding);
                let body = body.map_err(|unrendered| unrendered.to_string())?;
                let Some(body) = body else { continue };
                let message = rendering.message(&row, body);
                while let Verdict::Retry { reason, .. } = deliver(sink, message.clone()).await {
                    last = reason;
                    tokio::time::sleep(self.inner.settings.interval / 10).await;
                }
            }
            Ok::<(), String>(())
        });
        let reason = match published.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(unrendered)) => unrendered,
            Err(_) => last,
        };
        Err(Error::NotPublished {
            component: self.inner.component.clone(),
            seconds: deadline.as_secs(),
            reason,
        })
    }
}

async fn deliver(sink: &Amqp, message: Message) -> Verdict {
    sink.up().await;
    sink.deliver(message).await
}

/// What a body emitted.
struct Emitted {
    written: Vec<Written>,
    inline: Vec<Event>,
}

/// Explicitly, since a session that is dropped aborts only some time later, and its locks with it.
async fn abort(session: &mut ClientSession) {
    // The server aborts by itself what it can no longer be told to.
    if let Err(error) = session.abort_transaction().await {
        tracing::debug!(%error, "aborting a transaction");
    }
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
