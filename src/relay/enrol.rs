//! Registers what a replica serves, before it is served, and has those sinks begin to which an order is kept.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    error::Result,
    routes::Routes,
    sinks::{AMQP, Kind, Mode},
    store::{
        Store,
        cursors::{Cursors, Phase},
        feed,
        registry::Registry,
    },
};

/// A sink of the application's own, or of the file.
#[derive(Clone)]
pub(crate) struct Enrolled {
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    /// Whether it is not given what was made before it was registered.
    pub(crate) is_from_now: bool,
}

/// Has the rows of a collection owe what is served here, whether it is or not; where the broker alone is served, that goes
/// without saying. Notes in the routes from when they are owed.
///
/// An ordered sink begins here rather than with who will deliver to it: the server may reap much of what the outbox holds until
/// that is agreed. Safe to repeat.
///
/// # Errors
///
/// [`Error::Setting`](crate::Error::Setting) where a sink is registered in the other mode,
/// [`Error::Unfit`](crate::Error::Unfit) where an ordered one could not be given its rows for want of rights.
pub(crate) async fn enrol(
    registry: &Registry,
    store: &Store,
    routes: &mut Routes,
    sinks: &[Enrolled],
) -> Result<()> {
    if sinks.is_empty() {
        return Ok(());
    }
    let is_owed = |sink: &&Enrolled| !routes.to(&sink.name).is_empty();
    let sinks: Vec<&Enrolled> = sinks.iter().filter(is_owed).collect();
    // Before they are registered, so that whatever is owed to an ordered sink is committed after it begins, or is in the outbox by
    // now.
    let pinning = begin(store, &sinks).await?;
    register(registry, store.collection(), routes, &sinks).await?;
    pin(registry, store.collection(), routes, &pinning).await
}

/// Has those ordered sinks begin that have not yet; those for which the outbox is still to be kept.
async fn begin(store: &Store, sinks: &[&Enrolled]) -> Result<Vec<Cursors>> {
    let mut pinning = Vec::new();
    for sink in sinks.iter().filter(|sink| sink.mode.order().is_some()) {
        let cursors = Cursors::new(store, &sink.name);
        cursors.allowed().await?;
        let start = feed::fence_of(store).await?;
        if cursors.begin(start, sink.is_from_now).await? == Phase::Pin {
            pinning.push(cursors);
        }
    }
    Ok(pinning)
}

async fn register(
    registry: &Registry,
    collection: &str,
    routes: &mut Routes,
    sinks: &[&Enrolled],
) -> Result<()> {
    let to_broker = routes.names(routes.to(AMQP));
    if !to_broker.is_empty() {
        registry
            .register(collection, AMQP, Kind::Sink, Mode::Lanes, &to_broker)
            .await?;
    }
    for sink in sinks {
        let names = routes.names(routes.to(&sink.name));
        let since = registry
            .register(collection, &sink.name, sink.kind, sink.mode, &names)
            .await?;
        if sink.is_from_now {
            routes.begin(&sink.name, since.timestamp_millis());
        }
    }
    Ok(())
}

/// Keeps for them what the outbox holds.
async fn pin(
    registry: &Registry,
    collection: &str,
    routes: &Routes,
    pinning: &[Cursors],
) -> Result<()> {
    if pinning.is_empty() {
        return Ok(());
    }
    let known = registry.look_if_allowed().await?;
    let all = routes.names(routes.whole()).into_iter();
    let all: BTreeSet<&str> = all.chain(known.routes_of(collection)).collect();
    let all: Vec<&str> = all.into_iter().collect();
    for cursors in pinning {
        let own = routes.names(routes.to(cursors.sink()));
        cursors.pin(&own, &all).await?;
    }
    Ok(())
}
