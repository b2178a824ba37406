//! What an operator does with sinks.

use std::future::IntoFuture;

use bson::{Document, doc};
use mongodb::options::WriteConcern;

use super::{Known, Registered, Registry, id};
use crate::error::Result;

impl Known {
    /// The sinks of one name, one for each collection it is fed from.
    pub(crate) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Registered> {
        self.sinks.iter().filter(move |sink| sink.sink == name)
    }

    /// The routes that rows of `collection` owe, or owed a moment ago.
    pub(crate) fn owed_by(&self, collection: &str) -> Vec<&str> {
        let of_it = self
            .sinks
            .iter()
            .filter(|sink| sink.collection == collection);
        of_it.flat_map(Registered::names).collect()
    }
}

impl Registry {
    /// Writes down by whose leave a sink is resumed. Majority; safe to repeat.
    pub(crate) async fn approve(&self, sink: &str, circuit: &str, approval: &str) -> Result<()> {
        let id = doc! { "_id": { "approval": approval, "sink": sink, "circuit": circuit } };
        let update = vec![doc! { "$set": { "at": "$$NOW" } }];
        let updated = self.sinks.update_one(id, update).upsert(true);
        let updated = updated.write_concern(WriteConcern::majority());
        self.within("writing down an approval", updated.into_future())
            .await
            .map(drop)
    }

    /// Ends the pause of a sink, if it is by this circuit; whether it was. Replicas see it when they look next. Majority.
    pub(crate) async fn resume(&self, sink: &str, circuit: &str) -> Result<bool> {
        let filter = doc! { "_id": { "sink": sink }, "paused.circuit": circuit };
        self.delete("resuming a sink", filter).await
    }

    /// Forgets a sink of one collection of which nothing is owed any more, and with its last collection whether it is paused.
    /// Where somebody has registered it anew meanwhile, it stays. Majority.
    pub(crate) async fn remove(&self, sink: &Registered) -> Result<()> {
        let attempted = "removing a sink";
        let mut empty = id(&sink.collection, &sink.sink);
        empty.extend(doc! { "routes": [], "leaving": [] });
        self.delete(attempted, empty).await?;
        if self.look().await?.named(&sink.sink).next().is_none() {
            let pause = doc! { "_id": { "sink": &sink.sink } };
            self.delete(attempted, pause).await?;
        }
        Ok(())
    }

    async fn delete(&self, attempted: &'static str, filter: Document) -> Result<bool> {
        let deleted = self.sinks.delete_one(filter);
        let deleted = deleted.write_concern(WriteConcern::majority());
        let deleted = self.within(attempted, deleted.into_future()).await?;
        Ok(deleted.deleted_count > 0)
    }
}
