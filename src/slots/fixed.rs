//! The slot the operator named, for as long as the process runs.

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Lanes, Order, binding::Bindings};
use crate::{clock::Term, lane::Slot, routes::RouteSet};

/// Holds the slot in each collection that has no others, standing by in those that have. Nobody orders anything; that
/// nobody will is known once `_orders` is dropped.
pub(super) async fn keep(
    slot: Slot,
    mut bindings: Bindings,
    assigned: watch::Sender<u64>,
    _orders: mpsc::UnboundedSender<Order>,
    leave: CancellationToken,
) {
    // Kept, or nobody would have the lanes any more.
    let mut held = Vec::new();
    loop {
        let bound = tokio::select! {
            () = leave.cancelled() => return,
            bound = bindings.next() => bound,
        };
        for part in bound {
            let owned = |lane| match slot.owns(lane) {
                true => part.whole,
                false => RouteSet::default(),
            };
            part.lanes.send_replace(Lanes::of(owned, Term::Endless));
            held.push(part);
        }
        assigned.send_modify(|times| *times += 1);
    }
}
