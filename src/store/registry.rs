//! The sinks of a database, so that a row is owed to those too that no replica has at the moment.
//!
//! One document for each collection of rows and sink, with the labels that are owed to it and when somebody last served each;
//! and one for each sink that is paused, whatever collections it is fed from. (Cursors of ordered sinks are there too, and are of
//! [another file](super::cursors).) Everybody who marks rows reads all of it, so a
//! change takes effect when every live replica has looked again.

#[cfg(feature = "sidecar")]
mod operate;

use std::{collections::BTreeMap, future::IntoFuture, time::Duration};

use bson::{Bson, DateTime, Document, doc};
use futures::TryStreamExt;
use mongodb::{
    Collection, Database,
    options::{ReadConcern, ReturnDocument, WriteConcern},
};

use super::cursors;
use crate::{
    error::{Error, Result},
    sinks::{Kind, Mode},
};

/// The collection, in the database of the rows.
pub(crate) const COLLECTION: &str = "outbox_sinks";

/// What a service with sinks of its own does there, in the words of MongoDB's privileges.
pub(crate) const ACTIONS: &[&str] = &["find", "insert", "update", "remove"];

/// Where the sinks are registered.
#[derive(Clone)]
pub(crate) struct Registry {
    sinks: Collection<Document>,
}

/// A sink of one collection.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) collection: String,
    pub(crate) sink: String,
    pub(crate) kind: Kind,
    /// How it is fed, as `lanes`.
    pub(crate) mode: String,
    pub(crate) routes: Vec<Served>,
    /// Routes that are owed no more, and whose rows are not released yet.
    pub(crate) leaving: Vec<Served>,
    /// When it was registered.
    pub(crate) since: DateTime,
}

/// A route, and how long ago somebody served it, or it began to leave.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// `<sink>/<label>`.
    pub(crate) route: String,
    pub(crate) ago: Duration,
}

/// Why a sink is given nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// By which it is resumed.
    pub(crate) circuit: String,
    /// Why, in one line of ours.
    pub(crate) reason: String,
    pub(crate) since: DateTime,
    /// When the destination thinks it may be resumed.
    pub(crate) advice: Option<Duration>,
}

/// All that is registered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) sinks: Vec<Registered>,
    pub(crate) paused: BTreeMap<String, Pause>,
}

impl Known {
    /// The routes that rows of `collection` owe.
    pub(crate) fn routes_of<'a>(&'a self, collection: &'a str) -> impl Iterator<Item = &'a str> {
        let of_it = self
            .sinks
            .iter()
            .filter(move |sink| sink.collection == collection);
        of_it
            .flat_map(|sink| &sink.routes)
            .map(|served| served.route.as_str())
    }

    /// Refuses a sink of `collection` that is registered in the other mode.
    #[cfg(feature = "sidecar")]
    pub(crate) fn fits(&self, collection: &str, sink: &str, mode: Mode) -> Result<()> {
        let is_other = |known: &Registered| {
            known.collection == collection && known.sink == sink && known.mode != order(mode)
        };
        match self.sinks.iter().any(is_other) {
            true => Err(other_mode(collection, sink, mode)),
            false => Ok(()),
        }
    }
}

impl Registered {
    /// The names of its routes, those too that are leaving.
    pub(crate) fn names(&self) -> Vec<&str> {
        let all = self.routes.iter().chain(&self.leaving);
        all.map(|served| served.route.as_str()).collect()
    }

    /// Whether it is given its rows in the order of their commits.
    #[cfg(feature = "sidecar")]
    pub(crate) fn is_ordered(&self) -> bool {
        self.mode != order(Mode::Lanes)
    }
}

impl Registry {
    pub(crate) fn new(database: &Database) -> Self {
        Self {
            sinks: super::read_from_primary(database, COLLECTION),
        }
    }

    /// `<database>.<collection>`, as errors and logs name it.
    pub(crate) fn name(&self) -> String {
        self.sinks.namespace().to_string()
    }

    /// Has rows of `collection` owe these routes to a sink from now on, beside those that others have registered, and says that
    /// they are served. Majority; safe to repeat. When the sink was registered.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] where it is registered in the other mode: what it has been given is remembered in another way.
    pub(crate) async fn register(
        &self,
        collection: &str,
        sink: &str,
        kind: Kind,
        mode: Mode,
        routes: &[&str],
    ) -> Result<DateTime> {
        let mine = doc! { "$literal": routes.to_vec() };
        let served =
            doc! { "$map": { "input": mine.clone(), "in": { "route": "$$this", "at": "$$NOW" } } };
        let update = vec![doc! { "$set": {
            "kind": word(kind),
            "since": { "$ifNull": ["$since", "$$NOW"] },
            "routes": { "$concatArrays": [without("$routes", &mine), served] },
            "leaving": without("$leaving", &mine),
        } }];
        // In the other mode it is there and does not fit, so that another would be made under its id.
        let mut ours = id(collection, sink);
        ours.insert("mode", order(mode));
        let once = || {
            self.sinks
                .find_one_and_update(ours.clone(), update.clone())
                .upsert(true)
                .return_document(ReturnDocument::After)
                .write_concern(WriteConcern::majority())
                .into_future()
        };
        let attempted = "registering a sink";
        let registered = match self.within(attempted, once()).await {
            // Two made it at once.
            Err(error) if error.is_duplicate() => self.within(attempted, once()).await,
            registered => registered,
        };
        let registered = match registered {
            Err(error) if error.is_duplicate() => return Err(other_mode(collection, sink, mode)),
            registered => registered?,
        };
        let since = registered.and_then(|sink| sink.get_datetime("since").copied().ok());
        Ok(since.unwrap_or_else(DateTime::now))
    }

