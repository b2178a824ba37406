//! Who may pump a collection at all: one group, or static slots of one count. Whoever came first.

use std::{collections::BTreeSet, future::IntoFuture, mem, sync::Arc, sync::Mutex, time::Duration};

use bson::{Document, doc};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use mongodb::{
    Collection,
    options::{ReturnDocument, WriteConcern},
};
use tokio::{sync::mpsc, time::Instant};

use super::{Census, Part};
use crate::{
    clock::at,
    error::{UNAUTHORIZED, code},
    report::Reports,
};

/// How long one of them may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many collections are asked for at once.
const AT_ONCE: usize = 16;

/// Parts that come, and wait for the right to be pumped from here.
pub(super) struct Bindings {
    binding: Arc<Binding>,
    coming: mpsc::UnboundedReceiver<Vec<Part>>,
    /// How long after a refusal to look again.
    again: Duration,
    refused: Vec<Part>,
    /// When to ask for those again.
    retry: Option<Instant>,
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
            retry: None,
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
            if !refused.is_empty() {
                self.refused
                    .extend(refused.into_iter().map(|(part, _)| part));
                self.retry.get_or_insert(Instant::now() + self.again);
            }
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
            () = at(self.retry) => {
                self.retry = None;
                mem::take(&mut self.refused)
            }
            else => std::future::pending().await,
        }
    }
}

async fn ask(binding: Arc<Binding>, parts: Vec<Part>) -> Vec<(Part, bool)> {
    let asked = parts.into_iter().map(|mut part| {
        let binding = binding.clone();
        async move {
            let is_bound = binding.bind(&part.collection).await;
            if !is_bound && let Some(served) = binding.served(&part.collection).await {
                part.owe(&served);
            }
            part.waits = None;
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
                     TOA_OUTBOX_SLOT=i/n of its own, with one n for all, or none of them any; {}",
                    collection,
                    unbind(self.slots.name(), collection),
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
        let asked = self
            .slots
            .find_one_and_update(id, doc! { "$setOnInsert": { "pumpedBy": &self.terms } })
            .upsert(true)
            .return_document(ReturnDocument::After)
            .write_concern(WriteConcern::majority())
            .into_future();
        // The driver has no limit of its own, and all that come later wait for this answer.
        let bound = tokio::time::timeout(PATIENCE, asked).await;
        let bound = bound
            .unwrap_or_else(|_| Err(mongodb::error::Error::custom("no answer within 10 s")))?;
        let by = bound
            .as_ref()
            .and_then(|bound| bound.get_str("pumpedBy").ok());
        Ok(by.unwrap_or("someone unknown").to_owned())
    }

    /// The routes of those who have the collection: what is written and marked here is owed to them too. None if that
    /// cannot be known.
    async fn served(&self, collection: &str) -> Option<BTreeSet<String>> {
        let slots = self.slots.namespace();
        let database = self.slots.client().database(&slots.db);
        let asked = tokio::time::timeout(PATIENCE, Census::glance(&database)).await;
        let group = asked.ok()?.ok()?.group_of(collection)?;
        let routes = group.members.into_iter().flat_map(|member| member.routes);
        Some(routes.collect())
    }

    fn report(&self, problem: &str) {
        let mut reports = self
            .reports
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        reports.first(problem, |times| tracing::warn!(times, "{problem}"));
    }
}

/// How an administrator undoes the decision.
pub(crate) fn unbind(slots: &str, collection: &str) -> String {
    format!(
        "to change it for all, stop them and run: db.{slots}.deleteOne({{ _id: {{ collection: {collection:?} }} }})"
    )
}

/// The collection and whom it is bound to, if that is what a document says.
pub(super) fn read(document: &Document) -> Option<(String, String)> {
    let collection = document
        .get_document("_id")
        .ok()?
        .get_str("collection")
        .ok()?;
    let by = document.get_str("pumpedBy").unwrap_or("someone unknown");
    Some((collection.to_owned(), by.to_owned()))
}
