//! The change stream that says when it is worth looking. It proves nothing: without it everything takes up to a beat
//! longer.

use std::time::Duration;

use bson::{Document, doc};
use futures::{Stream, StreamExt, stream};
use mongodb::{Collection, change_stream::ChangeStream};

use crate::{
    error::{UNAUTHORIZED, code},
    report::Reports,
};

/// The least time between two openings.
const PACE: Duration = Duration::from_secs(1);

/// Where the user may not open it: rights come by hand.
const REFUSED: Duration = Duration::from_secs(60);

/// Yields when the epoch or a `seen` of the group changed, when the document came or went, and each time the stream was
/// opened: what happened before that is not in it.
pub(super) fn follow(slots: Collection<Document>, group: String) -> impl Stream<Item = ()> {
    let hints = Hints {
        slots,
        group,
        stream: None,
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
    stream: Option<ChangeStream<Document>>,
    reports: Reports,
}

impl Hints {
    async fn next(&mut self) {
        if let Some(stream) = &mut self.stream {
            match stream.next().await {
                Some(Ok(_)) => return,
                Some(Err(error)) => self.report(&error),
                // Nobody tells why: the collection was dropped, for one.
                None => {}
            }
            self.stream = None;
            tokio::time::sleep(PACE).await;
        }
        while self.stream.is_none() {
            match self.slots.watch().pipeline(news(&self.group)).await {
                Ok(stream) => self.stream = Some(stream.with_type()),
                Err(error) if code(&error) == Some(UNAUTHORIZED) => {
                    self.report_refusal(&error);
                    tokio::time::sleep(REFUSED).await;
                }
                Err(error) => {
                    self.report(&error);
                    tokio::time::sleep(PACE).await;
                }
            }
        }
    }

    /// The server quotes the command, which is another each time.
    fn report_refusal(&mut self, error: &mongodb::error::Error) {
        let group = &self.group;
        self.reports.first("not authorized", |times| {
            tracing::warn!(
                group,
                %error,
                times,
                "not allowed to follow outbox_slots, so changes of the group are seen a beat later; grant the user \
                 changeStream and find on it"
            );
        });
    }

    fn report(&mut self, error: &mongodb::error::Error) {
        let group = &self.group;
        self.reports.first(&error.to_string(), |times| {
            tracing::debug!(group, %error, times, "the change stream of the group ended; changes are seen a beat later");
        });
    }
}

/// Whatever happens to the document but a beat, which alone is no news. Judged by the server: a hundred members beat
/// dozens of times a second.
fn news(group: &str) -> Vec<Document> {
    let fields = doc! { "$objectToArray": { "$ifNull": ["$updateDescription.updatedFields", {}] } };
    let is_beat = doc! { "$regexMatch": { "input": "$$this.k", "regex": r"^members\.\d+\.beat$" } };
    let others = doc! { "$filter": { "input": fields, "cond": { "$not": [is_beat] } } };
    let is_news = doc! { "$or": [
        { "$ne": ["$operationType", "update"] },
        { "$gt": [{ "$size": others }, 0] },
    ] };
    vec![
        doc! { "$match": { "documentKey._id": group, "$expr": is_news } },
        doc! { "$project": { "_id": 1 } },
    ]
}
