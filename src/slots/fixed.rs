//! The slot the operator named, for as long as the process runs.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Lanes, Order, binding::Binding};
use crate::{clock::Term, lane::Slot, routes::RouteSet};

pub(super) struct Fixed {
    pub(super) slot: Slot,
    pub(super) binding: Binding,
    pub(super) routes: RouteSet,
    /// How long after a refusal to look again.
    pub(super) again: Duration,
    pub(super) lanes: watch::Sender<Lanes>,
}

impl Fixed {
    /// Tries once to have the slot; whether it is had.
    pub(super) async fn bind(&self) -> bool {
        if !self.binding.bind(&self.terms()).await {
            return false;
        }
        let owned = |lane| match self.slot.owns(lane) {
            true => self.routes,
            false => RouteSet::default(),
        };
        self.lanes.send_replace(Lanes::of(owned, Term::Endless));
        true
    }

    /// Holds the slot, standing by before for as long as others have the collection. Nobody orders anything; that
    /// nobody will is known once `_orders` is dropped.
    pub(super) async fn keep(
        self,
        mut bound: bool,
        _orders: mpsc::UnboundedSender<Order>,
        leave: CancellationToken,
    ) {
        while !bound {
            tokio::select! {
                () = leave.cancelled() => return,
                () = tokio::time::sleep(self.again) => {}
            }
            bound = self.bind().await;
        }
        leave.cancelled().await;
    }

    /// Slots of one count share the lanes among them, and no others do.
    fn terms(&self) -> String {
        format!("static slots of {}", self.slot.count())
    }
}