    /// Everything that is registered, as a majority has it.
    pub(crate) async fn look(&self) -> Result<Known> {
        let reading = async {
            let with_age = doc! {
                "kind": 1, "mode": 1, "routes": 1, "leaving": 1, "since": 1, "paused": 1,
                "now": "$$NOW",
            };
            let found = self.sinks.find(doc! {}).projection(with_age);
            let found = found.read_concern(ReadConcern::majority()).await?;
            found.try_collect::<Vec<Document>>().await
        };
        let documents = self
            .within("reading which sinks there are", reading)
            .await?;
        let mut known = Known::default();
        for document in &documents {
            known.sinks.extend(registered(document));
            known.paused.extend(paused(document));
        }
        Ok(known)
    }

    /// As [`look`](Self::look); nothing where the user may not, which is reported.
    pub(crate) async fn look_if_allowed(&self) -> Result<Known> {
        match self.look().await {
            Err(error) if error.is_unauthorized() => {
                tracing::warn!(
                    %error,
                    "not allowed to read which sinks are registered, so rows are owed to those alone that live replicas serve; \
                     grant find on it"
                );
                Ok(Known::default())
            }
            known => known,
        }
    }

    /// Whether rows of `collection` owe this route to the sink, as it is now.
    pub(crate) async fn owes(&self, collection: &str, sink: &str, route: &str) -> Result<bool> {
        let mut owed = id(collection, sink);
        owed.insert("routes.route", route);
        let found = self.sinks.find_one(owed).into_future();
        let found = self
            .within("looking whether a route is owed", found)
            .await?;
        Ok(found.is_some())
    }

    /// Takes those of the routes from a sink that nobody has served for the `grace`: from when everybody has looked again, rows
    /// owe them no more. Safe to repeat.
    pub(crate) async fn dismiss(
        &self,
        sink: &Registered,
        routes: &[&str],
        grace: Duration,
    ) -> Result<()> {
        let millis = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
        let named = doc! { "$in": ["$$this.route", { "$literal": routes.to_vec() }] };
        let is_served = doc! { "$gte": ["$$this.at", { "$subtract": ["$$NOW", millis] }] };
        let stays = doc! { "$or": [{ "$not": [named] }, is_served] };
        self.leave(sink, &stays, doc! {}).await
    }

    /// As [`dismiss`](Self::dismiss), of all its routes, and of a consumer too without a copy of what it is owed: whoever asks for
    /// it wants nothing of that any more.
    pub(crate) async fn dismiss_all(&self, sink: &Registered) -> Result<()> {
        let set = doc! { "kind": word(Kind::Sink) };
        self.leave(sink, &doc! { "$literal": false }, set).await
    }

    async fn leave(&self, sink: &Registered, stays: &Document, more: Document) -> Result<()> {
        let left = doc! { "$filter": { "input": "$routes", "cond": { "$not": [stays] } } };
        let left =
            doc! { "$map": { "input": left, "in": { "route": "$$this.route", "at": "$$NOW" } } };
        let leaving = doc! { "$concatArrays": [{ "$ifNull": ["$leaving", []] }, left] };
        let mut set = doc! {
            "leaving": leaving,
            "routes": { "$filter": { "input": "$routes", "cond": stays } },
        };
        set.extend(more);
        let update = vec![doc! { "$set": set }];
        let updated = self
            .sinks
            .update_one(id(&sink.collection, &sink.sink), update)
            .write_concern(WriteConcern::majority())
            .into_future();
        self.within("taking routes from a sink", updated)
            .await
            .map(drop)
    }

