//! A look at the document every now and then, which says when it is worth asking by a write. It proves nothing: without it
//! everything takes up to a beat longer.
//!
//! Not a change stream, which would tell at once: for that the server reads the whole of its oplog, for each replica and for
//! each of these streams. Beside a busy outbox that took more of it than inserting the rows. To find one document by its id
//! takes next to nothing.

use std::time::Duration;

use bson::{Document, doc};
use futures::{Stream, stream};
use mongodb::{
    Collection,
    options::{ReadPreference, SelectionCriteria},
};

use crate::report::Reports;

/// From one look to the next, while all members agree.
const SETTLED: Duration = Duration::from_millis(250);

/// While they do not: what one does the others wait for.
const UNSETTLED: Duration = Duration::from_millis(50);

/// From a look that failed to the next, and the longest that one may take.
const PACE: Duration = Duration::from_secs(1);

/// Yields with the first look, and whenever the document has changed since the last by more than a beat, which alone is no
/// news.
pub(super) fn follow(slots: Collection<Document>, group: String) -> impl Stream<Item = ()> {
    let hints = Hints {
        slots,
        group,
        last: None,
        wait: Duration::ZERO,
        reports: Reports::default(),
    };
    stream::unfold(hints, |mut hints| async move {
        hints.next().await;
        Some(((), hints))
    })
}

struct Hints {
    slots: Collection<Document>,
    group: String,
    /// What was seen last; the inner one is none while there is no such document.
    last: Option<Option<Document>>,
    /// Until the next look.
    wait: Duration,
    reports: Reports,
}

impl Hints {
    async fn next(&mut self) {
        loop {
            tokio::time::sleep(self.wait).await;
            match self.look().await {
                Ok(seen) => {
                    let is_settled = seen.as_ref().is_some_and(is_settled);
                    self.wait = if is_settled { SETTLED } else { UNSETTLED };
                    if self.last.as_ref() != Some(&seen) {
                        self.last = Some(seen);
                        return;
                    }
                }
                Err(reason) => {
                    self.wait = PACE;
                    self.report(&reason);
                }
            }
        }
    }

    async fn look(&self) -> Result<Option<Document>, String> {
        let looked = self
            .slots
            .find_one(doc! { "_id": &self.group })
            .projection(doc! { "members.beat": 0 })
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        match tokio::time::timeout(PACE, looked.into_future()).await {
            Ok(looked) => looked.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", PACE.as_secs())),
        }
    }

    fn report(&mut self, reason: &str) {
        let group = &self.group;
        self.reports.first(reason, |times| {
            tracing::debug!(
                group,
                reason,
                times,
                "cannot look at the group; its changes are seen with the next beat"
            );
        });
    }
}

/// Whether every member has seen the epoch. Judged by the text alone: only the pace depends on it.
fn is_settled(group: &Document) -> bool {
    let epoch = group.get("epoch");
    let members = group.get_array("members").map_or(&[][..], Vec::as_slice);
    members.iter().all(|member| {
        let member = member.as_document();
        member.is_some_and(|member| member.get("seen") == epoch)
    })
}
