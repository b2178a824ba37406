//! Which outbox collections a database has.

use bson::doc;
use mongodb::Database;

use super::OUTBOXES;
use crate::{component::Component, error::Error, error::Result};

/// A component for every outbox collection of the database, by name.
///
/// # Errors
///
/// [`Error::Store`] if the collections cannot be listed.
pub(crate) async fn components(database: &Database) -> Result<Vec<Component>> {
    let names = database
        .list_collection_names()
        .filter(doc! { "name": { "$regex": OUTBOXES }, "type": "collection" })
        .await
        .map_err(|error| Error::store("listing the collections", database.name(), error))?;
    let mut names: Vec<String> = names;
    names.sort();
    let component = |name: &String| Component::of_rows(database.name(), name);
    Ok(names.iter().filter_map(component).collect())
}
