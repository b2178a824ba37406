//! Where the rows of an ordered sink come from: what it is owed by id, or the change stream.

use std::time::Duration;

use bson::{Bson, RawDocument, Timestamp};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Ended,
    piece::{Piece, Renderer},
};
use crate::{
    clock::{Moment, Term},
    report::Reports,
    row::{Row, now},
    store::{
        Store,
        cursors::{Cursor, Cursors, Phase, Place},
        feed::{self, Feed},
        server::Time,
    },
};

/// How long after its commit a row is new. As long as the window of what is not: who takes over from an owner that died gives what came
/// meanwhile without a limit, and it is no more than was written in a minute.
const NEW: Duration = Duration::from_secs(60);

/// What was read.
pub(super) enum Read {
    Row(Piece),
    /// Nothing, up to this place in the stream.
    Nothing(Bson),
}

/// Reads ahead by as much as the channel holds.
pub(super) struct Source {
    pub(super) store: Store,
    pub(super) cursors: Cursors,
    pub(super) renderer: Renderer,
    pub(super) term: Term,
    pub(super) reports: Reports,
}

impl Source {
    /// Until all is read, of a stream without end, or nobody wants more.
    pub(super) async fn run(
        mut self,
        cursor: Cursor,
        reads: mpsc::Sender<Read>,
    ) -> Result<(), Ended> {
        match cursor.phase {
            Phase::Stream => self.stream(&cursor, &reads).await,
            Phase::Pin | Phase::Backlog | Phase::Skip => self.backlog(&cursor, &reads).await,
        }
    }

    async fn backlog(&mut self, cursor: &Cursor, reads: &mpsc::Sender<Read>) -> Result<(), Ended> {
        let routes = self.renderer.routes.clone();
        let routes = routes.names(self.renderer.own);
        let batch = u32::try_from(self.renderer.order.batch).unwrap_or(u32::MAX);
        let mut rows = self.cursors.backlog(cursor, &routes, batch).await?;
        while self.cursors.advance(&mut rows).await? {
            let Some(row) = self.row(rows.current()) else {
                continue;
            };
            let place = Place::Row(row.id.clone());
            let is_skipped = self.renderer.skips(&row);
            let piece = match (cursor.phase, is_skipped) {
                (_, true) => Piece::empty(&row, place),
                // The stream brings it.
                (Phase::Skip, false) => continue,
                (_, false) => self.renderer.piece(&row, place, &self.term),
            };
            if reads.send(Read::Row(piece)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn stream(&mut self, cursor: &Cursor, reads: &mpsc::Sender<Read>) -> Result<(), Ended> {
        let after = cursor.token.as_ref().map(feed::place).transpose();
        let after = after.map_err(Ended::Lost)?;
        let time = feed::time_of(&self.store).await?;
        let mut feed = Feed::of_one_from(&self.store, cursor.start, after)
            .await
            .map_err(Ended::of)?;
        loop {
            let inserted = match feed.next().await {
                Ok(inserted) => inserted,
                // The collection was dropped, or renamed.
                Err(error) if feed.is_over() => return Err(Ended::Lost(error.to_string())),
                Err(error) => return Err(Ended::of(error)),
            };
            let read = match inserted {
                Some(inserted) => {
                    let (Some(row), Some(token)) = (inserted.row(), inserted.token()) else {
                        continue;
                    };
                    let new_until = inserted.at().and_then(|at| new_until(&time, at));
                    self.inserted(row, token, new_until)
                }
                None => match feed.token() {
                    Some(token) => Read::Nothing(token),
                    None => continue,
                },
            };
            if reads.send(read).await.is_err() {
                return Ok(());
            }
        }
    }

    fn inserted(&mut self, row: &RawDocument, token: Bson, new_until: Option<Instant>) -> Read {
        match self.row(row) {
            Some(row) => {
                let place = Place::Token(Some(row.id.clone()), token);
                let piece = self.renderer.piece(&row, place, &self.term);
                Read::Row(Piece { new_until, ..piece })
            }
            None => Read::Nothing(token),
        }
    }

    /// None that nobody can publish.
    fn row(&mut self, raw: &RawDocument) -> Option<Row> {
        match self.store.decode(raw) {
            Ok(row) => Some(row),
            Err(malformed) => {
                self.renderer.meters.malformed();
                let collection = self.store.name();
                self.reports.first(&malformed.id, |seen| {
                    tracing::error!(
                        collection,
                        seen,
                        "{malformed}; mend or delete it, it delays no other"
                    );
                });
                None
            }
        }
    }
}

/// Until when a row that was committed then is new, if it is.
fn new_until(time: &Time, committed: Timestamp) -> Option<Instant> {
    let ago = time.since(committed, Moment::now());
    let left = NEW.checked_sub(ago).filter(|left| !left.is_zero());
    left.map(|left| Instant::now() + left)
}

/// How long ago it was made, in milliseconds.
pub(super) fn age(made: Option<i64>) -> Option<i64> {
    made.map(|made| now() - made)
}
