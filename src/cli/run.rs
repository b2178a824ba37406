//! `run`: the sidecar.

use clap::Args;
use futures::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{failure::Outcome, log, options::Options};
use crate::{Amqp, sidecar::Sidecar};

/// Publish the rows of services that write them themselves, until it is told to stop.
///
/// Follows every outbox collection of the database, new ones as they appear; where components are declared, those.
/// SIGTERM and SIGINT stop it: what is in flight is waited for, at most 10 s. A second signal ends it at once.
///
/// Example: toa-outbox run --mongodb 'mongodb://localhost/tea?replicaSet=rs0' --amqp amqp://localhost
#[derive(Args)]
pub(super) struct Run {}

impl Run {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let mut signals = Signals::new();
        let configuration = options.configuration()?;
        log::show(configuration.log, &configuration.log_level);
        let database = configuration.database().await?;
        let sink = Amqp::start(&configuration.settings)?;
        let open = Sidecar::open(
            &database,
            configuration.components,
            configuration.settings,
            &sink,
        );
        let sidecar = tokio::select! {
            open = open => open?,
            () = signals.next() => return Ok(()),
        };
        let stop = CancellationToken::new();
        tokio::select! {
            () = sidecar.run(&stop) => {}
            () = signals.next() => tracing::info!("stopping; a second signal ends it at once"),
        }
        tokio::select! {
            _ = sidecar.shutdown() => Ok(()),
            _ = signals.next() => std::process::exit(1),
        }
    }
}

/// SIGTERM and SIGINT.
struct Signals(Vec<Signal>);

impl Signals {
    /// Where the system has no more room for one, the process goes as it would without.
    fn new() -> Self {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
        Self(kinds.into_iter().flat_map(signal).collect())
    }

    /// Cancel safe.
    async fn next(&mut self) {
        if self.0.is_empty() {
            std::future::pending::<()>().await;
        }
        let signals = self.0.iter_mut().map(|signal| Box::pin(signal.recv()));
        select_all(signals).await;
    }
}
