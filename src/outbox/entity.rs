//! Changes of one entity that produce their event by themselves.

use std::time::Duration;

use bson::{Bson, DateTime, Document, RawDocumentBuf, doc, oid::ObjectId};
use mongodb::options::ReturnDocument;

use super::{Outbox, Transaction};
use crate::{
    error::{Error, Result},
    row::Event,
};

/// How often a change is attempted on a state that others keep changing.
const ATTEMPTS: u32 = 32;

/// The version an entity is created with; each change adds one.
const FIRST_VERSION: i64 = 1;

const VERSION: &str = "_version";
const DELETED: &str = "_deleted";

impl Outbox {
    /// Inserts an entity and emits its event. `_version` is set to 1, and `_id` to a new ObjectId where
    /// there is none. Returns the state as it was stored.
    ///
    /// # Errors
    ///
    /// As [`transaction`](Self::transaction); an entity with the same `_id` is an [`Error::Driver`].
    pub async fn create(&self, mut state: Document, input: impl Into<Bson>) -> Result<Document> {
        let id = state
            .remove("_id")
            .unwrap_or_else(|| ObjectId::new().into());
        let mut entity = doc! { "_id": id };
        entity.extend(state);
        entity.insert(VERSION, FIRST_VERSION);
        let document = self.encoded("the state", &entity)?;
        let event = Event::created(entity).input(input);
        self.encoded("the event", &doc! { "input": &event.input })?;
        self.transaction(async move |tx| {
            let entities = tx.entities().clone_with_type::<RawDocumentBuf>();
            entities.insert_one(&document).session(tx.session()).await?;
            tx.emit(event.clone()).await?;
            Ok(event.state.clone())
        })
        .await
    }

    /// Reads the entity with this `_id`, changes its state, and writes it back unless others have changed
    /// it meanwhile, in which case it is read and changed again, a bounded number of times. Returns the new
    /// state.
    ///
    /// `change` is given the state, and the trailers of the event: what it puts there goes to labels and is
    /// never stored in the entity. It may be called several times. `_id` and `_version` are kept whatever
    /// it does to them.
    ///
    /// # Errors
    ///
    /// As [`transaction`](Self::transaction), [`Error::NotFound`], and [`Error::Conflict`] if others were
    /// faster every time.
    pub async fn transit<F>(
        &self,
        id: impl Into<Bson>,
        input: impl Into<Bson>,
        mut change: F,
    ) -> Result<Document>
    where
        F: FnMut(&mut Document, &mut Document) -> Result<()>,
    {
        let (id, input) = (id.into(), input.into());
        for attempt in 0..ATTEMPTS {
            let filter = doc! { "_id": id.clone() };
            let found = self.inner.entities.find_one(filter).await?;
            let origin = found.ok_or_else(|| self.missing(&id))?;
            let (mut state, mut trailers) = (origin.clone(), Document::new());
            change(&mut state, &mut trailers)?;
            state.insert("_id", id.clone());
            state.insert(VERSION, version(&origin) + 1);
            let event = Event::changed(origin, state.clone())
                .input(input.clone())
                .trailers(trailers);
            if self.swap(event).await? {
                return Ok(state);
            }
            tokio::time::sleep(pause(attempt)).await;
        }
        Err(self.conflict(&id))
    }

    /// Replaces the entity and emits, if it is still at the version the event starts from.
    async fn swap(&self, event: Event) -> Result<bool> {
        let filter = at_version(event.origin.as_ref().unwrap_or(&event.state));
        let document = self.encoded("the state", &event.state)?;
        let attached = doc! { "input": &event.input, "trailers": &event.trailers };
        self.encoded("the event", &attached)?;
        self.transaction(async move |tx| {
            let entities = tx.entities().clone_with_type::<RawDocumentBuf>();
            let replaced = entities.replace_one(filter.clone(), &document);
            if replaced.session(tx.session()).await?.matched_count == 0 {
                return Ok(false);
            }
            tx.emit(event.clone()).await?;
            Ok(true)
        })
        .await
    }

