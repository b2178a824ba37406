//! `sinks remove`.

use clap::Args;
use indicatif::ProgressBar;
use mongodb::Database;
use serde_json::json;
use tokio::time::sleep;

use super::{facts::Sink, named};
use crate::{
    Error,
    cli::{
        argument::refuse,
        failure::{Failure, Outcome},
        options::{Configuration, Options},
        output::{Output, bar},
    },
    relay::registrar::LOOKS,
    slots::Census,
    store::{
        Store,
        deliveries::Deliveries,
        registry::{Known, Registered, Registry},
    },
};

/// Forget a sink that no service has any more, and release what it is owed.
///
/// Rows that owe nothing else are published by that, and reaped after the retention; what was to be tried again is
/// forgotten. Dead deliveries stay, to be looked at. Where replicas live, it waits for three times TOA_OUTBOX_INTERVAL, until all have
/// heard of it. A service that has the sink registers it again.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox sinks remove billing --dry-run")]
pub(super) struct Remove {
    /// The sink, as `sinks list` prints it
    name: String,
    /// Only as it is fed from this outbox collection, such as tea_pots_outbox
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// Say what would be released, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete its dead deliveries too, and the copies of their rows
    #[arg(long)]
    discard_dead: bool,
    /// Though a live replica serves it; which registers it again within five minutes
    #[arg(long)]
    served: bool,
    /// Release what it is owed: nobody will send it
    #[arg(long)]
    yes: bool,
}

/// One that is removed, and what has come of it.
struct Going {
    registered: Registered,
    sink: Sink,
    deliveries: Deliveries,
    released: u64,
    discarded: u64,
}

impl Remove {
    pub(super) async fn run(self, options: &Options) -> Outcome {
        let configuration = options.configuration()?;
        let database = configuration.database().await?;
        let registry = Registry::new(&database);
        let known = registry.look().await?;
        let census = Census::take(&database, configuration.settings.beat).await?;
        let mut all = self.going(&database, &census, &known).await?;
        let mut output = Output::to_whoever_reads(options.json);
        if !self.dry_run {
            self.check(&all)?;
            self.remove(&configuration, &registry, &census, &mut all)
                .await?;
        }
        for one in &all {
            self.tell(one, &mut output)?;
        }
        Ok(output.flush()?)
    }

    async fn going(
        &self,
        database: &Database,
        census: &Census,
        known: &Known,
    ) -> Result<Vec<Going>, Error> {
        named(&self.name, known, database)?;
        let wanted = |sink: &&Registered| {
            let only = self.collection.as_ref();
            only.is_none_or(|only| *only == sink.collection)
        };
        let mut going = Vec::new();
        for registered in known.named(&self.name).filter(wanted) {
            let sink = Sink::registered(registered, census, known);
            going.push(Going {
                sink: sink.counted(database).await?,
                deliveries: Deliveries::new(&Store::new(database, &registered.collection)),
                registered: registered.clone(),
                released: 0,
                discarded: 0,
            });
        }
        match (&self.collection, going.is_empty()) {
            (Some(collection), true) => {
                let fed: Vec<&str> = known
                    .named(&self.name)
                    .map(|sink| sink.collection.as_str())
                    .collect();
                let expected = format!("the sink is fed from {}", fed.join(", "));
                Err(refuse("--collection", collection, expected))
            }
            _ => Ok(going),
        }
    }

    /// Nothing is changed where one of them may not go.
    fn check(&self, all: &[Going]) -> Result<(), Failure> {
        for Going { sink, .. } in all {
            if sink.is_served() && !self.served {
                let by = match sink.members.as_slice() {
                    [] => "may be served by replicas with static slots".to_owned(),
                    members => format!("is served by {}", members.join(", ")),
                };
                return Err(Failure::Because(format!(
                    "{} of {} {by}, and stays: stop those that have it first, or pass --served",
                    sink.name, sink.collection
                )));
            }
        }
        let rows: u64 = all.iter().map(|one| one.sink.debt.rows).sum();
        match rows > 0 && !self.yes {
            true => Err(refuse(
                "NAME",
                &self.name,
                format!("it is owed {rows} rows or more, which nobody would send it: add --yes if that is meant"),
            )
            .into()),
            false => Ok(()),
        }
    }

    async fn remove(
        &self,
        configuration: &Configuration,
        registry: &Registry,
        census: &Census,
        all: &mut [Going],
    ) -> Outcome {
        for one in &*all {
            registry.dismiss_all(&one.registered).await?;
        }
        let rows = all.iter().map(|one| one.sink.debt.rows).sum();
        let bar = bar(rows, "rows released");
        if all.iter().any(|one| one.is_heard(census)) {
            bar.set_message("waits until all replicas have heard of it");
            sleep(configuration.settings.interval * LOOKS).await;
            bar.set_message("");
        }
        for one in all {
            let ended = self.release(registry, one, &bar).await;
            if ended.is_err() {
                bar.finish_and_clear();
            }
            ended?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    async fn release(
        &self,
        registry: &Registry,
        one: &mut Going,
        bar: &ProgressBar,
    ) -> Result<(), Error> {
        let Going {
            registered,
            deliveries,
            ..
        } = one;
        let (collection, sink) = (&registered.collection, &registered.sink);
        for route in registered.names() {
            let released = deliveries.release(sink, route, false, |rows| bar.inc(rows));
            one.released += released.await?;
            registry.forget(collection, sink, route).await?;
        }
        if self.discard_dead {
            one.discarded = deliveries.discard_all(sink).await?;
        }
        registry.remove(registered).await
    }

    fn tell(&self, one: &Going, output: &mut Output) -> std::io::Result<()> {
        let Going {
            sink,
            released,
            discarded,
            ..
        } = one;
        let count = &sink.count;
        if output.is_json {
            return output.json(&json!({
                "sink": sink.name,
                "collection": sink.collection,
                "owed": sink.debt.rows,
                "released": released,
                "retrying": count.retrying,
                "dead": count.dead + count.abandoned,
                "discarded": discarded,
                "done": !self.dry_run,
            }));
        }
        let (name, collection) = (&sink.name, &sink.collection);
        let dead = count.dead + count.abandoned;
        match self.dry_run {
            true => output.line(format_args!(
                "{name} of {collection}: {} rows would be released, {} deliveries not be tried again, {dead} dead ones {}",
                sink.rows(),
                count.retrying,
                if self.discard_dead { "be discarded" } else { "stay" },
            )),
            false => output.line(format_args!(
                "{name} of {collection}: removed, {released} rows released, {} dead deliveries stay, {discarded} discarded; \
                 rows of which nobody has taken anything wait for whoever is served next",
                dead.saturating_sub(*discarded),
            )),
        }
    }
}

impl Going {
    /// Whether somebody marks rows of this collection, and has to hear first that they owe less.
    fn is_heard(&self, census: &Census) -> bool {
        let group = census.group_of(&self.registered.collection);
        self.sink.is_fixed()
            || group.is_some_and(|group| group.foreign.is_some() || group.alive() > 0)
    }
}
