//! A look at the document every now and then, which says when it is worth asking by a write. It proves nothing: without it
//! everything takes up to a beat longer.
//!
//! Not a change stream, which would tell at once: for that the server reads the whole of its oplog, for each replica and for
//! each of these streams. Beside a busy outbox it examined as much again for that as for the rows. To find one document by its id
//! takes next to nothing.

use std::time::Duration;

use bson::{Document, doc};
use futures::{Stream, stream};
use mongodb::{
    Collection,
    options::{ReadPreference, SelectionCriteria},
};

use super::spelling;
use crate::{report::Reports, slots::protocol::PROTOCOL};

/// Looks within a beat, while all members agree.
const SETTLED: u32 = 4;

/// While they do not: what one does the others wait for.
const UNSETTLED: u32 = 40;

/// Yields with the first look, and whenever the document has changed since the last by more than a beat, which alone is no
/// news.
pub(super) fn follow(
    slots: Collection<Document>,
    group: String,
    beat: Duration,
) -> impl Stream<Item = ()> {
    let hints = Hints {
        slots,
        group,
        beat,
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
    beat: Duration,
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
            // Long enough for a server that is slow; it gives up first.
            let looked = tokio::time::timeout(self.beat * 2, self.look()).await;
            match looked {
                Ok(Ok(seen)) => {
                    let is_settled = seen.as_ref().is_none_or(is_settled);
                    self.wait = self.beat / if is_settled { SETTLED } else { UNSETTLED };
                    if self.last.as_ref() != Some(&seen) {
                        self.last = Some(seen);
                        return;
                    }
                }
                Ok(Err(error)) => self.report(&error.to_string()),
                Err(_) => self.report("no answer in time"),
            }
        }
    }

    async fn look(&self) -> mongodb::error::Result<Option<Document>> {
        self.slots
            .find_one(doc! { "_id": &self.group })
            .projection(doc! { "members.beat": 0 })
            .max_time(self.beat)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await
    }

    /// The server quotes the command, which is another each time.
    fn report(&mut self, reason: &str) {
        self.wait = self.beat;
        let group = &self.group;
        self.reports.first("look", |times| {
            tracing::debug!(
                group,
                reason,
                times,
                "cannot look at the group; its changes are seen with the next beat"
            );
        });
    }
}

/// Whether nothing is to be waited for: every member has seen the epoch, or the group is of another protocol. Only the pace
/// depends on it.
fn is_settled(group: &Document) -> bool {
    if spelling::protocol(group) != Ok(PROTOCOL.into()) {
        return true;
    }
    let epoch = group.get("epoch");
    let members = group.get_array("members").map_or(&[][..], Vec::as_slice);
    members.iter().all(|member| {
        let member = member.as_document();
        member.is_some_and(|member| member.get("seen") == epoch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_settled_once_all_have_seen_its_epoch() {
        let group = |seen: [i64; 2]| {
            let members = seen.map(|number| doc! { "seen": { "number": number } });
            doc! { "protocol": PROTOCOL, "epoch": { "number": 7_i64 }, "members": members.to_vec() }
        };
        assert!(is_settled(&group([7, 7])));
        assert!(!is_settled(&group([7, 6])));
        let mut created = group([7, 7]);
        created.insert("members", vec![doc! { "id": "without seen" }]);
        assert!(!is_settled(&created));
        created.insert("protocol", PROTOCOL + 1);
        assert!(is_settled(&created), "of another protocol");
    }
}
