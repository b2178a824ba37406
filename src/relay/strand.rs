//! What a line has for a sink to which the order of the commits is kept, instead of a branch: nothing is held, claimed or read by
//! lane for it.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use tokio_util::sync::CancellationToken;

use super::{
    ordered::{Flight, Ordered, Owner},
    owed::Owed,
    retries::{LOOK, Retries},
};
use crate::{
    report::Reports,
    routes::{RouteSet, Routes},
    sinks::{Batched, Order, Outlet},
    slots::Ownership,
    store::{Store, cursors::Cursors, deliveries::Deliveries},
};

pub(crate) struct Strand {
    pub(super) flight: Flight,
    pub(super) sink: Batched,
    routes: Arc<Routes>,
    /// Those of them that go to its sink.
    own: RouteSet,
}

/// What a strand is made of.
pub(super) struct Parts<'a> {
    pub(super) store: &'a Store,
    pub(super) routes: &'a Arc<Routes>,
    /// What is owned, for whichever sink.
    pub(super) lanes: &'a Ownership,
    pub(super) sink: &'a Batched,
    pub(super) order: Order,
    /// What rows are owed to besides.
    pub(super) others: &'a Owed,
}

/// The strand and its loops, each of which ends by itself some time after `stop`.
pub(super) fn strand(
    parts: &Parts<'_>,
    stop: &CancellationToken,
) -> (Strand, Vec<BoxFuture<'static, ()>>) {
    let Parts { sink, routes, .. } = *parts;
    let own = routes.to(sink.name());
    let owner = Owner::new(parts.lanes, routes, sink.name(), parts.others);
    let (flight, meters) = (Flight::new(), routes.meters(sink.name()));
    let policy = sink.terms().policy.clone();
    let deliveries = Deliveries::new(parts.store);
    let ordered = Ordered {
        store: parts.store.clone(),
        deliveries: deliveries.clone(),
        cursors: Cursors::new(parts.store, sink.name()),
        routes: routes.clone(),
        own,
        order: parts.order,
        policy: policy.clone(),
        batched: sink.clone(),
        owner: owner.clone(),
        others: parts.others.clone(),
        flight: flight.clone(),
        meters: meters.clone(),
        reports: Reports::default(),
    };
    // Whatever its policy is: an earlier version's may have been another.
    let retries = Retries {
        store: parts.store.clone(),
        deliveries,
        routes: routes.clone(),
        own,
        owed: parts.others.clone(),
        sink: Outlet::Batched(sink.clone()),
        policy,
        meters,
        look: LOOK,
        reports: Reports::default(),
        owner: Some(owner),
    };
    let loops = vec![
        ordered.run(stop.clone()).boxed(),
        retries.run(stop.clone()).boxed(),
    ];
    let strand = Strand {
        flight,
        sink: sink.clone(),
        routes: routes.clone(),
        own,
    };
    (strand, loops)
}

impl Strand {
    /// The names of its routes.
    pub(super) fn names(&self) -> Vec<&str> {
        self.routes.names(self.own)
    }
}
