//! What kind of server answers, and what time it has.

#[cfg(feature = "sidecar")]
mod clock;

use std::time::Duration;

use bson::{Bson, Document, Timestamp, doc};
use mongodb::Database;

use crate::{
    clock::Moment,
    error::{Error, Result},
};
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

/// What time it is where rows are committed, whatever this machine thinks: as the server said once, and as long after that as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// Since the epoch.
    theirs: Duration,
    asked: Moment,
}

impl Time {
    /// It may be early by as long as the answer took.
    pub(super) fn of(hello: &Hello) -> Option<Self> {
        let theirs = hello.0.get_datetime("localTime").ok()?;
        let millis = u64::try_from(theirs.timestamp_millis()).ok()?;
        Some(Self {
            theirs: Duration::from_millis(millis),
            asked: Moment::now(),
        })
    }

    /// How long ago something was committed, in whole seconds.
    pub(crate) fn since(&self, committed: Timestamp, now: Moment) -> Duration {
        let theirs = self.theirs + now.since(self.asked);
        theirs.saturating_sub(Duration::from_secs(committed.time.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_ago_by_the_clock_of_the_server_as_it_is() {
        let second = Duration::from_secs(1);
        let at = |time| Timestamp { time, increment: 3 };
        let asked = Moment::now();
        let theirs = second * 1000;
        let time = Time { theirs, asked };
        assert_eq!(time.since(at(990), asked), second * 10);
        assert_eq!(time.since(at(990), asked + second * 50), second * 60);
        assert_eq!(time.since(at(1001), asked), Duration::ZERO, "just now");
        let hello = |hello| Time::of(&Hello(hello));
        assert!(hello(doc! { "localTime": bson::DateTime::now() }).is_some());
        assert!(hello(doc! {}).is_none());
    }
}
