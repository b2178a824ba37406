//! Who may pump a collection at all: one group, or static slots of one count. Whoever came first.

use std::{mem, sync::Arc, sync::Mutex, time::Duration};

use bson::{Document, doc};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use mongodb::{
    Collection,
    options::{ReturnDocument, WriteConcern},
};
use tokio::sync::mpsc;

use super::Part;
use crate::{
    error::{UNAUTHORIZED, code},
    report::Reports,
};

/// How many collections are asked for at once.
const AT_ONCE: usize = 16;

/// Parts that come, and wait for the right to be pumped from here.
pub(super) struct Bindings {
    binding: Arc<Binding>,
    coming: mpsc::UnboundedReceiver<Vec<Part>>,
    /// How long after a refusal to look again.
    again: Duration,
    refused: Vec<Part>,
    asking: Option<BoxFuture<'static, Vec<(Part, bool)>>>,
}

impl Bindings {
    pub(super) fn new(
        binding: Binding,
        coming: mpsc::UnboundedReceiver<Vec<Part>>,
        again: Duration,
    ) -> Self {
        Self {
            binding: Arc::new(binding),
            coming,
            again,
            refused: Vec::new(),
            asking: None,
        }
    }

    /// The next parts that may be pumped; none at all where none were asked for. Cancel safe.
    pub(super) async fn next(&mut self) -> Vec<Part> {
        loop {
            let Some(asking) = &mut self.asking else {
                let parts = self.waiting().await;
                self.asking = Some(ask(self.binding.clone(), parts).boxed());
                continue;
            };
            let answers = asking.await;
            self.asking = None;
            let none_asked = answers.is_empty();
            let (bound, refused): (Vec<_>, Vec<_>) =
                answers.into_iter().partition(|(_, is_bound)| *is_bound);
            self.refused
                .extend(refused.into_iter().map(|(part, _)| part));
            if none_asked || !bound.is_empty() {
                return bound.into_iter().map(|(part, _)| part).collect();
            }
        }
    }

    /// What is to be asked for: what comes, and after a while what was refused.
    async fn waiting(&mut self) -> Vec<Part> {
        tokio::select! {
            biased;
            Some(parts) = self.coming.recv() => parts,
            () = tokio::time::sleep(self.again), if !self.refused.is_empty() => mem::take(&mut self.refused),
            else => std::future::pending().await,
        }
    }
}

async fn ask(binding: Arc<Binding>, parts: Vec<Part>) -> Vec<(Part, bool)> {
    let asked = parts.into_iter().map(|mut part| {
        let binding = binding.clone();
        async move {
            let is_bound = binding.bind(&part.collection).await;
            part.tried = None;
            (part, is_bound)
        }
    });
    stream::iter(asked).buffered(AT_ONCE).collect().await
}

pub(super) struct Binding {
    slots: Collection<Document>,
    /// By whom we pump.
    terms: String,
    reports: Mutex<Reports>,
}

impl Binding {
    pub(super) fn new(slots: Collection<Document>, terms: String) -> Self {
        Self {
            slots,
            terms,
            reports: Mutex::default(),
        }
    }

    /// Whether the collection is bound to our terms, binding it if nobody has. What keeps us from it is reported.
    async fn bind(&self, collection: &str) -> bool {
        let terms = &self.terms;
        match self.bound(collection).await {
            Ok(bound) if bound == *terms => true,
            Ok(bound) => {
                self.report(&format!(
                    "rows of {} are pumped by {bound}, this replica is set to {terms} and stands by; give each replica a \
                     TOA_OUTBOX_SLOT=i/n of its own, with one n for all, or none of them any; to change it for all, stop \
                     them and run: \
                     db.{}.deleteOne({{ _id: {{ collection: {:?} }} }})",
                    collection,
                    self.slots.name(),
                    collection,
                ));
                false
            }
            // Whoever may not write here cannot be told of others either.
            Err(error) if code(&error) == Some(UNAUTHORIZED) => {
                self.report(&format!(
                    "not allowed to write to {}, so nobody notices replicas that are set up in another way: {}",
                    self.slots.namespace(),
                    error.kind,
                ));
                true
            }
            Err(error) => {
                self.report(&format!(
                    "asking {} who pumps: {}",
                    self.slots.namespace(),
                    error.kind
                ));
                false
            }
        }
    }

    async fn bound(&self, collection: &str) -> mongodb::error::Result<String> {
        let id = doc! { "_id": { "collection": collection } };
        let bound = self
            .slots
            .find_one_and_update(id, doc! { "$setOnInsert": { "pumpedBy": &self.terms } })
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
