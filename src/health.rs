//! What an orchestrator, a scraper and a person with curl are told, over HTTP.
//!
//! Ready and alive differ. Ready says whether rows get through at this moment: a broker that is away is not mended by
//! a restart, so it makes nobody restart anything. Alive says whether this process can still do its work: a loop
//! that died cannot come back.

mod answers;
mod check;
mod pulse;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{lane::LANES, sinks::amqp::Broker};
use check::Check;

pub(crate) use pulse::pulse;

/// Between two upkeeps of the metrics, which bound the memory of what nobody reads.
const UPKEEP: Duration = Duration::from_secs(5);

/// How long answers that are under way may take at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is known of this process. Whoever knows something says it; cheap to clone.
#[derive(Clone)]
pub(crate) struct Health(Arc<Known>);

struct Known {
    /// None where none is configured.
    broker: Option<watch::Receiver<Broker>>,
    mongodb: Mutex<Mongodb>,
    lanes: Mutex<Option<Share>>,
    draining: CancellationToken,
    /// The loop that died first.
    died: OnceLock<String>,
}

/// Whether MongoDB answers.
enum Mongodb {
    Answers,
    Silent { since: Instant, reason: String },
}

/// What this replica pumps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// So many lanes.
    Owns(usize),
    /// None, and why.
    None(String),
}

impl Health {
    /// Alive, and not ready before MongoDB has answered and the broker, if there shall be one, is there.
    pub(crate) fn new(broker: Option<watch::Receiver<Broker>>) -> Self {
        let silent = Mongodb::Silent {
            since: Instant::now(),
            reason: "not asked yet".into(),
        };
        Self(Arc::new(Known {
            broker,
            mongodb: Mutex::new(silent),
            lanes: Mutex::default(),
            draining: CancellationToken::new(),
            died: OnceLock::new(),
        }))
    }

    /// MongoDB has answered, or why it has not. Silent since the first time in a row that it is said.
    pub(crate) fn mongodb(&self, answer: Result<(), String>) {
        let mut known = locked(&self.0.mongodb);
        let since = match &*known {
            Mongodb::Silent { since, .. } => *since,
            Mongodb::Answers => Instant::now(),
        };
        *known = match answer {
            Ok(()) => Mongodb::Answers,
            Err(reason) => Mongodb::Silent { since, reason },
        };
    }

    /// What is pumped here. A replica without a lane is ready: it publishes what it is given.
    pub(crate) fn lanes(&self, share: Share) {
        *locked(&self.0.lanes) = Some(share);
    }

    /// It takes nothing more, and finishes what it has.
    pub(crate) fn draining(&self) {
        self.0.draining.cancel();
    }

    /// A loop ended that should not have; it is named to whoever asks whether this process is alive.
    pub(crate) fn died(&self, name: &str) {
        // The first is the cause, most likely.
        let _ = self.0.died.set(name.to_owned());
    }

    fn alive(&self) -> Vec<Check> {
        let check = match self.0.died.get() {
            None => Check::good("loops", "all of them run"),
            Some(name) => Check::bad("loops", format!("{name} died; restart this process")),
        };
        vec![check]
    }

    fn ready(&self) -> Vec<Check> {
        let mut checks = vec![self.broker(), self.database(), self.share()];
        if self.0.draining.is_cancelled() {
            checks.push(Check::bad("draining", "it is about to stop"));
        }
        checks
    }

    fn broker(&self) -> Check {
        let Some(broker) = &self.0.broker else {
            return Check::good("broker", "none is configured");
        };
        match &*broker.borrow() {
            Broker::Up => Check::good("broker", "connected"),
            Broker::Blocked { reason } => Check::bad("broker", format!("blocked: {reason}")),
            Broker::Away { since, reason } => {
                Check::bad("broker", format!("away {}: {reason}", For(*since)))
            }
        }
    }

    fn database(&self) -> Check {
        match &*locked(&self.0.mongodb) {
            Mongodb::Answers => Check::good("mongodb", "answers"),
            Mongodb::Silent { since, reason } => {
                Check::bad("mongodb", format!("silent {}: {reason}", For(*since)))
            }
        }
    }

    fn share(&self) -> Check {
        let says = match &*locked(&self.0.lanes) {
            Some(Share::Owns(lanes)) => format!("{lanes} of {LANES}"),
            Some(Share::None(reason)) => format!("none: {reason}"),
            None => "not known yet".into(),
        };
        Check::good("lanes", says)
    }
}

/// Nothing that panics is called under these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Since when, as a length of time.
struct For(Instant);

impl fmt::Display for For {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "for {} s", self.0.elapsed().as_secs())
    }
}

/// Answers until it is stopped, and keeps the metrics in bounds. `stop` comes last, after the drain.
pub(crate) async fn serve(
    listener: TcpListener,
    health: Health,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) {
    let router = answers::router(health, metrics.clone());
    let served =
        axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        // It does not fail: what happens to a connection is that connection's.
        _ = served.into_future() => {}
        () = late => {}
        () = upkeep(&metrics) => {}
    }
}

async fn upkeep(metrics: &PrometheusHandle) {
    let mut tick = tokio::time::interval(UPKEEP);
    loop {
        tick.tick().await;
        metrics.run_upkeep();
    }
}

#[cfg(test)]
mod tests;
