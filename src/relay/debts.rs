//! Tells what each sink is owed that is registered, and so what each keeps from being reaped.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{line::Line, registrar::RENEWAL};
use crate::{
    clock::every,
    error::Result,
    metrics::DebtMeters,
    report::Reports,
    store::{
        deliveries::Deliveries,
        registry::{Known, Registered, Registry},
    },
};

/// As long as the other figures may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Debts {
    pub(super) registry: Registry,
    pub(super) line: Arc<Line>,
    /// Whether lanes are given by settings, so that no group says who is there.
    pub(super) is_fixed: bool,
    pub(super) every: Duration,
    pub(super) reports: Reports,
    /// By sink.
    pub(super) meters: HashMap<String, DebtMeters>,
}

impl Debts {
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut tick = every(self.every);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                outcome = timeout(PATIENCE, self.once()) => match outcome {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => self.unknown(&error.to_string()),
                    Err(_) => self.unknown("no answer in time"),
                }
            }
        }
    }

    /// One bounded count for each sink, by the indexes.
    async fn once(&mut self) -> Result<()> {
        let known = self.registry.look().await?;
        let rows = self.line.store.collection();
        let sinks: Vec<&Registered> = known
            .sinks
            .iter()
            .filter(|sink| sink.collection == rows)
            .collect();
        self.meters.retain(|name, meters| {
            let is_there = sinks.iter().any(|sink| sink.sink == *name);
            if !is_there {
                meters.gone();
            }
            is_there
        });
        for sink in sinks {
            self.count(sink, &known).await?;
        }
        Ok(())
    }

    async fn count(&mut self, sink: &Registered, known: &Known) -> Result<()> {
        let store = &self.line.store;
        let routes = sink.names();
        let debt = store.owed(&routes).await?;
        let count = Deliveries::new(store).count(&sink.sink).await?;
        let is_unserved = !self.is_served(sink);
        let component = self.line.routes.component();
        let meters = self.meters.entry(sink.sink.clone());
        let meters = meters.or_insert_with(|| DebtMeters::new(component, &sink.sink));
        meters.owed(debt.rows, debt.age());
        meters.failed(count.retrying, count.dead + count.abandoned);
        meters.stands(known.paused.contains_key(&sink.sink), is_unserved);
        Ok(())
    }

    /// By this replica or another; where no group says who is there, as long as somebody has said so not long ago.
    fn is_served(&self, sink: &Registered) -> bool {
        let live = self.line.owed.live.borrow();
        let is_live = |route: &str| live.iter().any(|live| **live == *route);
        let mut routes = sink.routes.iter();
        self.line.serves(&sink.sink)
            || routes
                .any(|served| is_live(&served.route) || self.is_fixed && served.ago < RENEWAL * 2)
    }

    fn unknown(&mut self, reason: &str) {
        self.reports.first(reason, |times| {
            tracing::warn!(
                collection = self.line.store.name(),
                reason,
                times,
                "what sinks are owed is not known"
            );
        });
    }
}
