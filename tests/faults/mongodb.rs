//! MongoDB dies under the relay: it goes on by itself, and nothing is lost.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bson::doc;
use toa_outbox::{Event, Outbox};

use crate::{
    rig::Rig,
    support::{ReplicaSet, eventually, servers},
};

/// Writes until told to stop, and keeps the ids of what certainly committed.
struct Load {
    stop: Arc<AtomicBool>,
    committed: Arc<Mutex<HashSet<i32>>>,
    tasks: tokio::task::JoinSet<()>,
}

impl Load {
    fn start(pots: &Outbox) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let committed: Arc<Mutex<HashSet<i32>>> = Arc::default();
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let (pots, stop, committed) = (pots.clone(), stop.clone(), committed.clone());
            tasks.spawn(async move {
                for id in (task..).step_by(8) {
                    if stop.load(Relaxed) {
                        return;
                    }
                    let written = pots
                        .transaction(async move |tx| {
                            tx.emit(Event::created(doc! { "_id": id })).await
                        })
                        .await;
                    if written.is_ok() {
                        committed.lock().unwrap().insert(id);
                    }
                }
            });
        }
        Self {
            stop,
            committed,
            tasks,
        }
    }

    fn committed(&self) -> usize {
        self.committed.lock().unwrap().len()
    }

    /// Waits until so many more have committed.
    async fn more(&self, rows: usize) {
        let enough = self.committed() + rows;
        eventually(Duration::from_secs(90), "writing goes on", async || {
            self.committed() >= enough
        })
        .await;
    }

    async fn end(self) -> HashSet<i32> {
        self.stop.store(true, Relaxed);
        self.tasks.join_all().await;
        Arc::into_inner(self.committed)
            .unwrap()
            .into_inner()
            .unwrap()
    }
}

async fn dies_under_load(members: usize, times: usize) {
    let set = ReplicaSet::start(members).await;
    let rig = Rig::new(&set.uri(), &servers().await.rabbit.uri()).await;
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    let load = Load::start(&pots);
    for _ in 0..times {
        load.more(200).await;
        let primary = set.primary_index().await;
        set.kill(primary).await;
        if members > 1 {
            load.more(100).await;
        }
        set.start_again(primary).await;
    }
    load.more(200).await;
    let committed = load.end().await;
    eventually(Duration::from_secs(60), "every row is marked", async || {
        rig.count(doc! { "published": false }).await == 0
    })
    .await;
    pots.shutdown().await;
    let delivered: HashSet<i32> = created
        .received()
        .iter()
        .map(|message| {
            let state: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
            state["_id"].as_i64().unwrap() as i32
        })
        .collect();
    let lost: Vec<_> = committed.difference(&delivered).collect();
    assert!(lost.is_empty(), "lost {lost:?}");
    let rows = rig.ids(doc! {}).await;
    let ids: HashSet<String> = created
        .received()
        .into_iter()
        .map(|message| message.message_id)
        .collect();
    assert_eq!(ids, rows, "what arrived is what is in the database");
    println!(
        "{members} members, {times} kills: {} committed, {} delivered, {} duplicates",
        committed.len(),
        delivered.len(),
        created.duplicates().len(),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_killed_and_restarted_under_load() {
    dies_under_load(1, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_of_three_is_killed_under_load() {
    dies_under_load(3, 2).await;
}