    /// Applies update operators to the one entity that `filter` finds, and emits the event with the state
    /// before and after, as the write itself saw them. Adds one to `_version`. An assignment has no
    /// trailers. Returns the new state.
    ///
    /// # Errors
    ///
    /// As [`transaction`](Self::transaction), [`Error::NotFound`] if nothing fits the filter, and
    /// [`Error::Conflict`] if others were faster every time.
    pub async fn assign(
        &self,
        filter: Document,
        mut update: Document,
        input: impl Into<Bson>,
    ) -> Result<Document> {
        let input = input.into();
        match update
            .entry("$inc")
            .or_insert_with(|| Document::new().into())
        {
            Bson::Document(increments) => increments.insert(VERSION, 1_i64),
            other => {
                let reason = format!("expected a document, found {other}");
                return Err(self.unencodable("the update's $inc", reason));
            }
        };
        self.encoded("the update", &update)?;
        self.encoded("the event", &doc! { "input": &input })?;
        for attempt in 0..ATTEMPTS {
            let assigned = self
                .swap_in(filter.clone(), update.clone(), input.clone())
                .await?;
            match assigned {
                Some(state) => return Ok(state),
                None if self
                    .inner
                    .entities
                    .find_one(filter.clone())
                    .await?
                    .is_none() =>
                {
                    return Err(self.missing(&filter.into()));
                }
                None => tokio::time::sleep(pause(attempt)).await,
            }
        }
        Err(self.conflict(&filter.into()))
    }

    /// Updates the entity and emits, unless it changed since it was read.
    async fn swap_in(
        &self,
        filter: Document,
        update: Document,
        input: Bson,
    ) -> Result<Option<Document>> {
        self.transaction(async move |tx| {
            let Some(event) = assigned(tx, &filter, &update).await? else {
                return Ok(None);
            };
            let state = event.state.clone();
            tx.emit(event.input(input.clone())).await?;
            Ok(Some(state))
        })
        .await
    }

    /// Sets `_deleted` of the entity with this `_id` to the current date and emits its event. The document
    /// stays. Returns the new state.
    ///
    /// # Errors
    ///
    /// As [`assign`](Self::assign); an entity that is deleted already is [`Error::NotFound`].
    pub async fn terminate(&self, id: impl Into<Bson>, input: impl Into<Bson>) -> Result<Document> {
        let filter = doc! { "_id": id.into(), DELETED: null };
        let update = doc! { "$set": { DELETED: DateTime::now() } };
        self.assign(filter, update, input).await
    }

    fn missing(&self, entity: &Bson) -> Error {
        let component = self.inner.component.clone();
        Error::NotFound {
            entity: entity.to_string(),
            component,
        }
    }

    fn conflict(&self, entity: &Bson) -> Error {
        let component = self.inner.component.clone();
        Error::Conflict {
            entity: entity.to_string(),
            component,
            attempts: ATTEMPTS,
        }
    }

    /// What is about to be written, refused before there is a transaction if BSON cannot hold it.
    fn encoded(&self, what: &'static str, document: &Document) -> Result<RawDocumentBuf> {
        RawDocumentBuf::try_from(document).map_err(|error| self.unencodable(what, error))
    }
}

/// Updates the entity at the version it was read at, so that what was read is what the write replaced;
/// none if there is no such entity or it changed in between.
async fn assigned(
    tx: &mut Transaction,
    filter: &Document,
    update: &Document,
) -> Result<Option<Event>> {
    let entities = tx.entities();
    let found = entities
        .find_one(filter.clone())
        .session(tx.session())
        .await?;
    let Some(origin) = found else { return Ok(None) };
    let state = entities
        .find_one_and_update(at_version(&origin), update.clone())
        .return_document(ReturnDocument::After)
        .session(tx.session())
        .await?;
    Ok(state.map(|state| Event::changed(origin, state)))
}

/// The filter of an entity as it is in `state`; one that never had a version matches as well.
fn at_version(state: &Document) -> Document {
    let version = state.get(VERSION).cloned().unwrap_or(Bson::Null);
    doc! { "_id": state.get("_id").cloned().unwrap_or(Bson::Null), VERSION: version }
}

fn version(state: &Document) -> i64 {
    match state.get(VERSION) {
        Some(Bson::Int32(version)) => (*version).into(),
        Some(Bson::Int64(version)) => *version,
        Some(Bson::Double(version)) => *version as i64,
        _ => 0,
    }
}

fn pause(attempt: u32) -> Duration {
    let most = Duration::from_millis(2 << attempt.min(6));
    most.mul_f64(rand::random::<f64>())
}
