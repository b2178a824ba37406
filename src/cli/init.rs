//! `init`: the collection, its indexes and its validator.

use clap::Args;

use super::options::Options;
use crate::{Error, init};

/// Create outbox collections with their indexes, retention and validator.
///
/// For a user that may, where the service itself may not. Retention comes from TOA_OUTBOX_RETENTION.
/// Safe to repeat.
///
/// Example: toa-outbox init --mongodb mongodb://localhost/tea?replicaSet=rs0 tea_pots_outbox
#[derive(Args)]
pub(super) struct Init {
    /// The outbox collections, such as tea_pots_outbox
    #[arg(required = true, value_name = "COLLECTION")]
    collections: Vec<String>,
}

impl Init {
    pub(super) async fn run(self, options: &Options) -> Result<(), Error> {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        for collection in &self.collections {
            init(&database, collection, configuration.settings.retention).await?;
            println!("{}.{collection}: ready", database.name());
        }
        Ok(())
    }
}
