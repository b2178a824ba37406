//! What every command can be told, and what follows from it together with the environment.

use clap::Args;
use mongodb::{Client, Database};

use crate::{Component, Error, Settings};

/// Options of every command.
#[derive(Args)]
pub(super) struct Options {
    /// Where the rows are; its path may name the database [default: TOA_OUTBOX_MONGODB]
    #[arg(long, global = true, value_name = "URI", hide_default_value = true)]
    mongodb: Option<String>,
    /// The database the rows are in [default: TOA_OUTBOX_DATABASE, or what the URI names]
    #[arg(long, global = true, value_name = "NAME")]
    database: Option<String>,
    /// Where messages go; repeat it for several nodes, tried in turn [default: TOA_OUTBOX_AMQP]
    #[arg(long, global = true, value_name = "URI")]
    amqp: Vec<String>,
    /// Print data as JSON, one document a line
    #[arg(long, global = true)]
    pub(super) json: bool,
}

/// All that is set, wherever it came from.
pub(crate) struct Configuration {
    pub(crate) settings: Settings,
    /// Those declared; none: every outbox collection of the database is followed.
    pub(crate) components: Vec<Component>,
}

impl Options {
    pub(super) fn configuration(&self) -> Result<Configuration, Error> {
        let mut settings = Settings::from_env()?;
        if let Some(uri) = &self.mongodb {
            settings.mongodb = Some(uri.clone());
        }
        if let Some(name) = &self.database {
            settings.database = Some(name.clone());
        }
        if !self.amqp.is_empty() {
            settings.amqp = self.amqp.clone();
        }
        Ok(Configuration {
            settings,
            components: Vec::new(),
        })
    }
}

impl Configuration {
    /// The database of the settings. Connections are made when they are needed.
    pub(crate) async fn database(&self) -> Result<Database, Error> {
        let uri = self.settings.mongodb.as_ref();
        let uri = uri.ok_or_else(|| missing("MONGODB", "set it, or pass --mongodb"))?;
        let client = Client::with_uri_str(uri).await.map_err(unusable)?;
        match &self.settings.database {
            Some(name) => Ok(client.database(name)),
            None => client.default_database().ok_or_else(|| {
                missing(
                    "DATABASE",
                    "set it, pass --database, or name it in the URI: mongodb://host/NAME?…",
                )
            }),
        }
    }
}

fn missing(key: &str, remedy: &str) -> Error {
    Error::Setting {
        name: format!("TOA_OUTBOX_{key}"),
        origin: "environment",
        value: String::new(),
        expected: remedy.to_owned(),
    }
}

/// What the driver says of a connection string may repeat it, and with it the password.
fn unusable(error: mongodb::error::Error) -> Error {
    match error.kind.as_ref() {
        mongodb::error::ErrorKind::InvalidArgument { .. } => Error::Setting {
            name: "TOA_OUTBOX_MONGODB".into(),
            origin: "environment or command line",
            value: "…".into(),
            expected:
                "expected a connection string such as mongodb://user:password@host/?replicaSet=rs0"
                    .into(),
        },
        _ => Error::store("connecting", "the database", error),
    }
}
