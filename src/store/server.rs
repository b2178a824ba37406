//! What kind of server answers, and what time it has.

#[cfg(feature = "sidecar")]
mod clock;

use bson::{Bson, Document, Timestamp, doc};
use mongodb::Database;

use crate::error::{Error, Result};
#[cfg(feature = "sidecar")]
pub(crate) use clock::Server;

/// What a server says of itself.
#[derive(Debug)]
pub(crate) struct Hello(Document);

impl Hello {
    pub(crate) async fn ask(database: &Database) -> Result<Self> {
        let hello = database.run_command(doc! { "hello": 1 }).await;
        let hello = hello.map_err(|error| {
            Error::store("asking what kind of server this is", database.name(), error)
        })?;
        Ok(Self(hello))
    }

    /// Whether the deployment can commit a row with its entity and has change streams: a replica set or a sharded
    /// cluster.
    pub(crate) fn is_transactional(&self) -> bool {
        let is_router = self.0.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
        is_router || self.0.contains_key("setName")
    }

    /// A point in the order of all commits that comes after everything a majority has by now.
    pub(super) fn at(&self) -> Option<Timestamp> {
        self.0.get("operationTime").and_then(Bson::as_timestamp)
    }
}