    /// Forgets a route that was leaving, once no row owes it any more; and the sink with its last.
    pub(crate) async fn forget(&self, collection: &str, sink: &str, route: &str) -> Result<()> {
        let id = id(collection, sink);
        let forgetting = async {
            let pull = doc! { "$pull": { "leaving": { "route": route } } };
            let majority = WriteConcern::majority();
            self.sinks
                .update_one(id.clone(), pull)
                .write_concern(majority.clone())
                .await?;
            let mut empty = id;
            empty.extend(doc! { "routes": [], "leaving": [] });
            let deleted = self.sinks.delete_one(empty);
            let deleted = deleted.write_concern(majority.clone()).await?;
            if deleted.deleted_count > 0 {
                let cursor = self.sinks.delete_one(cursors::id(collection, sink));
                cursor.write_concern(majority).await?;
            }
            Ok(())
        };
        self.within("forgetting a route", forgetting).await
    }

    /// Has nobody deliver to a sink until it is resumed. One that is paused already stays as it is.
    pub(crate) async fn pause(&self, sink: &str, pause: &Pause) -> Result<()> {
        let advice = pause
            .advice
            .map(|advice| i64::try_from(advice.as_secs()).unwrap_or(i64::MAX));
        let paused = doc! { "$setOnInsert": { "paused": {
            "circuit": &pause.circuit,
            "reason": &pause.reason,
            "since": pause.since,
            "advice": advice,
        } } };
        let updated = self
            .sinks
            .update_one(doc! { "_id": { "sink": sink } }, paused)
            .upsert(true)
            .write_concern(WriteConcern::majority())
            .into_future();
        match self.within("pausing a sink", updated).await {
            // Another was first.
            Err(error) if error.is_duplicate() => Ok(()),
            paused => paused.map(drop),
        }
    }

    async fn within<T>(
        &self,
        attempted: &'static str,
        request: impl Future<Output = Result<T, mongodb::error::Error>>,
    ) -> Result<T> {
        super::within(&self.name(), attempted, request).await
    }
}

/// How a mode is spelled.
fn order(mode: Mode) -> &'static str {
    match mode {
        Mode::Lanes => "lanes",
        Mode::Ordered(_) => "ordered",
    }
}

fn other_mode(collection: &str, sink: &str, mode: Mode) -> Error {
    let (wanted, other) = match mode {
        Mode::Lanes => ("in no order", "in the order of the commits"),
        Mode::Ordered(_) => ("in the order of the commits", "in no order"),
    };
    Error::Setting {
        name: "sink".into(),
        origin: "builder".into(),
        value: sink.into(),
        expected: format!(
            "it is to be given rows of {collection} {wanted}, and is registered to be given them {other}; give it another name, or \
             remove the one that is registered"
        ),
    }
}

/// How a kind of sink is spelled.
pub(crate) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Sink => "sink",
        Kind::Consumer => "consumer",
    }
}

/// A field of routes less those named.
fn without(field: &str, named: &Document) -> Document {
    let stays = doc! { "$not": [{ "$in": ["$$this.route", named] }] };
    doc! { "$filter": { "input": { "$ifNull": [field, []] }, "cond": stays } }
}

fn id(collection: &str, sink: &str) -> Document {
    doc! { "_id": { "collection": collection, "sink": sink } }
}

/// None if the document says something else, such as that a sink is paused.
fn registered(document: &Document) -> Option<Registered> {
    let id = document.get_document("_id").ok()?;
    let now = document.get_datetime("now").copied().ok()?;
    let kind = match document.get_str("kind").ok()? {
        "consumer" => Kind::Consumer,
        _ => Kind::Sink,
    };
    Some(Registered {
        collection: id.get_str("collection").ok()?.to_owned(),
        sink: id.get_str("sink").ok()?.to_owned(),
        kind,
        mode: document.get_str("mode").unwrap_or_default().to_owned(),
        routes: served(document, "routes", now),
        leaving: served(document, "leaving", now),
        since: document.get_datetime("since").copied().ok()?,
    })
}

fn served(document: &Document, field: &str, now: DateTime) -> Vec<Served> {
    let served = |one: &Bson| {
        let one = one.as_document()?;
        let at = one.get_datetime("at").ok()?.timestamp_millis();
        let ago = u64::try_from(now.timestamp_millis() - at).unwrap_or(0);
        Some(Served {
            route: one.get_str("route").ok()?.to_owned(),
            ago: Duration::from_millis(ago),
        })
    };
    let all = document
        .get_array(field)
        .map(Vec::as_slice)
        .unwrap_or_default();
    all.iter().filter_map(served).collect()
}

fn paused(document: &Document) -> Option<(String, Pause)> {
    let sink = document.get_document("_id").ok()?.get_str("sink").ok()?;
    let paused = document.get_document("paused").ok()?;
    let advice = paused
        .get_i64("advice")
        .ok()
        .and_then(|secs| u64::try_from(secs).ok());
    let pause = Pause {
        circuit: paused.get_str("circuit").ok()?.to_owned(),
        reason: paused.get_str("reason").unwrap_or_default().to_owned(),
        since: paused.get_datetime("since").copied().ok()?,
        advice: advice.map(Duration::from_secs),
    };
    Some((sink.to_owned(), pause))
}
