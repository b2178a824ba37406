//! AMQP 0-9-1: confirmed publication to durable fanout exchanges.
//!
//! ```text
//!   Amqp ── deliver ──► Session (one connection's life)
//!     │                    ├─ exchanges   declared before use, one attempt a cycle
//!     │                    ├─ main        the channel everything goes on
//!     │                    ├─ mandatory   the channel of messages that may be returned, in rounds
//!     │                    └─ quarantine  the channel of suspects, one at a time
//!     └─ run ── connects, waits for the connection to end, connects again
//! ```
//!
//! The client's own recovery is not used: a connection that ends resolves everything on it as not
//! sent, and the next one begins anew. *Sent* means an ack whose message was not returned.

mod beacon;
mod envelope;
mod exchanges;
mod link;
mod patience;
mod pipe;
mod quarantine;
mod rounds;
mod session;
#[cfg(feature = "sidecar")]
mod survey;
mod tls;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Answer, Cap, Message, Pace};
use crate::{config::Settings, error::Result, report::Reports};
use beacon::Beacon;
use link::Link;
use quarantine::Quarantine;
use session::Session;
use tls::Certificates;

#[cfg(feature = "sidecar")]
pub(crate) use beacon::Broker;
pub(crate) use link::Node;
#[cfg(feature = "sidecar")]
pub(crate) use survey::{Exchange, Survey};

/// The least time from one connection to the next: a connection the broker keeps ending is not a loop.
const PACE: Duration = Duration::from_secs(1);

/// The AMQP sink: a connection that is kept up for as long as a handle to it exists.
///
/// Handles are cheap to clone, and several outboxes may share one connection and with it the cap on
/// what is in flight.
#[derive(Clone)]
pub struct Amqp {
    shared: Arc<Shared>,
    _last: Arc<DropGuard>,
}

struct Shared {
    nodes: Vec<Node>,
    certificates: Certificates,
    tuning: Tuning,
    cap: Cap,
    /// Outlives a connection: the client may break it in answering a channel that is closed.
    quarantine: Arc<Mutex<Quarantine>>,
    session: watch::Sender<Option<Arc<Session>>>,
    beacon: Arc<Beacon>,
}

/// What a session needs to know of the settings.
#[derive(Clone, Copy)]
struct Tuning {
    interval: Duration,
    confirm_timeout: Duration,
}

impl Amqp {
    /// The handle, and the loop that keeps the connection until the last handle is dropped.
    pub(crate) fn new(settings: &Settings) -> Result<(Self, impl Future<Output = ()> + use<>)> {
        let nodes = Node::list(&settings.amqp)?;
        let certificates = Certificates::of(settings, &nodes)?;
        let shared = Arc::new(Shared {
            nodes,
            certificates,
            tuning: Tuning {
                interval: settings.interval,
                confirm_timeout: settings.confirm_timeout,
            },
            cap: Cap::new(settings.inflight),
            quarantine: Arc::default(),
            session: watch::Sender::new(None),
            beacon: Arc::new(Beacon::new()),
        });
        let stop = CancellationToken::new();
        let amqp = Self {
            shared: shared.clone(),
            _last: Arc::new(stop.clone().drop_guard()),
        };
        Ok((amqp, async move { shared.run(stop).await }))
    }

    /// Whether the settings can be used, before anything is connected.
    #[cfg(feature = "sidecar")]
    pub(crate) fn check(settings: &Settings) -> Result<()> {
        let nodes = Node::list(&settings.amqp)?;
        Certificates::of(settings, &nodes).map(|_| ())
    }

    /// Whether there is a connection. It may be blocked.
    pub fn is_up(&self) -> bool {
        self.shared.session.borrow().is_some()
    }

    /// Waits until there is a connection. Cancel safe.
    pub async fn up(&self) {
        // The sender lives as long as this handle.
        let _ = self
            .shared
            .session
            .subscribe()
            .wait_for(Option::is_some)
            .await;
    }

    /// How the connection is; it is not up before it says so.
    #[cfg(feature = "sidecar")]
    pub(crate) fn state(&self) -> watch::Receiver<Broker> {
        self.shared.beacon.state()
    }

    /// Tells each time a connection is there again.
    pub(crate) fn returns(&self) -> Returns {
        Returns(self.shared.session.subscribe())
    }

    pub(crate) fn cap(&self) -> &Cap {
        &self.shared.cap
    }

    /// Publishes one message and answers once its fate is known. There is no time limit: what bounds it
    /// is the life of the connection, and on one that is not blocked the confirm timeout. Dropped, the
    /// message may still leave.
    pub(crate) async fn deliver(&self, message: Message) -> Answer {
        let session = self.shared.session.borrow().clone();
        match session {
            Some(session) => session.deliver(message).await,
            None => Answer::owed(Pace::AtOnce, "there is no connection to the broker"),
        }
    }

    /// Cuts the connection, so that nothing given to it can leave any more. It is built anew.
    pub(crate) fn cut(&self) {
        if let Some(session) = self.shared.session.borrow().as_ref() {
            session.cut();
        }
    }
}

/// See [`Amqp::returns`].
pub(crate) struct Returns(watch::Receiver<Option<Arc<Session>>>);

impl Returns {
    /// Resolves when a connection came up since the last call. Cancel safe.
    pub(crate) async fn next(&mut self) {
        while self.0.changed().await.is_ok() {
            if self.0.borrow_and_update().is_some() {
                return;
            }
        }
        std::future::pending().await
    }
}

impl Shared {
    async fn run(&self, stop: CancellationToken) {
        loop {
            let link = tokio::select! {
                link = self.connect() => link,
                () = stop.cancelled() => return,
            };
            let address = link.address().to_owned();
            tracing::info!(address, "connected to the broker");
            let (quarantine, beacon) = (self.quarantine.clone(), self.beacon.clone());
            let session = Arc::new(Session::new(link, self.tuning, quarantine, beacon));
            self.beacon.up();
            self.session.send_replace(Some(session.clone()));
            let again = Instant::now() + PACE;
            let ended = session.run(&stop).await;
            self.session.send_replace(None);
            session.cut();
            self.beacon.away(ended.clone());
            if stop.is_cancelled() {
                return;
            }
            tracing::warn!(address, reason = ended, "lost the connection to the broker");
            tokio::select! {
                () = tokio::time::sleep_until(again) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Tries the nodes in turn for as long as it takes, at least every two seconds.
    async fn connect(&self) -> Link {
        let mut waits = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(1))
            .without_max_times()
            .with_jitter()
            .build();
        let mut reports = Reports::default();
        loop {
            for node in &self.nodes {
                let error = match Link::open(node, &self.certificates).await {
                    Ok(link) => return link,
                    Err(error) => error,
                };
                let address = node.address();
                self.beacon.away(format!("{address}: {error}"));
                // By its cause, so that one that takes another's place is not kept quiet.
                reports.first(&format!("{address}: {error}"), |times| {
                    tracing::warn!(address, %error, times, "cannot connect to the broker, trying on");
                });
            }
            tokio::time::sleep(waits.next().unwrap_or_default()).await;
        }
    }
}
