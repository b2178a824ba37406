//! Who delivers to an ordered sink: one replica, by the right to one lane.
//!
//! Which lane that is follows from the sink's name, so that sinks are spread over the replicas; the right is that to a route of
//! the sink, so that whoever does not have the sink is never asked. It ends as every right to a lane does.
//!
//! A replica that knows fewer of the sink's labels than another that lives stands by: what it would move the cursor past, the
//! other label would miss. So while versions with different labels run side by side, the sink may have no owner; it is owed
//! what comes meanwhile.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    clock::Term,
    lane::LANES,
    relay::owed::Owed,
    routes::{RouteSet, Routes},
    slots::Ownership,
};

#[derive(Clone)]
pub(crate) struct Owner {
    lanes: Ownership,
    lane: u8,
    /// Routes that other live replicas serve and this one does not know.
    strange: watch::Receiver<Arc<[Arc<str>]>>,
    /// What its routes begin with.
    prefix: String,
}

impl Owner {
    pub(crate) fn new(lanes: &Ownership, routes: &Routes, sink: &str, owed: &Owed) -> Self {
        let own = routes.all.iter().enumerate();
        let own = own.filter(|(_, route)| &*route.sink == sink);
        // The same one for whoever has the same labels, in whatever order.
        let first = own.min_by_key(|(_, route)| &route.name);
        let mut of = RouteSet::default();
        if let Some((index, _)) = first {
            of.insert(index);
        }
        Self {
            lanes: lanes.only(of),
            lane: lane(sink),
            strange: owed.live.clone(),
            prefix: format!("{sink}/"),
        }
    }

    /// The right to deliver, if this replica has it.
    pub(crate) fn right(&self) -> Option<Term> {
        let strange = self.strange.borrow();
        let is_known = !strange.iter().any(|route| route.starts_with(&self.prefix));
        let grant = self.lanes.lanes().grant(self.lane).filter(|_| is_known);
        grant.map(|grant| grant.term)
    }

    /// Resolves when it may have changed since the last call. Cancel safe.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = self.lanes.changed() => {}
            Ok(()) = self.strange.changed() => {}
        }
    }
}

/// The same in every replica, whatever it was built by.
fn lane(sink: &str) -> u8 {
    let hash = sink.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // Below 128.
    (hash % u32::from(LANES)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_are_spread_over_the_lanes() {
        let names = (0..64).map(|number| format!("sink-{number}"));
        let mut lanes: Vec<u8> = names.map(|name| lane(&name)).collect();
        assert_eq!(lane("warehouse"), lane("warehouse"));
        lanes.sort_unstable();
        lanes.dedup();
        assert!(lanes.len() > 32 && lanes.iter().all(|&lane| lane < LANES));
    }
}
