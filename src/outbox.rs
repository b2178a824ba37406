//! The writer: all an application needs.

mod book;
mod builder;
mod entity;
mod entry;
mod gate;
mod subscription;
mod transaction;

use std::{collections::BTreeSet, sync::Arc};

use bson::Document;
use mongodb::{ClientSession, Collection, Database};

use crate::{
    component::Component,
    config::Settings,
    error::{Error, Result},
    label::pattern,
    redact::Redact,
    relay::{
        Relay,
        ledger::{Claim, Left},
        line::Line,
        pump::Pass,
    },
    routes::{Rendering, RouteSet, Routes},
    row::{Event, Row, RowId, now},
    sinks::{Outlet, amqp::Amqp},
    store::{Store, encode, seal},
};

use gate::{Admission, Gate};
use subscription::{Hub, Source};

pub use builder::Builder;
pub use entry::Entry;
pub use subscription::{Heard, Live, Subscription};
pub use transaction::Transaction;

/// The most a row may be when it is written, in bytes: what the server takes of a document, less the room
/// that `outstanding` and `publishedAt` need when it is marked.
/// <https://www.mongodb.com/docs/manual/reference/limits/#bson-documents>
const ROW_LIMIT: usize = 16 * 1024 * 1024 - 16 * 1024;

/// The outbox of one component: writes a row with every state change, and publishes what it wrote.
///
/// Cheap to clone. When the last clone is dropped the relay takes nothing more and drains in the background,
/// for at most [`Settings::grace`]; the rows are in the database, and whoever pumps their lanes next
/// publishes what is left. To stop in good order, and know what that is, call
/// [`shutdown`](Self::shutdown).
///
/// # What kind of server
///
/// On a replica set or a sharded cluster rows commit with their entities, and no operation waits for the
/// broker. On a standalone server there are no transactions: that is said once at [`open`](Self::open),
/// no rows are written, and each operation publishes its events itself and waits for that. A component
/// none of whose labels is consumed takes no transaction, writes no row and never creates the
/// collection.
#[derive(Clone)]
pub struct Outbox {
    inner: Arc<Inner>,
}

struct Inner {
    component: String,
    /// Whether its rows carry a digest.
    has_integrity: bool,
    redact: Vec<Redact>,
    settings: Settings,
    database: Database,
    entities: Collection<Document>,
    store: Store,
    routes: Arc<Routes>,
    mode: Mode,
    /// None where it may hold as much as there comes.
    gate: Option<Arc<Gate>>,
    hub: Hub,
}

/// What becomes of an event.
enum Mode {
    /// It commits as a row, and the relay publishes it.
    Rows(Box<Relay>, Arc<Line>),
    /// A standalone server: the operation publishes it to these sinks.
    Inline(Vec<Outlet>),
    /// Nothing consumes it.
    Nothing,
}

impl Outbox {
    /// Opens the outbox of `component` in `database` with a connection to the broker of its own.
    ///
    /// Creates the outbox collection and its indexes where they are missing, and starts the relay. A
    /// broker that cannot be reached is no error. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Component`] and [`Error::Setting`] for what cannot be used, [`Error::Store`] if MongoDB
    /// cannot be reached or refuses.
    pub async fn open(
        database: &Database,
        component: Component,
        settings: Settings,
    ) -> Result<Self> {
        Self::builder(database, component, settings).open().await
    }

