//! What is written of rows that an ordered sink is owed no more.

use std::time::Duration;

use super::{Ended, Ordered, piece::Piece};
use crate::{
    clock::Term,
    error::{Error, Result},
    metrics,
    row::RowId,
    store::{
        Marking,
        cursors::{Cursor, Place},
        deliveries::Failure,
        marking::{self, Parts},
    },
};

impl Ordered {
    /// Notes what is given up, then takes the sink's routes off these rows.
    pub(super) async fn mark(&mut self, settled: &[Piece], term: &Term) -> Result<(), Ended> {
        let dead = self.note(settled, term).await?;
        let ids: Vec<RowId> = settled.iter().map(|piece| piece.id.clone()).collect();
        let mut parts = Parts::of(&ids);
        while let Some(part) = parts.next() {
            let of = &*self;
            let marked = repeated(term, || of.take_off(part)).await;
            match marked {
                Err(Ended::Failed(refusal)) if refusal.is_refused_write() => {
                    if let Some(row) = parts.refused(part) {
                        tracing::error!(%row, %refusal, "delivered, and cannot be marked: delete the row");
                    }
                }
                marked => marked?,
            }
        }
        self.meters.marked(ids.len());
        if !dead.is_empty()
            && let Err(error) = self.deliveries.buried(&dead).await
        {
            tracing::warn!(%error, "finished later");
        }
        Ok(())
    }

    async fn take_off(&self, rows: &[RowId]) -> Result<()> {
        let others = self.others.names();
        let mut all = self.routes.names(self.routes.whole());
        all.extend(others.iter().map(|route| &**route));
        let marking = Marking {
            done: &self.routes.names(self.own),
            later: &[],
            all: &all,
        };
        self.store.mark(rows, &marking).await.map(drop)
    }

    /// Keeps what is given up before its rows are marked; which routes of which rows those are.
    async fn note(
        &mut self,
        settled: &[Piece],
        term: &Term,
    ) -> Result<Vec<(RowId, String)>, Ended> {
        let mut failures = Vec::new();
        for piece in settled {
            for (route, reason) in &piece.dead {
                if let Some(route) = self.routes.all.get(*route) {
                    let (row, reason) = (&piece.id, reason.clone());
                    let next = self.policy.never();
                    let failure = Failure::new(row, &route.name, &route.sink, reason, next);
                    failures.push((failure.after(piece.attempts), piece.attempts));
                }
            }
        }
        let (all, attempts): (Vec<Failure>, Vec<u32>) = failures.into_iter().unzip();
        let (deliveries, noted) = (&self.deliveries, &all);
        repeated(term, || deliveries.failed(noted)).await?;
        for (failure, attempts) in all.iter().zip(attempts) {
            failure.say(attempts);
            self.meters.died();
        }
        Ok(all.iter().map(Failure::key).collect())
    }

    /// Moves the cursor to this place.
    pub(super) async fn save(
        &self,
        cursor: &mut Cursor,
        place: &Place,
        term: &Term,
    ) -> Result<(), Ended> {
        let mut waits = marking::waits();
        loop {
            match self.cursors.save(cursor, place).await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(Ended::Overtaken),
                Err(error) => go_on(error, term, waits.next()).await?,
            }
        }
    }

    /// Keeps how often what is next has failed alone. Not at any cost: with the next failure it is written again.
    pub(super) async fn keep(
        &self,
        cursor: &mut Cursor,
        row: &RowId,
        times: u32,
    ) -> Result<(), Ended> {
        match self.cursors.failed(cursor, row, times).await {
            Ok(true) => {}
            Ok(false) => return Err(Ended::Overtaken),
            Err(error) => {
                tracing::warn!(%error, %row, times, "another replica will not know how often the row has failed");
            }
        }
        Ok(())
    }

    /// It is at a row that was made so many milliseconds ago; none: it has all.
    pub(super) fn behind(&self, age: Option<i64>) {
        let age = age.and_then(|age| u64::try_from(age).ok()).unwrap_or(0);
        let (component, sink) = (self.routes.component(), self.batched.name());
        metrics::behind(component, sink, Duration::from_millis(age));
    }

    /// Tells that what is next waits for room.
    pub(super) fn held_back(&mut self) {
        let sink = self.batched.name();
        self.reports.first("held back", |times| {
            tracing::info!(
                sink,
                times,
                "an ordered sink waits for room, its safety lets no more of a backlog go in a minute; where more is written than that it never \
                 catches up, so give it other figures then"
            );
        });
    }

    /// Tells that something was not taken.
    pub(super) fn say(&mut self, reason: &str, attempts: u32, row: Option<String>, wait: Duration) {
        let row = row.unwrap_or_default();
        let sink = self.batched.name();
        self.reports.first(&format!("{row} {attempts}: {reason}"), |_| {
            tracing::warn!(
                sink, row, attempts, reason, ?wait,
                "an ordered sink did not take what is next, and those behind it wait; it stays in the outbox"
            );
        });
    }
}

/// Repeats a write for as long as the fault may pass, and the right lasts.
async fn repeated<F>(term: &Term, write: impl Fn() -> F) -> Result<(), Ended>
where
    F: Future<Output = Result<()>>,
{
    let mut waits = marking::waits();
    loop {
        match write().await {
            Ok(()) => return Ok(()),
            Err(error) => go_on(error, term, waits.next()).await?,
        }
    }
}

async fn go_on(error: Error, term: &Term, wait: Option<Duration>) -> Result<(), Ended> {
    if !error.again() || !term.holds() {
        return Err(error.into());
    }
    tracing::warn!(%error, "what an ordered sink was given could not be written down, which is repeated");
    tokio::time::sleep(wait.unwrap_or_default()).await;
    Ok(())
}
