//! `init`: the collection, its indexes and its validator.

use clap::Args;
use mongodb::Client;

use crate::{Error, Settings, init};

/// Create outbox collections with their indexes, retention and validator.
///
/// For a user that may, where the service itself may not. Retention comes from TOA_OUTBOX_RETENTION.
/// Safe to repeat.
///
/// Example: toa-outbox init --mongodb mongodb://localhost/?replicaSet=rs0 --database tea tea_pots_outbox
#[derive(Args)]
pub struct Init {
    /// Where the rows are [default: TOA_OUTBOX_MONGODB]
    #[arg(long, value_name = "URI")]
    mongodb: Option<String>,
    /// The database the rows are in [default: TOA_OUTBOX_DATABASE]
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// The outbox collections, such as tea_pots_outbox
    #[arg(required = true, value_name = "COLLECTION")]
    collections: Vec<String>,
}

impl Init {
    pub async fn run(self, settings: Settings) -> Result<(), Error> {
        let uri = self
            .mongodb
            .or(settings.mongodb)
            .ok_or_else(|| missing("MONGODB"))?;
        let name = self
            .database
            .or(settings.database)
            .ok_or_else(|| missing("DATABASE"))?;
        let client = Client::with_uri_str(uri)
            .await
            .map_err(|error| unusable(error, &name))?;
        let database = client.database(&name);
        for collection in &self.collections {
            init(&database, collection, settings.retention).await?;
            println!("{name}.{collection}: ready");
        }
        Ok(())
    }
}

fn missing(key: &str) -> Error {
    Error::Setting {
        name: format!("TOA_OUTBOX_{key}"),
        origin: "environment",
        value: String::new(),
        expected: format!("set it, or pass --{}", key.to_lowercase()),
    }
}

/// What the driver says of a connection string may repeat it, and with it the password.
fn unusable(error: mongodb::error::Error, database: &str) -> Error {
    match error.kind.as_ref() {
        mongodb::error::ErrorKind::InvalidArgument { .. } => Error::Setting {
            name: "TOA_OUTBOX_MONGODB".into(),
            origin: "environment or command line",
            value: "…".into(),
            expected:
                "expected a connection string such as mongodb://user:password@host/?replicaSet=rs0"
                    .into(),
        },
        _ => Error::Store {
            attempted: "connecting",
            collection: database.to_owned(),
            source: Box::new(error),
        },
    }
}
