//! `run`: the sidecar.

use std::{io, net::SocketAddr};

use clap::Args;
use futures::{FutureExt, future::BoxFuture, future::select_all, join, try_join};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use super::{
    failure::{Failure, Outcome},
    log,
    options::{Configuration, Options},
};
use crate::{
    Amqp, Error,
    config::Log,
    health::{self, Health, pulse},
    metrics::prometheus,
    sidecar::{Connections, Declared, Sidecar},
    sinks::AMQP,
};

/// Publish the rows of services that write them themselves, until it is told to stop.
///
/// Follows every outbox collection of the database, new ones as they appear; where components are declared in the
/// configuration file, those. SIGTERM and SIGINT stop it: what is in flight is waited for, at most 10 s. A second
/// signal ends it at once.
#[derive(Args)]
#[command(after_help = "Examples:
  toa-outbox run --mongodb 'mongodb://localhost/tea?replicaSet=rs0' --amqp amqp://localhost
  toa-outbox run --config toa-outbox.toml --listen 9464 --log json")]
pub(super) struct Run {}

impl Run {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let mut signals = Signals::new();
        let configuration = options.configuration()?;
        log::show(configuration.log, &configuration.log_level);
        let form = configuration.log;
        let ended = sidecar(configuration, &mut signals).await;
        ended.map_err(|failure| match form {
            // Not a line of text among documents.
            Log::Json => failure.logged(),
            Log::Text => failure,
        })
    }
}

async fn sidecar(configuration: Configuration, signals: &mut Signals) -> Outcome {
    configuration.wants_sink()?;
    // First of all: handles of metrics that were made before it count nothing.
    let shown = Shown::open(&configuration).await?;
    let broker = match configuration.settings.amqp.is_empty() {
        true => None,
        false => Some(Amqp::start(&configuration.settings)?),
    };
    let health = Health::new(broker.as_ref().map(Amqp::state));
    let over = CancellationToken::new();
    let showing = shown.map(|shown| shown.run(&health, &over));
    let is_watched = showing.is_some();
    let work = work(configuration, broker, &health, signals, is_watched);
    let work = async {
        let worked = work.await;
        over.cancel();
        worked
    };
    join!(work, async {
        if let Some(showing) = showing {
            showing.await;
        }
    })
    .0
}

async fn connected(configuration: &Configuration) -> Result<Connections, Error> {
    let (rows, seats) = try_join!(configuration.database(), configuration.database())?;
    let mut sinks = configuration.sinks.iter();
    let streams = match sinks.any(|sink| sink.options.mode.order().is_some()) {
        true => configuration.streams().await?,
        // Nobody uses them.
        false => rows.clone(),
    };
    Ok(Connections {
        rows,
        seats,
        streams,
    })
}

/// From the first look at the database to the last mark.
async fn work(
    configuration: Configuration,
    broker: Option<Amqp>,
    health: &Health,
    signals: &mut Signals,
    is_watched: bool,
) -> Outcome {
    let connections = tokio::select! {
        connected = connected(&configuration) => connected?,
        () = signals.next() => return Ok(()),
    };
    let database = connections.rows.clone();
    let (version, name) = (env!("CARGO_PKG_VERSION"), database.name());
    let fed = configuration.sinks.iter().map(|sink| sink.name.as_str());
    let sinks = broker
        .iter()
        .map(|_| AMQP)
        .chain(fed)
        .collect::<Vec<_>>()
        .join(" ");
    tracing::info!(version, database = name, sinks, "toa-outbox");
    let over = CancellationToken::new();
    let _last = over.clone().drop_guard();
    let asking = pulse(database.clone(), health.clone(), over);
    let work = async {
        let declared = Declared {
            components: configuration.components,
            settings: configuration.settings,
            broker,
            sinks: configuration.sinks,
            is_watched,
        };
        let open = Sidecar::open(&connections, declared);
        let sidecar = tokio::select! {
            open = open => open?,
            () = signals.next() => return Ok(()),
        };
        publish(&sidecar, health, signals).await
    };
    tokio::select! {
        worked = work => worked,
        // Not before it is told to.
        () = asking => Ok(()),
    }
}

/// Runs it until it is told to stop, and drains it.
async fn publish(sidecar: &Sidecar, health: &Health, signals: &mut Signals) -> Outcome {
    let ended = tokio::select! {
        () = sidecar.run() => Ok(()),
        () = sidecar.tell(health) => Err(Failure::Because(
            "a loop of the relay died, the log says how; rows are left to other replicas and to the next start".into(),
        )),
        () = signals.next() => {
            tracing::info!("stopping; a second signal ends it at once");
            Ok(())
        }
    };
    health.draining();
    tokio::select! {
        _ = sidecar.shutdown() => ended,
        () = signals.next() => Err(Failure::Because("ended by a second signal".into())),
    }
}

/// What is shown over HTTP.
struct Shown {
    listener: TcpListener,
    metrics: PrometheusHandle,
}

impl Shown {
    async fn open(configuration: &Configuration) -> Result<Option<Self>, Failure> {
        let Some(address) = configuration.listen else {
            return Ok(None);
        };
        let listener = listen(address).await;
        let listener = listener.map_err(|failure| match failure {
            Failure::Error(error) => configuration.placed(error).into(),
            busy => busy,
        })?;
        let failed = |error: &dyn std::fmt::Display| {
            Failure::Because(format!("setting up metrics: {error}"))
        };
        let recorder = prometheus::recorder().map_err(|error| failed(&error))?;
        let metrics = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|error| failed(&error))?;
        prometheus::describe();
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "shows /livez, /readyz and /metrics");
        }
        Ok(Some(Self { listener, metrics }))
    }

    fn run(self, health: &Health, over: &CancellationToken) -> BoxFuture<'static, ()> {
        health::serve(self.listener, health.clone(), self.metrics, over.clone()).boxed()
    }
}

/// Takes the address to be asked at. A port that another process has may be free later, so that is no mistake of the
/// settings.
async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::Because(format!(
            "listening on {address}: {error}; end who has that port, or choose another by --listen, 0 for any"
        )),
        _ => Failure::Error(Error::Setting {
            name: "TOA_OUTBOX_LISTEN".into(),
            origin: "settings".into(),
            value: address.to_string(),
            expected: format!("cannot listen there: {error}; choose an address of this machine"),
        }),
    })
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
