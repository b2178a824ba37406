//! A service in this process with sinks of its own, which the program is told of through the database.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bson::{Bson, Document, doc};
use mongodb::Collection;
use serde_json::Value;
use toa_outbox::{
    BoxError, Component, Label, Message, Outbox, Policy, Settings, Sink, SinkOptions, Verdict,
};

use crate::{
    stage::{Ran, Stage, run},
    support::eventually,
};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A destination that takes everything, or nothing.
#[derive(Clone, Default)]
pub struct Till(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    conduct: Conduct,
    /// How often it took which row.
    taken: BTreeMap<String, usize>,
    replays: usize,
}

#[derive(Clone, Copy, Default)]
pub enum Conduct {
    #[default]
    Takes,
    Rejects,
    Fails,
}

impl Till {
    pub fn that(conduct: Conduct) -> Self {
        let till = Self::default();
        till.now(conduct);
        till
    }

    pub fn now(&self, conduct: Conduct) {
        self.0.lock().unwrap().conduct = conduct;
    }

    pub fn taken(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().taken.clone()
    }

    pub fn replays(&self) -> usize {
        self.0.lock().unwrap().replays
    }
}

impl Sink for Till {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let mut state = self.0.lock().unwrap();
        match state.conduct {
            Conduct::Fails => return Err("the till is stuck".into()),
            Conduct::Rejects => {
                let rejected = Verdict::Rejected("no such account".into());
                return Ok(vec![rejected; batch.len()]);
            }
            Conduct::Takes => {}
        }
        for message in batch {
            *state.taken.entry(message.row().to_owned()).or_default() += 1;
            state.replays += usize::from(message.is_replay());
        }
        Ok(vec![Verdict::Accepted; batch.len()])
    }
}

impl Stage {
    /// A service with these sinks for what is created, and the broker.
    pub async fn service(&self, sinks: &[(&str, &Till)]) -> Outbox {
        self.service_with(sinks, |_| {}).await
    }

    pub async fn service_with(
        &self,
        sinks: &[(&str, &Till)],
        more: impl Fn(&mut Settings),
    ) -> Outbox {
        let mut settings = Settings {
            amqp: vec![self.amqp.clone()],
            interval: Duration::from_millis(100),
            beat: Duration::from_millis(300),
            ..Settings::default()
        };
        more(&mut settings);
        let pots = Component::new(&self.namespace, "pots").labels(Label::system());
        let mut builder = Outbox::builder(&self.database, pots, settings);
        // What fails is tried again in a day.
        let policy = Policy::schedule([Duration::from_secs(86_400)]).attempts(3);
        for (name, till) in sinks {
            let options = SinkOptions::new().policy(policy.clone());
            builder = builder.sink_with(*name, ["*.created"], (*till).clone(), options);
        }
        builder.open().await.unwrap()
    }

    /// The program, of the same pace as the service.
    pub async fn quick(&self, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        command.env("TOA_OUTBOX_INTERVAL", "100");
        run(command).await
    }

    pub fn deliveries(&self) -> Collection<Document> {
        let name = format!("{}_deliveries", self.outbox());
        self.database.collection(&name)
    }

    pub fn registry(&self) -> Collection<Document> {
        self.database.collection("outbox_sinks")
    }

    /// Waits until so many rows fit.
    pub async fn rows_come_to(&self, count: u64, filter: Document) {
        eventually(
            PATIENCE,
            &format!("{count} rows are {filter}"),
            async || self.rows().count_documents(filter.clone()).await.unwrap() == count,
        )
        .await;
    }

    pub async fn deliveries_come_to(&self, count: u64, filter: Document) {
        eventually(
            PATIENCE,
            &format!("{count} deliveries are {filter}"),
            async || {
                let deliveries = self.deliveries();
                deliveries.count_documents(filter.clone()).await.unwrap() == count
            },
        )
        .await;
    }

    /// Waits until a service has seen that the sink is paused: creates pots until one stays owed. How many it took before.
    pub async fn stands(&self, pots: &Outbox, sink: &str) -> u64 {
        let owed = doc! { "outstanding": [format!("{sink}/created")] };
        let tried = AtomicU64::new(0);
        eventually(PATIENCE, "it is not delivered to any more", async || {
            let number = tried.fetch_add(1, Ordering::Relaxed) + 1;
            let pot = doc! { "_id": format!("probe-{number}") };
            pots.create(pot, Bson::Null).await.unwrap();
            // Each goes one way or the other.
            let settled = doc! { "$or": [{ "published": true }, owed.clone()] };
            self.rows_come_to(number, settled).await;
            self.rows().count_documents(owed.clone()).await.unwrap() == 1
        })
        .await;
        tried.into_inner() - 1
    }

    /// What `sinks list` says of one.
    pub async fn sink(&self, name: &str) -> Value {
        let listed = self.quick(&["sinks", "list", "--json"]).await.ends_with(0);
        let mut listed = listed.json().into_iter();
        listed.find(|sink| sink["sink"] == name).expect(name)
    }
}

/// Creates pots, sixteen at a time.
pub async fn create(pots: &Outbox, count: usize) {
    use futures::StreamExt;
    let created = futures::stream::iter(0..count).map(|index| async move {
        let pot = doc! { "_id": index as i64, "material": "clay" };
        pots.create(pot, Bson::Null).await.unwrap();
    });
    created.buffer_unordered(16).collect::<Vec<()>>().await;
}
