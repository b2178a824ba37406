//! Who may pump a collection at all: one group, or static slots of one count. Whoever came first.

use std::sync::Mutex;

use bson::{Document, doc};
use mongodb::{
    Collection,
    options::{ReturnDocument, WriteConcern},
};

use crate::{
    error::{UNAUTHORIZED, code},
    report::Reports,
};

pub(super) struct Binding {
    slots: Collection<Document>,
    collection: String,
    reports: Mutex<Reports>,
}

impl Binding {
    pub(super) fn new(slots: Collection<Document>, collection: &str) -> Self {
        Self {
            slots,
            collection: collection.to_owned(),
            reports: Mutex::default(),
        }
    }

    /// Whether the collection is bound to `terms`, binding it if nobody has. What keeps us from it is reported.
    pub(super) async fn bind(&self, terms: &str) -> bool {
        match self.bound(terms).await {
            Ok(bound) if bound == terms => true,
            Ok(bound) => {
                self.report(&format!(
                    "rows of {} are pumped by {bound}, this replica is set to {terms} and stands by; give each replica a \
                     TOA_OUTBOX_SLOT=i/n of its own, with one n for all, or none of them any; to change it for all, stop \
                     them and run: \
                     db.{}.deleteOne({{ _id: {{ collection: {:?} }} }})",
                    self.collection,
                    self.slots.name(),
                    self.collection,
                ));
                false
            }
            // Whoever may not write here cannot be told of others either.
            Err(error) if code(&error) == Some(UNAUTHORIZED) => {
                self.report(&format!(
                    "not allowed to write to {}, so nobody notices replicas that are set up in another way: {error}",
                    self.slots.namespace(),
                ));
                true
            }
            Err(error) => {
                self.report(&format!(
                    "asking {} who pumps: {error}",
                    self.slots.namespace()
                ));
                false
            }
        }
    }

    async fn bound(&self, terms: &str) -> mongodb::error::Result<String> {
        let id = doc! { "_id": { "collection": &self.collection } };
        let bound = self
            .slots
            .find_one_and_update(id, doc! { "$setOnInsert": { "pumpedBy": terms } })
            .upsert(true)
            .return_document(ReturnDocument::After)
            .write_concern(WriteConcern::majority())
            .await?;
        let by = bound
            .as_ref()
            .and_then(|bound| bound.get_str("pumpedBy").ok());
        Ok(by.unwrap_or("someone unknown").to_owned())
    }

    fn report(&self, problem: &str) {
        let mut reports = self
            .reports
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        reports.first(problem, |times| tracing::warn!(times, "{problem}"));
    }
}

/// The collection and whom it is bound to, if that is what a document says.
#[cfg(feature = "sidecar")]
pub(super) fn read(document: &Document) -> Option<(String, String)> {
    let collection = document
        .get_document("_id")
        .ok()?
        .get_str("collection")
        .ok()?;
    let by = document.get_str("pumpedBy").unwrap_or("someone unknown");
    Some((collection.to_owned(), by.to_owned()))
}
