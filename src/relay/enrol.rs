//! Registers what a replica serves, before it is served.

use std::sync::Arc;

use crate::{
    error::Result,
    routes::Routes,
    sinks::{AMQP, Kind, Mode},
    store::registry::Registry,
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
pub(crate) async fn enrol(
    registry: &Registry,
    collection: &str,
    routes: &mut Routes,
    sinks: &[Enrolled],
) -> Result<()> {
    if sinks.is_empty() {
        return Ok(());
    }
    let to_broker = routes.names(routes.to(AMQP));
    if !to_broker.is_empty() {
        registry
            .register(collection, AMQP, Kind::Sink, Mode::Lanes, &to_broker)
            .await?;
    }
    for sink in sinks {
        let names = routes.names(routes.to(&sink.name));
        if names.is_empty() {
            continue;
        }
        let since = registry
            .register(collection, &sink.name, sink.kind, sink.mode, &names)
            .await?;
        if sink.is_from_now {
            routes.begin(&sink.name, since.timestamp_millis());
        }
    }
    Ok(())
}
