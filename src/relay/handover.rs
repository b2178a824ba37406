//! Lets go of what was taken up under an earlier assignment, when the group asks for it.
//!
//! By then the right to it has ended, so nothing is started any more; the pump finds out by itself. What is in flight
//! is waited for, with its marks, and if that takes too long the connection is cut: it must not leave later, when the
//! lanes are another's. A row of this process's own needs none of that, `pending` keeps it from others; but what is
//! known not to have left is made due, so that they need not wait.

use std::{collections::HashSet, time::Duration};

use futures::future::join_all;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::Swept,
    line::{Line, Lines},
};
use crate::{row::RowId, slots::Order};

/// How long what is in flight and its marks are waited for.
const DRAIN: Duration = Duration::from_secs(10);

/// How long the last steps may take: what a cut resolves, and one update.
const REST: Duration = Duration::from_secs(2);

pub(crate) struct Handover {
    pub(crate) lines: Lines,
    pub(crate) orders: mpsc::UnboundedReceiver<Order>,
    /// Tells the marker that someone waits.
    pub(crate) hurry: watch::Sender<bool>,
    /// Cancelled when nothing sends or marks any more, and waiting for it is in vain.
    pub(crate) over: CancellationToken,
}

impl Handover {
    /// Ends when nobody can order anything any more.
    pub(crate) async fn run(mut self) {
        while let Some(order) = self.orders.recv().await {
            self.once(order).await;
        }
    }

    async fn once(&mut self, order: Order) {
        let order = match order.at_once {
            true => order,
            false => self.drain(order).await,
        };
        // Whoever was too long without a word of the group does not know what became of its own rows either.
        let in_flight = self.lines.cut(|ledger| match order.at_once {
            true => ledger.left().in_flight,
            false => ledger.swept().in_flight,
        });
        if in_flight > 0 {
            tracing::warn!(
                rows = in_flight,
                "lanes are another's now and rows still in flight: the connection to the broker, or what is on its way to \
                 another sink, is cut"
            );
            let resolved = self.lines.until_swept(|swept| swept.in_flight == 0);
            // Cut, none of them can leave any more, resolved or not.
            let _ = tokio::time::timeout(REST, resolved).await;
        }
        if !order.at_once {
            join_all(self.lines.all().iter().map(|line| release(line))).await;
        }
        order.done();
    }

    /// Waits for what is in flight and for its marks, unless that takes too long or is called off.
    async fn drain(&mut self, order: Order) -> Order {
        self.hurry.send_replace(true);
        let settled = self.lines.until_swept(|swept| swept == Swept::default());
        let order = tokio::select! {
            biased;
            Some(cut) = self.orders.recv() => cut,
            () = settled => order,
            () = self.over.cancelled() => order,
            () = tokio::time::sleep(DRAIN) => order,
        };
        self.hurry.send_replace(false);
        order
    }
}

/// Leaves what could not be sent to whoever pumps its lanes next, now rather than when `pending` says. Where another sink's
/// share of a row is still on its way, `pending` keeps that from the next owner, and stays.
async fn release(line: &Line) {
    let unsent: HashSet<RowId> = line
        .ledgers()
        .flat_map(|ledger| ledger.forget_unsent())
        .collect();
    let is_free = |id: &RowId| !line.ledgers().any(|ledger| ledger.is_at(id));
    let unsent: Vec<RowId> = unsent.into_iter().filter(is_free).collect();
    if unsent.is_empty() {
        return;
    }
    match tokio::time::timeout(REST, line.store.release(&unsent)).await {
        Ok(Ok(())) => tracing::debug!(rows = unsent.len(), "left to the next owner"),
        // Nothing but time is lost.
        Ok(Err(error)) => {
            tracing::warn!(%error, rows = unsent.len(), "the next owner has them when they are due")
        }
        Err(_) => tracing::warn!(
            rows = unsent.len(),
            "no answer; the next owner has them when they are due"
        ),
    }
}
