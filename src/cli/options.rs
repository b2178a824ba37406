//! What every command can be told, and what follows from it together with environment and file.

use std::net::SocketAddr;

use clap::Args;
use mongodb::{
    Client, Database,
    options::{ClientOptions, ConnectionString},
};

use crate::{
    Amqp, Component, Error, Settings,
    config::{self, Flag, Key, Log, Origins, Source, masked},
};

const WHERE: &str = "Where the rows are, and where messages go";
const HOW: &str = "How rows are published";
const PROGRAM: &str = "The program";

/// Options of every command. Each setting has a variable too, and a key in the file: --log-level is
/// TOA_OUTBOX_LOG_LEVEL and log_level.
#[derive(Args)]
pub(super) struct Options {
    /// A MongoDB connection string; its path may name the database [TOA_OUTBOX_MONGODB]
    #[arg(long, global = true, value_name = "URI", help_heading = WHERE)]
    mongodb: Option<String>,
    /// A file that holds it, so that the password is no argument [TOA_OUTBOX_MONGODB_FILE]
    #[arg(long, global = true, value_name = "PATH", help_heading = WHERE)]
    mongodb_file: Option<String>,
    /// The database, where the connection string names none [TOA_OUTBOX_DATABASE]
    #[arg(long, global = true, value_name = "NAME", help_heading = WHERE)]
    database: Option<String>,
    /// The broker; repeat it for several nodes, tried in turn [TOA_OUTBOX_AMQP]
    #[arg(long, global = true, value_name = "URI", help_heading = WHERE)]
    amqp: Vec<String>,
    /// A file that holds its URIs [TOA_OUTBOX_AMQP_FILE]
    #[arg(long, global = true, value_name = "PATH", help_heading = WHERE)]
    amqp_file: Option<String>,
    /// The certificates that sign the broker's, PEM [TOA_OUTBOX_AMQP_CA]
    #[arg(long, global = true, value_name = "PATH", help_heading = WHERE, hide_short_help = true)]
    amqp_ca: Option<String>,
    /// The certificate to show the broker, PEM [TOA_OUTBOX_AMQP_CERT]
    #[arg(long, global = true, value_name = "PATH", help_heading = WHERE, hide_short_help = true)]
    amqp_cert: Option<String>,
    /// Its private key, PEM [TOA_OUTBOX_AMQP_KEY]
    #[arg(long, global = true, value_name = "PATH", help_heading = WHERE, hide_short_help = true)]
    amqp_key: Option<String>,

    /// Milliseconds between two cycles of the pump, 5000 [TOA_OUTBOX_INTERVAL]
    #[arg(long, global = true, value_name = "MS", help_heading = HOW, hide_short_help = true)]
    interval: Option<String>,
    /// Rows one read brings back, 200 [TOA_OUTBOX_BATCH]
    #[arg(long, global = true, value_name = "ROWS", help_heading = HOW, hide_short_help = true)]
    batch: Option<String>,
    /// Publications in flight, 1000 [TOA_OUTBOX_INFLIGHT]
    #[arg(long, global = true, value_name = "ROWS", help_heading = HOW, hide_short_help = true)]
    inflight: Option<String>,
    /// Seconds a published row is kept, 86400; 0: for ever [TOA_OUTBOX_RETENTION]
    #[arg(long, global = true, value_name = "S", help_heading = HOW, hide_short_help = true)]
    retention: Option<String>,
    /// Leave all rows to the pump, publish none at once [TOA_OUTBOX_DEFER]
    #[arg(long, global = true, value_name = "0|1", help_heading = HOW, hide_short_help = true,
        num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    defer: Option<String>,
    /// Pump the lanes where lane % n == i; absent: the replicas agree [TOA_OUTBOX_SLOT]
    #[arg(long, global = true, value_name = "I/N", help_heading = HOW, hide_short_help = true)]
    slot: Option<String>,
    /// Milliseconds between two signs of life of a replica, 2000 [TOA_ATOMICITY_INTERVAL]
    #[arg(long, global = true, value_name = "MS", help_heading = HOW, hide_short_help = true)]
    beat: Option<String>,
    /// Create collections and indexes at start, 1; 0: do not [TOA_OUTBOX_ENSURE]
    #[arg(long, global = true, value_name = "0|1", help_heading = HOW, hide_short_help = true)]
    ensure: Option<String>,

    /// The configuration file, toa-outbox.toml if it is there [TOA_OUTBOX_CONFIG]
    #[arg(long, global = true, value_name = "PATH", help_heading = PROGRAM)]
    config: Option<String>,
    /// Show health and metrics here; a port alone is one of this machine [TOA_OUTBOX_LISTEN]
    #[arg(long, global = true, value_name = "ADDR:PORT", help_heading = PROGRAM)]
    listen: Option<String>,
    /// Print data as JSON, one document a line
    #[arg(long, global = true, help_heading = PROGRAM)]
    pub(super) json: bool,
    /// The form of the log, text or json [TOA_OUTBOX_LOG]
    #[arg(long, global = true, value_name = "FORM", help_heading = PROGRAM)]
    log: Option<String>,
    /// What is logged, info; per module too: warn,toa_outbox=debug [TOA_OUTBOX_LOG_LEVEL]
    #[arg(long, global = true, value_name = "FILTER", help_heading = PROGRAM)]
    log_level: Option<String>,
}

