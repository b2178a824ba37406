//! Real servers, a cable to cut, and eyes on what arrives.
//!
//! - [`servers`]: a MongoDB and a RabbitMQ that all tests of one binary share
//! - [`ReplicaSet`], [`Mongo`], [`Rabbit`]: private ones, for tests that break them
//! - [`Cable`]: stands between a client and a server, and can be cut, silenced or slowed
//! - [`Authority`]: certificates for servers and clients that speak TLS
//! - [`Checker`]: a consumer that writes down every delivery
//! - [`Hook`]: an HTTP server that misbehaves as it is told
//! - [`Destination`]: what a sink sends to, well or not; [`conforms`] is what every sink has to do
//! - [`Commits`]: in which order rows were committed
//! - [`eventually`]: waits for a condition, never for a time
//!
//! `install.sh` brings the programs; `leash.sh` keeps a server from outliving the process that
//! started it.

// Each test binary uses a part of this.
#![allow(dead_code, unused_imports)]

mod admin;
mod authority;
mod cable;
mod checker;
mod commits;
mod conformance;
mod eventually;
mod hook;
mod leash;
mod mongo;
pub mod ports;
mod rabbit;
mod replica_set;
mod usage;

pub use admin::Admin;
pub use authority::{Authority, Identity};
pub use cable::Cable;
pub use checker::{Checker, Delivery};
pub use commits::{Commits, jumps};
pub use conformance::{Conduct, Dead, Destination, Plain, Pots, conforms};
pub use eventually::{Outcome, eventually};
pub use hook::{Asked, Hook, Reply};
pub use mongo::Mongo;
pub use rabbit::Rabbit;
pub use replica_set::ReplicaSet;
pub use usage::{memory, peak_memory, processor_time};

use tokio::sync::OnceCell;
use uuid::Uuid;

/// The servers all tests of one binary share. A test that breaks a server starts its own.
pub struct Servers {
    /// One member.
    pub mongo: ReplicaSet,
    /// One node.
    pub rabbit: Rabbit,
}

/// The shared servers, started by whoever asks first.
///
/// Every test has its own runtime, so clients are made per test, from the URIs.
pub async fn servers() -> &'static Servers {
    static SERVERS: OnceCell<Servers> = OnceCell::const_new();

    SERVERS
        .get_or_init(|| async {
            let (mongo, rabbit) = tokio::join!(ReplicaSet::start(1), Rabbit::start());
            Servers { mongo, rabbit }
        })
        .await
}

/// A name no other test has: for databases, exchanges, queues.
pub fn unique(prefix: &str) -> String {
    let id = Uuid::now_v7().simple().to_string();
    // The random part alone: the name of a database has 63 bytes at most.
    format!("{prefix}_{}", &id[20..])
}
