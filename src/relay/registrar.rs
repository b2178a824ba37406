//! Keeps in step with what is registered: which routes rows owe, which sinks are paused, and what nobody serves any more.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::select_all;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::line::{Line, Lines};
use crate::{
    clock::every,
    error::Result,
    report::Reports,
    sinks::{Batched, Kind, Outlet},
    store::registry::{Known, Pause, Registered, Registry, Served},
};

/// The least time from one look to the next: replicas by the hundred look too.
pub(super) const LEAST: Duration = Duration::from_secs(1);

/// How often it is said at the least that a route is served.
pub(crate) const RENEWAL: Duration = Duration::from_secs(5 * 60);

/// After how many looks of one everybody has looked again.
pub(crate) const LOOKS: u32 = 3;

pub(super) struct Registrar {
    pub(super) registry: Registry,
    pub(super) lines: Lines,
    pub(super) sinks: Arc<[Outlet]>,
    /// From one look to the next.
    pub(super) every: Duration,
    /// How long nobody may have served a route, or a consumer, before it is owed nothing more.
    pub(super) grace: Duration,
    /// Told when lanes come and go, and with them other replicas.
    pub(super) assigned: watch::Receiver<u64>,
    pub(super) reports: Reports,
    /// When what this replica serves was said last.
    pub(super) renewed: Instant,
}

impl Registrar {
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut tick = every(self.every);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
                () = strangers(&mut self.assigned, &self.lines) => {}
                () = asks(&self.sinks) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                outcome = self.once() => if let Err(error) = outcome {
                    self.failed(&error.to_string());
                }
            }
        }
    }

    async fn once(&mut self) -> Result<()> {
        self.pause().await?;
        if self.renewed.elapsed() >= RENEWAL.min(self.grace / 3) {
            self.renew().await?;
            self.renewed = Instant::now();
        }
        // Whoever was there before the look has registered before that.
        let lines = self.lines.all();
        let live: Vec<_> = lines
            .iter()
            .map(|line| line.owed.live.borrow().clone())
            .collect();
        let known = self.registry.look().await?;
        for (line, live) in lines.iter().zip(live) {
            line.learn(&known, &live);
        }
        self.obey(&known);
        self.tidy(&lines, &known).await
    }

    /// Writes down what destinations have asked for.
    async fn pause(&self) -> Result<()> {
        for sink in own(&self.sinks) {
            let Some(circuit) = sink.asked() else {
                continue;
            };
            let pause = Pause {
                circuit: circuit.id,
                reason: circuit.reason,
                since: bson::DateTime::now(),
                advice: circuit.advice,
            };
            self.registry.pause(sink.name(), &pause).await?;
            sink.paused(true);
        }
        Ok(())
    }

    /// Says that what this replica serves is served.
    async fn renew(&self) -> Result<()> {
        for line in self.lines.all() {
            line.register(&self.registry).await?;
        }
        Ok(())
    }

    fn obey(&self, known: &Known) {
        for sink in own(&self.sinks) {
            // What was asked for meanwhile is written down next time.
            if sink.asked().is_none() {
                sink.paused(known.paused.contains_key(sink.name()));
            }
        }
    }

    /// Ends what nobody serves any more.
    async fn tidy(&self, lines: &[Arc<Line>], known: &Known) -> Result<()> {
        let by_rows: HashMap<&str, &Arc<Line>> = lines
            .iter()
            .map(|line| (line.store.collection(), line))
            .collect();
        for sink in &known.sinks {
            if let Some(line) = by_rows.get(sink.collection.as_str()) {
                self.tidy_one(line, sink).await?;
            }
        }
        Ok(())
    }

    async fn tidy_one(&self, line: &Line, sink: &Registered) -> Result<()> {
        // Who serves the broker alone says so to the group, and not here.
        let is_stale = |served: &&Served| served.ago > self.grace && !line.has(&served.route);
        let stale: Vec<&str> = sink
            .routes
            .iter()
            .filter(is_stale)
            .map(|served| served.route.as_str())
            .collect();
        let is_served = line.serves(&sink.sink) || stale.len() < sink.routes.len();
        let may_leave = is_served || sink.kind == Kind::Consumer;
        if may_leave && !stale.is_empty() {
            tracing::warn!(
                collection = sink.collection,
                sink = sink.sink,
                grace = ?self.grace,
                "labels of this sink have had nobody to serve them for so long, and are not owed any more"
            );
            self.registry.dismiss(sink, &stale, self.grace).await?;
        }
        for route in &sink.leaving {
            if route.ago > self.every * LOOKS && !line.has(&route.route) {
                let is_abandoned = sink.kind == Kind::Consumer;
                line.release(&sink.sink, &route.route, is_abandoned).await?;
                self.registry
                    .forget(&sink.collection, &sink.sink, &route.route)
                    .await?;
            }
        }
        Ok(())
    }

    fn failed(&mut self, problem: &str) {
        self.reports.first(problem, |times| {
            tracing::warn!(
                times,
                "{problem}; until it is known which sinks are registered, rows are owed those that were, and those that live \
                 replicas serve"
            );
        });
    }
}

fn own(sinks: &[Outlet]) -> impl Iterator<Item = &Batched> {
    sinks.iter().filter_map(|sink| match sink {
        Outlet::Batched(batched) => Some(batched),
        Outlet::Amqp(_) => None,
    })
}

/// Resolves when there may be a live replica that serves what was not registered when it was looked for.
async fn strangers(assigned: &mut watch::Receiver<u64>, lines: &Lines) {
    while assigned.changed().await.is_ok() {
        if lines.all().iter().any(|line| line.has_strangers()) {
            return;
        }
    }
    std::future::pending().await
}

/// Waits until the destination of one of them asks for a pause.
async fn asks(sinks: &[Outlet]) {
    let asking: Vec<_> = own(sinks).map(|sink| Box::pin(sink.asks())).collect();
    match asking.is_empty() {
        true => std::future::pending().await,
        false => drop(select_all(asking).await),
    }
}