/// All that is set, wherever it came from.
pub(crate) struct Configuration {
    pub(crate) settings: Settings,
    /// Those declared; none: every outbox collection of the database is followed.
    pub(crate) components: Vec<Component>,
    /// How each of them is written.
    pub(super) sources: Vec<Source>,
    /// Sinks beside the broker, or instead of it.
    pub(crate) sinks: Vec<config::sinks::Declared>,
    /// Where health and metrics are shown, if anywhere.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) log: Log,
    /// What is logged, as a filter of `tracing`.
    pub(crate) log_level: String,
    /// The file that was read, if there was one.
    pub(super) file: Option<String>,
    /// Who set what, by name of the setting; what is absent has its default.
    pub(super) origins: Origins,
}

impl Options {
    pub(super) fn configuration(&self) -> Result<Configuration, Error> {
        let layers = config::layers(self.flags())?;
        let configuration = Configuration {
            settings: layers.settings,
            components: layers.components,
            sources: layers.sources,
            sinks: layers.sinks,
            listen: layers.sidecar.listen,
            log: layers.sidecar.log,
            log_level: layers.sidecar.log_level,
            file: layers.file,
            origins: layers.origins,
        };
        configuration.check()?;
        Ok(configuration)
    }

    fn flags(&self) -> Vec<Flag> {
        let amqp = (!self.amqp.is_empty()).then(|| self.amqp.join(" "));
        let flags = [
            ("mongodb", &self.mongodb),
            ("mongodb_file", &self.mongodb_file),
            ("database", &self.database),
            ("amqp", &amqp),
            ("amqp_file", &self.amqp_file),
            ("amqp_ca", &self.amqp_ca),
            ("amqp_cert", &self.amqp_cert),
            ("amqp_key", &self.amqp_key),
            ("interval", &self.interval),
            ("batch", &self.batch),
            ("inflight", &self.inflight),
            ("retention", &self.retention),
            ("defer", &self.defer),
            ("slot", &self.slot),
            ("beat", &self.beat),
            ("ensure", &self.ensure),
            ("config", &self.config),
            ("listen", &self.listen),
            ("log", &self.log),
            ("log_level", &self.log_level),
        ];
        let flag = |(name, value): (&str, &Option<String>)| {
            Some(Flag::flag(Key::named(name)?, value.clone()?))
        };
        flags.into_iter().filter_map(flag).collect()
    }
}

impl Configuration {
    /// Whether the URIs are some, before anything is connected.
    fn check(&self) -> Result<(), Error> {
        if let Some(uri) = &self.settings.mongodb {
            ConnectionString::parse(uri).map_err(|_| self.unusable())?;
        }
        if self.settings.amqp.is_empty() {
            return Ok(());
        }
        Amqp::check(&self.settings).map_err(|error| self.placed(error))
    }

    /// Whether something says where messages go.
    pub(super) fn wants_sink(&self) -> Result<(), Error> {
        match self.settings.amqp.is_empty() && self.sinks.is_empty() {
            true => Err(missing(
                "amqp",
                "set it, or pass --amqp, or declare a [[sink]] in the configuration file",
            )),
            false => Ok(()),
        }
    }

    /// The database of the settings. Connections are made when they are needed.
    pub(crate) async fn database(&self) -> Result<Database, Error> {
        self.opened(|_| {}).await
    }

    /// The same for change streams, as many as there may be: each holds a connection while it waits.
    pub(crate) async fn streams(&self) -> Result<Database, Error> {
        self.opened(|options| options.max_pool_size = Some(u32::MAX))
            .await
    }

    async fn opened(&self, with: impl FnOnce(&mut ClientOptions)) -> Result<Database, Error> {
        let uri = self.settings.mongodb.as_ref();
        let uri = uri.ok_or_else(|| missing("mongodb", "set it, or pass --mongodb"))?;
        let opening = async {
            let mut options = ClientOptions::parse(uri).await?;
            with(&mut options);
            Client::with_options(options)
        };
        let client = opening.await.map_err(|error| match error.kind.as_ref() {
            mongodb::error::ErrorKind::InvalidArgument { .. } => self.unusable(),
            _ => Error::store("opening connections", "MongoDB", error),
        })?;
        match &self.settings.database {
            Some(name) => Ok(client.database(name)),
            None => client.default_database().ok_or_else(|| {
                missing(
                    "database",
                    "set it, pass --database, or name it in the URI: mongodb://host/NAME?…",
                )
            }),
        }
    }

    /// A setting that was refused by whoever uses it: by the name and from the place it was given.
    pub(super) fn placed(&self, error: Error) -> Error {
        let Error::Setting {
            name,
            value,
            expected,
            ..
        } = &error
        else {
            return error;
        };
        match Key::of_variable(name) {
            Some(key) => self.refuse(key.name, masked(value), expected.clone()),
            None => error,
        }
    }

    /// What the driver says of a connection string may repeat it, and with it the password.
    fn unusable(&self) -> Error {
        self.refuse(
            "mongodb",
            "…".into(),
            "expected a connection string such as mongodb://user:password@host/?replicaSet=rs0, with what is special in user and password percent-encoded"
                .into(),
        )
    }

    fn refuse(&self, name: &'static str, value: String, expected: String) -> Error {
        let origin = self.origins.get(name);
        Error::Setting {
            name: origin.map_or(name, |origin| &origin.name).to_owned(),
            origin: origin.map_or("default".into(), |origin| origin.place.clone()),
            value,
            expected,
        }
    }
}

fn missing(name: &'static str, remedy: &str) -> Error {
    Error::Setting {
        name: Key::named(name).map_or_else(String::new, Key::variable),
        origin: "not set".into(),
        value: String::new(),
        expected: remedy.to_owned(),
    }
}
