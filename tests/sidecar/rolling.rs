//! A rolling deploy: sidecars of an old and a new configuration side by side.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bson::doc;
use tokio::task::JoinHandle;

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Hook, Reply, eventually},
    town::{Town, row},
};

const SECRET: &str = "c2VjcmV0IG9mIHRoZSB0ZWEgcG90cw==";

fn hook(url: &str, labels: &str) -> String {
    format!(
        "[[sink]]\nname = \"hook\"\nkind = \"http\"\nlabels = [{labels}]\nurl = \"{url}\"\n\
         secret = \"whsec_{SECRET}\"\nsafety = false\n"
    )
}

/// The ids of rows by their label.
#[derive(Default)]
struct Written {
    created: Vec<String>,
    updated: Vec<String>,
}

/// Writes rows one by one until it is stopped.
struct Writer {
    stop: Arc<AtomicBool>,
    writing: JoinHandle<Written>,
}

impl Writer {
    fn start(town: &Town) -> Self {
        let (stop, rows) = (Arc::new(AtomicBool::new(false)), town.rows());
        let is_over = stop.clone();
        let writing = tokio::spawn(async move {
            let mut written = Written::default();
            while !is_over.load(Relaxed) {
                let (id, created) = row(doc! { "material": "glass" });
                rows.insert_one(created).await.unwrap();
                written.created.push(id);
                let (id, mut updated) = row(doc! { "material": "clay" });
                let event = updated.get_document_mut("event").unwrap();
                event.insert("origin", doc! { "material": "glass" });
                rows.insert_one(updated).await.unwrap();
                written.updated.push(id);
            }
            written
        });
        Self { stop, writing }
    }

    async fn stop(self) -> Written {
        self.stop.store(true, Relaxed);
        self.writing.await.unwrap()
    }
}

struct Fleet<'a> {
    town: &'a Town,
    folder: &'a Path,
    server: Hook,
}

impl Fleet<'_> {
    fn log(&self, replica: &str) -> PathBuf {
        self.folder.join(format!("{replica}.jsonl"))
    }

    async fn start(&self, replica: &str, text: &str) -> Sidecar {
        let file = self.folder.join(format!("{replica}.toml"));
        std::fs::write(&file, text).unwrap();
        let mut settings = self.town.settings();
        settings.push(("CONFIG", file.display().to_string()));
        let sidecar = Sidecar::start(&settings);
        self.town.owned(&sidecar).await;
        sidecar
    }

    async fn of_old(&self, replica: &str) -> Sidecar {
        let text = hook(&self.server.url("/pots"), "\"*.created\"");
        self.start(replica, &text).await
    }

    /// The old sink has one more label, and there is one more sink.
    async fn of_new(&self, replica: &str) -> Sidecar {
        let hook = hook(&self.server.url("/pots"), "\"*.created\", \"*.updated\"");
        let log = format!(
            "[[sink]]\nname = \"log\"\nkind = \"file\"\nlabels = [\"*\"]\npath = {:?}\n",
            self.log(replica)
        );
        self.start(replica, &format!("{hook}{log}")).await
    }

    /// How many of these the hook has not been sent.
    fn missed(&self, ids: &[String]) -> usize {
        let taken: String = self
            .server
            .answered(204)
            .iter()
            .map(|asked| asked.text().to_owned())
            .collect();
        ids.iter().filter(|id| !taken.contains(id.as_str())).count()
    }
}

/// Writes for a while, and at least so many rows.
async fn some(town: &Town, rows: u64) {
    let count = async || town.rows().estimated_document_count().await.unwrap();
    let before = count().await;
    eventually(PATIENCE, "rows are written", async || {
        count().await >= before + rows
    })
    .await;
}

/// Each is followed by one of the new configuration: who is still of the old one leaves what it does not know to the others.
#[tokio::test]
async fn a_new_sink_and_a_new_label_miss_nothing_while_old_sidecars_go_on() {
    let town = Town::shared().await;
    town.write(1).await;
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet {
        town: &town,
        folder: folder.path(),
        server: Hook::start().await,
    };
    fleet.server.answers(|_| Reply::status(204));
    let consumer = town.consumer().await;
    let (first, second) = (fleet.of_old("a").await, fleet.of_old("b").await);
    let before = Writer::start(&town);
    some(&town, 200).await;
    assert!(first.stop().await.success());
    let first = fleet.of_new("c").await;
    let before = before.stop().await;
    // From now on all is owed to the new ones, whoever publishes it; and they can neither deliver it nor remember it.
    fleet.server.answers(|_| Reply::status(503));
    let beside = Writer::start(&town);
    some(&town, 600).await;
    first.kill();
    some(&town, 600).await;
    let first = fleet.of_new("d").await;
    assert!(second.stop().await.success());
    let second = fleet.of_new("e").await;
    fleet.server.answers(|_| Reply::status(204));
    some(&town, 200).await;
    let beside = beside.stop().await;
    town.settled().await;

    assert_eq!(fleet.missed(&before.created), 0, "of the old label before");
    assert_eq!(fleet.missed(&beside.created), 0, "of the old label");
    assert_eq!(fleet.missed(&beside.updated), 0, "of the new label");
    let logs = ["c", "d", "e"].map(|replica| std::fs::read_to_string(fleet.log(replica)).unwrap());
    let beside_all = beside.created.iter().chain(&beside.updated);
    let missed = beside_all.filter(|id| !logs.iter().any(|log| log.contains(id.as_str())));
    assert_eq!(missed.count(), 0, "of the new sink");
    let created: BTreeSet<&String> = before.created.iter().chain(&beside.created).collect();
    consumer.wait_for(created.len(), PATIENCE).await;
    assert!(first.stop().await.success());
    assert!(second.stop().await.success());
}
