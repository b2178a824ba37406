//! MongoDB: what kind of server it is, what time it has, and what it allows.

use mongodb::Database;

use super::Findings;
use crate::{
    cli::{options::Configuration, target::Aim},
    slots::{self, Census},
    store::{
        deliveries::{self, Deliveries},
        registry::{self, Known, Registered},
        rights::{NAMELESS, Right, Rights},
        server::Server,
    },
};

/// Whether there is a server to ask more of.
pub(super) async fn look(database: &Database, findings: &mut Findings) -> bool {
    let server = match Server::ask(database).await {
        Ok(server) => server,
        Err(error) => {
            findings.wrong(
                "mongodb",
                error.to_string(),
                "check the connection string: hosts, replicaSet, user and password, tls options",
            );
            return false;
        }
    };
    match server.is_standalone {
        true => findings.wrong(
            "mongodb",
            "this is a standalone server, which has neither transactions nor change streams",
            "run it as a replica set, one member is enough: mongod --replSet rs0, then rs.initiate()",
        ),
        false => findings.fine("mongodb", "a replica set or a sharded cluster answers"),
    }
    let clock = server.clock;
    match clock.is_large() {
        true => findings.warn(
            "clock",
            format!(
                "the server's is {:.1} s {} this machine's, give or take {} ms",
                clock.ahead.abs() as f64 / 1000.0,
                if clock.ahead > 0 {
                    "ahead of"
                } else {
                    "behind"
                },
                clock.uncertain
            ),
            "synchronise both, by NTP for example: rows are due by the server's clock",
        ),
        false => findings.fine(
            "clock",
            format!("within {} ms of the server's", clock.ahead.abs().max(1)),
        ),
    }
    true
}

/// What rights depend on.
pub(super) struct Wants<'a> {
    pub(super) configuration: &'a Configuration,
    pub(super) aims: &'a [Aim],
    pub(super) census: Option<&'a Census>,
    /// What sinks are registered.
    pub(super) known: &'a Known,
}

/// What a replica cannot do without, and what it can, with less.
pub(super) async fn rights(wants: Wants<'_>, database: &Database, findings: &mut Findings) {
    let rights = match Rights::ask(database).await {
        Ok(Some(rights)) => rights,
        Ok(None) => return anonymous(database, findings).await,
        Err(error) => {
            return findings.warn("privileges", error.to_string(), "check them by hand");
        }
    };
    let before = findings.0.len();
    for lack in rights.missing(wants.needed(database)) {
        findings.wrong("privileges", lack.to_string(), lack.remedy());
    }
    for lack in rights.missing(wants.useful()) {
        let without =
            "an administrator runs `toa-outbox init` instead, and TOA_OUTBOX_ENSURE=0 is set";
        findings.warn("privileges", format!("{lack}: {without}"), lack.remedy());
    }
    if findings.0.len() == before {
        findings.fine("privileges", "all that is needed");
    }
}

/// Who gives no name, to a server that may ask for none.
async fn anonymous(database: &Database, findings: &mut Findings) {
    match Rights::is_open(database).await {
        Ok(true) => findings.fine("privileges", "nobody is asked to authenticate"),
        Ok(false) => {
            let [finding, remedy] = NAMELESS;
            findings.wrong("privileges", finding, remedy);
        }
        Err(error) => findings.warn("privileges", error.to_string(), "check them by hand"),
    }
}

impl Wants<'_> {
    fn needed(&self, database: &Database) -> Vec<Right> {
        let mut needed: Vec<Right> = match self.is_followed(database) {
            true => Right::to_follow().collect(),
            false => Vec::new(),
        };
        if self.configuration.components.is_empty() {
            needed.extend(Right::to_discover());
        }
        for aim in self.aims {
            needed.extend(Right::to_publish(&aim.component.rows()));
        }
        needed.extend(Right::all(slots::COLLECTION, slots::ACTIONS));
        needed.extend(self.to_sinks());
        needed
    }

    /// What a service takes that has one of the sinks that are registered.
    fn to_sinks(&self) -> Vec<Right> {
        let mut rights = Vec::new();
        for aim in self.aims {
            let rows = aim.component.rows();
            let mut sinks = self
                .known
                .sinks
                .iter()
                .filter(|sink| sink.collection == rows);
            if sinks.clone().any(Registered::is_ordered) {
                rights.extend(Right::to_order(&rows));
            }
            if sinks.next().is_some() {
                let deliveries = Deliveries::new(&aim.store);
                rights.extend(Right::all(deliveries.collection(), deliveries::ACTIONS));
                rights.extend(Right::all(registry::COLLECTION, registry::ACTIONS));
            }
        }
        rights
    }

    /// Whether a sidecar reads a change stream of the database: not if all is left to the pump, nor if services pump all
    /// of it themselves, each with a group of its own.
    fn is_followed(&self, database: &Database) -> bool {
        let is_library = |aim: &Aim| {
            let rows = aim.component.rows();
            let library = format!("group {}.{rows}", database.name());
            self.census.and_then(|census| census.pumped_by(&rows)) == Some(library.as_str())
        };
        let are_theirs = !self.aims.is_empty() && self.aims.iter().all(is_library);
        !self.configuration.settings.defer && !are_theirs
    }

    fn useful(&self) -> Vec<Right> {
        let settings = &self.configuration.settings;
        let mut useful = Vec::new();
        if !settings.ensure {
            return useful;
        }
        for aim in self.aims {
            let rows = aim.component.rows();
            let actions = ["createCollection", "createIndex", "collMod"];
            useful.extend(Right::all(&rows, &actions));
            if settings.retention.is_zero() {
                useful.extend(Right::all(&rows, &["dropIndex"]));
            }
        }
        useful
    }
}