    /// As [`open`](Self::open), with a connection that may be shared by several outboxes.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub async fn open_with(
        database: &Database,
        component: Component,
        settings: Settings,
        sink: &Amqp,
    ) -> Result<Self> {
        let builder = Self::builder(database, component, settings);
        builder.amqp(sink).open().await
    }

    /// To open the outbox of `component` in `database` with sinks of the application's own beside the broker, or instead of
    /// it.
    ///
    /// ```no_run
    /// # use toa_outbox::{BoxError, Component, Label, Message, Outbox, Result, Settings, Sink, Verdict};
    /// # struct Search;
    /// # impl Sink for Search {
    /// #     async fn deliver(&self, batch: &[Message]) -> std::result::Result<Vec<Verdict>, BoxError> {
    /// #         Ok(vec![Verdict::Accepted; batch.len()])
    /// #     }
    /// # }
    /// # async fn example(database: mongodb::Database) -> Result<()> {
    /// let pots = Component::new("tea", "pots").labels(Label::system());
    /// let pots = Outbox::builder(&database, pots, Settings::from_env()?)
    ///     .sink("search", ["tea_pots.*"], Search)
    ///     .open()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn builder(database: &Database, component: Component, settings: Settings) -> Builder {
        Builder::new(database, component, settings)
    }

    /// Writes the row of `event` in the caller's own transaction, which `session` must be in. After the
    /// commit, hand what is returned to [`publish`](Self::publish); dropped instead, the row is left to
    /// the pump. None where no rows are written.
    ///
    /// For services that run their own transactions; [`transaction`](Self::transaction) does all of it. With an
    /// [`Entry`] instead of the event the caller chooses the row's id, or when it is published.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Unencodable`] and [`Error::Ceiling`] before anything is sent, [`Error::Store`] after;
    /// the caller aborts the transaction. [`Error::IdTaken`] if there is another event under the id of the entry; the
    /// transaction may go on.
    pub async fn append(
        &self,
        session: &mut ClientSession,
        event: impl Into<Entry>,
    ) -> Result<Option<Written>> {
        self.write(session, event.into(), RowId::new()).await
    }

    /// Publishes a row that [`append`](Self::append) wrote, once its transaction has committed. Does not
    /// wait.
    pub fn publish(&self, written: Written) {
        if let Mode::Rows(_, line) = &self.inner.mode
            && !self.inner.settings.defer
        {
            line.publish(written.row, written.claims);
        }
    }

    /// Starts a cycle of the pump at once. Calls coalesce.
    pub fn nudge(&self) {
        if let Mode::Rows(_, line) = &self.inner.mode {
            line.nudge();
        }
    }

    /// Runs one cycle of the pump, waits until everything it published has had its answer and its mark,
    /// and says what it did. For tests; the pump runs without it.
    ///
    /// While there is no connection to the broker (see [`Amqp::up`]) it does nothing, and says so with zeros.
    /// While this replica owns no lane, it only tries again what it could not send; the first replica of a
    /// component has none for three [beats](Settings::beat), and with [`Settings::slot`] `0/1` all from the start.
    /// Rows that are not due yet are not found: with [`Settings::defer`] a row is due when it is written.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the rows cannot be read.
    pub async fn pass(&self) -> Result<Pass> {
        match &self.inner.mode {
            Mode::Rows(_, line) => line.pass().await,
            Mode::Inline(_) | Mode::Nothing => Ok(Pass::default()),
        }
    }

    /// Hears every message that is committed from now on and whose label, with the collection of the entities before it,
    /// fits `pattern`: `tea_pots.created`, or with `*` for anything: `tea_pots.*`. Whoever writes the row, and whether
    /// the broker is there or not.
    ///
    /// Made for what may be missed, such as a page that shows what is going on: nothing is kept for a subscriber who is away,
    /// 1024 messages for one who is slow, and he is told how many he missed. Nobody waits for him, no commit and no
    /// publication. A message may be heard before it is published.
    ///
    /// All subscriptions of an outbox share one change stream, which the user has to be allowed to open: `find` and
    /// `changeStream` on the collection of the rows.
    ///
    /// ```no_run
    /// # async fn example(pots: toa_outbox::Outbox) -> toa_outbox::Result<()> {
    /// use toa_outbox::Heard;
    ///
    /// let mut created = pots.subscribe("tea_pots.created").await?;
    /// while let Some(heard) = created.next().await {
    ///     match heard {
    ///         Heard::Message(live) => println!("{} {}", live.label, live.event.state),
    ///         Heard::Missed(count) => println!("{count} more"),
    ///         _ => println!("and perhaps more"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if the pattern fits no label that is consumed, [`Error::Unfit`] on a standalone server,
    /// [`Error::Store`] if the change stream cannot be opened.
    pub async fn subscribe(&self, pattern: &str) -> Result<Subscription> {
        let inner = &self.inner;
        let wants = self.fitting(pattern)?;
        let Mode::Rows(relay, _) = &inner.mode else {
            return Err(Error::Unfit {
                database: inner.database.name().to_owned(),
                problem: "a standalone server has no change streams to hear of rows by; run MongoDB as a replica set, \
                          one member is enough"
                    .into(),
            });
        };
        let source = Source {
            database: inner.database.clone(),
            collection: inner.store.collection().to_owned(),
            routes: inner.routes.clone(),
        };
        inner.hub.join(source, wants, relay).await
    }

    /// The routes of the labels that fit a pattern.
    fn fitting(&self, pattern: &str) -> Result<RouteSet> {
        let inner = &self.inner;
        let name = |route: &Rendering| format!("{}.{}", inner.entities.name(), route.label.name());
        let mut names = BTreeSet::new();
        let mut fitting = RouteSet::default();
        for (index, route) in inner.routes.all.iter().enumerate() {
            // A label that goes to several sinks is heard once.
            if names.insert(name(route)) && pattern::fits(pattern, &name(route)) {
                fitting.insert(index);
            }
        }
        if fitting.is_empty() {
            return Err(Error::Setting {
                name: "pattern".into(),
                origin: "subscribe".into(),
                value: pattern.into(),
                expected: format!("expected one that fits a label that is consumed, of {names:?}"),
            });
        }
        Ok(fitting)
    }

    /// Stops: takes nothing more, waits for what is in flight and for its marks, at most
    /// [`Settings::grace`], leaves its lanes to other replicas, within a second more, and says what was left behind. Rows written after it are left to the pump of
    /// whoever comes next.
    pub async fn shutdown(&self) -> Left {
        match &self.inner.mode {
            Mode::Rows(relay, _) => relay.shutdown().await,
            Mode::Inline(_) | Mode::Nothing => Left::default(),
        }
    }

    /// The collection of the entities.
    pub fn entities(&self) -> &Collection<Document> {
        &self.inner.entities
    }

    /// Builds the row, makes it known to the ledger, and inserts it.
    async fn write(
        &self,
        session: &mut ClientSession,
        mut entry: Entry,
        id: RowId,
    ) -> Result<Option<Written>> {
        let Mode::Rows(_, line) = &self.inner.mode else {
            return Ok(None);
        };
        entry.event = self.redacted(entry.event)?;
        if let Some(id) = &entry.id {
            let before = self.repeated(session, id, &entry.event).await?;
            if before.is_some() {
                return Ok(before);
            }
        }
        let later = entry.later();
        let row = self.row(entry, id, later);
        let document = match self.inner.has_integrity {
            true => seal(&row),
            false => encode(&row),
        };
        let document = document.map_err(|error| self.unencodable("the event", error))?;
        let size = document.as_bytes().len();
        if size > ROW_LIMIT {
            return Err(Error::TooLarge {
                component: self.inner.component.clone(),
                size,
                limit: ROW_LIMIT,
            });
        }
        let admission = match &self.inner.gate {
            Some(gate) => Some(gate.admit(size).await?),
            None => None,
        };
        let claims = match later {
            // Known before the insert, so that the pump of this process never takes it for a stranger's.
            None => line.hold(&row),
            // It is the pump's.
            Some(_) => Vec::new(),
        };
        self.inner.store.insert(session, &document).await?;
        Ok(Some(Written {
            row,
            claims,
            _admission: admission,
        }))
    }

    /// What of an event is stored and published.
    fn redacted(&self, event: Event) -> Result<Event> {
        Redact::all(&self.inner.redact, event).map_err(|error| self.unencodable("the event", error))
    }

    fn unencodable(&self, what: &'static str, reason: impl ToString) -> Error {
        Error::Unencodable {
            what,
            component: self.inner.component.clone(),
            reason: reason.to_string(),
        }
    }

    fn failed(&self, attempted: &'static str, error: mongodb::error::Error) -> Error {
        Error::store(attempted, self.inner.store.name(), error)
    }

    /// A lane of our own where rows are kept.
    fn lane(&self) -> u8 {
        match &self.inner.mode {
            Mode::Rows(_, line) => line.lanes.pick(),
            Mode::Inline(_) | Mode::Nothing => 0,
        }
    }

    /// A deferred row is due at once; one this process will publish itself, a gap from now. Or `later`, where that is
    /// wanted. `id` where the entry has none.
    fn row(&self, entry: Entry, id: RowId, later: Option<i64>) -> Row {
        let settings = &self.inner.settings;
        let gap = if settings.defer {
            0
        } else {
            settings.gap().as_millis()
        };
        let gap = i64::try_from(gap).unwrap_or(i64::MAX);
        Row {
            id: entry.id.unwrap_or(id),
            lane: self.lane(),
            pending: later.unwrap_or_else(|| now().saturating_add(gap)),
            event: entry.event,
            outstanding: None,
        }
    }
}

