//! Takes in what was read, as much as a batch needs.

use std::time::Duration;

use bson::Bson;
use tokio::time::{Instant, timeout_at};

use super::{Ended, delivery::Delivery, source::Read};
use crate::store::cursors::Place;

/// How often the cursor is saved while nothing comes.
const SILENCE: Duration = Duration::from_secs(60);

/// How often it is looked whether the right has ended, which nobody tells where the clock ends it.
const LOOK: Duration = Duration::from_millis(250);

impl Delivery<'_> {
    /// Waits for rows, if there are none; whether there are.
    pub(super) async fn fill(&mut self) -> Result<bool, Ended> {
        while self.queue.is_empty() {
            let read = self.wait_for_row(None).await?;
            match read {
                Some(Read::Row(piece)) => self.queue.push_back(piece),
                Some(Read::Nothing(token)) => self.pass(token).await?,
                None => return Ok(false),
            }
        }
        self.more();
        self.gather().await?;
        Ok(true)
    }

    /// What is read by now, as much as a batch takes and one more.
    pub(super) fn more(&mut self) {
        while self.queue.len() <= self.of.order.batch {
            let Ok(read) = self.reads.try_recv() else {
                return;
            };
            self.add(read);
        }
    }

    fn add(&mut self, read: Read) {
        match (read, self.queue.back_mut()) {
            (Read::Row(piece), _) => self.queue.push_back(piece),
            // With the last of them it is passed.
            (Read::Nothing(token), Some(last)) => {
                let row = Some(last.id.clone());
                last.place = Place::Token(row, token);
            }
            (Read::Nothing(token), None) => self.passed = Some(token),
        }
    }

    /// Waits for a batch to become full, if there is a time from one to the next.
    async fn gather(&mut self) -> Result<(), Ended> {
        let next = self.began.map(|began| began + self.of.order.every);
        let Some(next) = next.filter(|_| !self.of.order.every.is_zero()) else {
            return Ok(());
        };
        while self.queue.len() < self.of.order.batch && Instant::now() < next {
            match self.wait_for_row(Some(next)).await? {
                Some(read) => self.add(read),
                None => break,
            }
        }
        Ok(())
    }

    /// The next that is read; none at the end of all, or when the time has come.
    async fn wait_for_row(&mut self, until: Option<Instant>) -> Result<Option<Read>, Ended> {
        loop {
            let look = Instant::now() + LOOK;
            let next = until.map_or(look, |until| until.min(look));
            tokio::select! {
                () = self.stop.cancelled() => return Err(Ended::Over),
                read = timeout_at(next, self.reads.recv()) => match read {
                    Ok(read) => return Ok(read),
                    Err(_) if until == Some(next) => return Ok(None),
                    Err(_) if !self.of.is_owner(self.term) => return Err(Ended::Over),
                    Err(_) => {}
                }
            }
        }
    }

    /// Nothing came up to this place: saved now and then, so that a silent stream keeps its history.
    async fn pass(&mut self, token: Bson) -> Result<(), Ended> {
        self.passed = Some(token);
        self.of.behind(None);
        if self.saved.elapsed() < SILENCE {
            return Ok(());
        }
        let Some(token) = self.passed.take() else {
            return Ok(());
        };
        let _flying = self.of.flight.begin();
        self.save(&Place::Token(None, token)).await
    }
}
