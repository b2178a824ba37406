//! The marks of rows that have left, made as a relay makes them.

use std::collections::HashMap;

use super::sending::{Sending, Sent};
use crate::{
    Error,
    routes::RouteSet,
    row::RowId,
    store::{
        Marking,
        marking::{self, Parts},
    },
};

/// The most rows of one marking.
const MOST: usize = 1000;
/// How often a marking is repeated that may pass: about half a minute.
const REPETITIONS: usize = 10;

/// Rows that have left and are to be marked, those together of which the same is done.
#[derive(Default)]
pub(super) struct Marks {
    alike: HashMap<RouteSet, Vec<RowId>>,
}

/// What became of marks.
#[derive(Default)]
pub(super) struct Marked {
    pub(super) rows: u64,
    /// Rows that have left and are not marked, so that they leave once more: how many, and why.
    pub(super) problems: Vec<(u64, String)>,
}

impl Marks {
    /// Adds what is to be marked of a row, if anything is.
    pub(super) fn add(&mut self, sent: Sent) {
        if let Some((id, done)) = sent.mark {
            self.alike.entry(done).or_default().push(id);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.alike.values().map(Vec::len).sum::<usize>() >= MOST
    }

    pub(super) async fn flush(&mut self, sending: &Sending<'_>) -> Marked {
        let mut marked = Marked::default();
        for (done, ids) in self.alike.drain() {
            marked.mark(sending, done, &ids).await;
        }
        marked
    }
}

impl Marked {
    async fn mark(&mut self, sending: &Sending<'_>, done: RouteSet, ids: &[RowId]) {
        let mut parts = Parts::of(ids);
        while let Some(part) = parts.next() {
            match acknowledged(sending, done, part).await {
                Ok(rows) => self.rows += rows,
                Err(refusal) if refusal.is_refused_write() => {
                    if let Some(row) = parts.refused(part) {
                        let problem = format!(
                            "row {row} was sent and cannot be marked, delete it: {refusal}"
                        );
                        self.problems.push((1, problem));
                    }
                }
                // What has been repeated for so long would fail for the other parts too.
                Err(error) => {
                    let rows = part.len() + parts.left();
                    let problem = format!(
                        "{rows} rows were sent and are not marked, so they are sent again: {error}"
                    );
                    self.problems.push((rows as u64, problem));
                    return;
                }
            }
        }
    }
}

/// Repeats the update for a while if the fault is not that of the rows; how many rows it changed.
async fn acknowledged(sending: &Sending<'_>, done: RouteSet, rows: &[RowId]) -> Result<u64, Error> {
    let routes = &sending.aim.routes;
    let mut all = routes.names(routes.whole());
    all.extend(sending.others.iter().map(String::as_str));
    let marking = Marking {
        done: &routes.names(done),
        later: &[],
        all: &all,
    };
    let mut waits = marking::waits().take(REPETITIONS);
    loop {
        let error = match sending.aim.store.mark(rows, &marking).await {
            Err(error) if !error.is_refused_write() => error,
            settled => return settled,
        };
        match waits.next() {
            Some(wait) => tokio::time::sleep(wait).await,
            None => return Err(error),
        }
    }
}