/// A row that was written in a transaction that has not committed yet. While it exists, the pump of this
/// process leaves the row alone.
pub struct Written {
    row: Row,
    /// One for each sink, where nobody else in this process had it; none at all if it is not published from here.
    claims: Vec<Option<Claim>>,
    /// While its transaction may not have committed, no count of the rows can be relied on to have it.
    _admission: Option<Admission>,
}

impl Written {
    /// The row as it was written.
    pub fn row(&self) -> &Row {
        &self.row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;

    fn may_be_spawned<T: Send + 'static>(_: impl Fn(Outbox) -> T) {}

    #[test]
    fn every_operation_may_be_spawned() {
        let unchanged = |_: &mut Document, _: &mut Document| Ok(());
        may_be_spawned(|pots| async move { pots.create(Document::new(), 1).await });
        may_be_spawned(move |pots| async move { pots.transit(1, 1, unchanged).await });
        may_be_spawned(
            |pots| async move { pots.assign(Document::new(), Document::new(), 1).await },
        );
        may_be_spawned(|pots| async move { pots.terminate(1, 1).await });
        may_be_spawned(|pots| async move { pots.pass().await });
        may_be_spawned(|pots| async move { pots.shutdown().await });
        may_be_spawned(|pots| async move {
            let name = String::from("glass");
            let body = async move |tx: &mut Transaction| -> Result<()> {
                tx.emit(Event::created(bson::doc! { "name": &name })).await
            };
            pots.transaction(body).await
        });
    }
}
