//! Which outbox collections a database has.

use bson::{Bson, doc};
use futures::TryStreamExt;
use mongodb::{Database, results::CollectionSpecification};

use super::OUTBOXES;
use crate::{component::Component, error::Error, error::Result};

/// An outbox collection as it stands in the database.
pub(crate) struct Found {
    pub(crate) component: Component,
    /// Another once the collection was dropped and created again.
    pub(crate) uuid: Option<Bson>,
}

/// Every outbox collection of the database, by name.
///
/// # Errors
///
/// [`Error::Store`] if the collections cannot be listed.
pub(crate) async fn found(database: &Database) -> Result<Vec<Found>> {
    let listed = async {
        let filter = doc! { "name": { "$regex": OUTBOXES }, "type": "collection" };
        let listed = database.list_collections().filter(filter).await?;
        listed.try_collect::<Vec<CollectionSpecification>>().await
    };
    let mut listed = listed.await.map_err(|error| {
        Error::store(
            "listing the collections, which takes the privilege listCollections,",
            database.name(),
            error,
        )
    })?;
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    let found = listed.into_iter().filter_map(|collection| {
        Some(Found {
            component: Component::of_rows(database.name(), &collection.name)?,
            uuid: collection.info.uuid.map(Bson::Binary),
        })
    });
    Ok(found.collect())
}

/// A component for each.
///
/// # Errors
///
/// As [`found`].
pub(crate) async fn components(database: &Database) -> Result<Vec<Component>> {
    let found = found(database).await?;
    Ok(found.into_iter().map(|found| found.component).collect())
}
