//! Sinks of the configuration file to which the order of the commits is kept.

use std::{fs, path::PathBuf, process::Output, time::Duration};

use bson::{Document, doc};
use futures::future::join_all;
use mongodb::Collection;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{process::Command, time::Instant};

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Commits, Hook, Reply, eventually, jumps},
    town::{Town, row},
};

/// What a replica says that is given the sink.
const OWNER: &str = "is given its rows by this replica";

/// A town, a destination, and the file that leads from one to the other.
struct Road {
    town: Town,
    hook: Hook,
    folder: TempDir,
}

impl Road {
    async fn new() -> Self {
        let mut town = Town::shared().await;
        // So that nobody loses the sink on a busy machine who is not killed.
        town.beat = Duration::from_secs(1);
        Self {
            town,
            hook: Hook::start().await,
            folder: TempDir::new().unwrap(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("toa-outbox.toml")
    }

    /// To the hook, at a path that is the sink's name.
    fn sink(&self, name: &str, more: &str) -> String {
        format!(
            "[[sink]]\nname = \"{name}\"\nkind = \"http\"\nlabels = [\"*.created\"]\nsafety = false\nurl = \"{}\"\n\
             secret = \"whsec_c2VjcmV0IG9mIHRoZSB0ZWEgcG90cw==\"\n{more}\n",
            self.hook.url(&format!("/{name}"))
        )
    }

    fn settings(&self, text: &str) -> Vec<(&'static str, String)> {
        fs::write(self.file(), text).unwrap();
        let mut settings = self.town.settings();
        settings.retain(|(name, _)| *name != "AMQP");
        settings.push(("CONFIG", self.file().display().to_string()));
        settings
    }

    /// Without a broker.
    fn start(&self, text: &str) -> Sidecar {
        Sidecar::start(&self.settings(text))
    }

    /// Without anyone to feed the ordered sink: the broker alone takes what there is.
    async fn publish_before(&self, count: usize) -> Vec<String> {
        let ids = self.town.write(count).await;
        let before = self.town.sidecar();
        self.town.settled().await;
        assert!(before.stop().await.success());
        ids
    }

    /// What the sink has taken, message by message.
    fn taken(&self, name: &str) -> Vec<Value> {
        let path = format!("POST /{name} ");
        let taken = self.hook.answered(204).into_iter();
        taken
            .filter(|asked| asked.line.starts_with(&path))
            .flat_map(|asked| serde_json::from_str::<Vec<Value>>(asked.text()).unwrap())
            .collect()
    }

    fn rows(&self, name: &str) -> Vec<String> {
        let taken = self.taken(name);
        let row = |message: &Value| message["row"].as_str().unwrap().to_owned();
        taken.iter().map(row).collect()
    }

    async fn has(&self, name: &str, rows: usize) {
        eventually(PATIENCE, &format!("{name} has {rows}"), async || {
            let mut taken = self.rows(name);
            taken.sort();
            taken.dedup();
            taken.len() >= rows
        })
        .await;
    }

    /// An operator's command.
    async fn operate(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toa-outbox"));
        command.args(args).kill_on_drop(true);
        command.env("TOA_OUTBOX_MONGODB", &self.town.mongodb);
        command.env("TOA_OUTBOX_CONFIG", self.file());
        command.output().await.unwrap()
    }

    /// The documents it prints.
    async fn asked(&self, args: &[&str]) -> Vec<Value> {
        let output = self.operate(args).await;
        let text = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {text} {said}");
        let documents = text.lines().map(serde_json::from_str);
        documents.collect::<Result<_, _>>().unwrap()
    }

    fn registered(&self) -> Collection<Document> {
        self.town.database.collection("outbox_sinks")
    }

    async fn cursors(&self, of: &Town, sink: &str) -> u64 {
        let id = doc! { "cursor": { "collection": of.rows().name(), "sink": sink } };
        let registered = self.registered();
        let cursors = registered.count_documents(doc! { "_id": id });
        cursors.await.unwrap()
    }

    async fn failed(&self) -> u64 {
        let failed = format!("{}_deliveries", self.town.rows().name());
        let failed = self.town.database.collection::<Document>(&failed);
        failed.count_documents(doc! {}).await.unwrap()
    }
}

/// Sixteen writers at once, whose transactions are held open for a random time.
async fn hold_and_write(town: &Town, each: usize) {
    let writers = (0..16).map(|writer| async move {
        let rows: Collection<Document> = town.database.collection(town.rows().name());
        for _ in 0..each {
            let mut session = town.database.client().start_session().await.unwrap();
            session.start_transaction().await.unwrap();
            let (_, row) = row(doc! { "writer": writer });
            rows.insert_one(row).session(&mut session).await.unwrap();
            // Time is the subject: transactions commit in another order than they began.
            let held = Duration::from_millis(rand::random_range(0..100));
            tokio::time::sleep(held).await;
            session.commit_transaction().await.unwrap();
        }
    });
    join_all(writers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_in_the_order_of_the_commits_while_the_owner_is_killed() {
    let road = Road::new().await;
    let text = road.sink("warehouse", "order = \"ordered\"");
    let commits = Commits::of(&road.town.rows()).await;
    road.town.write(1).await;
    let mut sidecars = vec![road.start(&text), road.start(&text)];
    for sidecar in &sidecars {
        road.town.owned(sidecar).await;
    }
    road.has("warehouse", 1).await;
    let killing = async {
        road.has("warehouse", 200).await;
        // Each line begins with its time.
        let last = |at: &usize| sidecars[*at].said(OWNER).pop();
        let owner = (0..2).max_by_key(last).unwrap();
        sidecars.remove(owner).kill();
        road.rows("warehouse").len()
    };
    let ((), before) = tokio::join!(hold_and_write(&road.town, 40), killing);
    assert!(before < 641, "killed in the middle: {before}");
    road.has("warehouse", 641).await;
    let order = commits.all(641, PATIENCE).await;
    road.town.settled().await;
    assert!(!order.is_sorted(), "older ids were committed later");
    let jumps = jumps(&road.rows("warehouse"), &order);
    println!("killed after {before}, repeated {jumps:?}");
    // By the batch that was on its way when the owner was killed, and not by more.
    assert!(jumps.len() <= 1, "{jumps:?}");
    assert!(jumps.iter().all(|&rows| rows <= 128), "{jumps:?}");
    assert_eq!(road.failed().await, 0);
    for sidecar in sidecars {
        assert!(sidecar.stop().await.success());
    }
}

#[tokio::test]
async fn it_begins_at_the_origin_or_now() {
    let road = Road::new().await;
    let before = road.publish_before(300).await;
    let text = road.sink("warehouse", "order = \"ordered\"")
        + &road.sink("search", "order = \"ordered\"\nstart = \"now\"");
    let sidecar = road.start(&text);
    road.has("warehouse", 300).await;
    let mut after = Vec::new();
    for _ in 0..5 {
        after.push(road.town.change().await);
    }
    road.has("warehouse", 305).await;
    road.has("search", 5).await;
    road.town.settled().await;
    assert_eq!(road.rows("search"), after, "nothing of before");
    let mut all = before;
    all.sort();
    all.extend(after);
    assert_eq!(road.rows("warehouse"), all, "each once");
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn an_audit_has_whole_events_and_waits_rather_than_give_one_up() {
    let road = Road::new().await;
    let mut ids = road.publish_before(20).await;
    ids.sort();
    let log = road.folder.path().join("audit.jsonl");
    let text = road.sink("audit", "order = \"audit\"")
        + &format!(
            "[[sink]]\nname = \"log\"\nkind = \"file\"\norder = \"audit\"\nlabels = [\"*\"]\npath = {log:?}\n"
        );
    let is_bad = ids[7].clone();
    road.hook
        .answers(move |asked| match asked.text().contains(&is_bad) {
            true => Reply::status(400),
            false => Reply::status(204),
        });
    let sidecar = road.start(&text);
    sidecar.says("did not take what is next").await;
    eventually(PATIENCE, "it is tried again", async || {
        road.hook.answered(400).len() > 2
    })
    .await;
    assert_eq!(
        road.rows("audit"),
        Vec::<String>::new(),
        "nothing goes past"
    );
    road.hook.answers(|_| Reply::status(204));
    ids.push(road.town.change().await);
    road.has("audit", 21).await;
    road.town.settled().await;
    assert_eq!(road.rows("audit"), ids);
    assert_eq!(road.failed().await, 0);
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let rows: Vec<&str> = lines
        .iter()
        .map(|line| line["row"].as_str().unwrap())
        .collect();
    assert_eq!(rows, ids);
    let taken = road.taken("audit");
    let events = taken.iter().map(|message| &message["data"]);
    for event in events.chain(lines.iter().map(|line| &line["body"])) {
        assert!(event["origin"].is_null() && event["input"].is_null());
        assert!(event["state"]["material"].is_string(), "{event}");
        assert_eq!(event.as_object().unwrap().len(), 4, "{event}");
    }
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn a_collection_that_appears_has_a_cursor_of_its_own() {
    let road = Road::new().await;
    road.town.write(1).await;
    let sidecar = road.start(&road.sink("warehouse", "order = \"ordered\""));
    road.has("warehouse", 1).await;
    let other = Town {
        database: road.town.database.clone(),
        mongodb: road.town.mongodb.clone(),
        ..Town::shared().await
    };
    let mut ids = other.write(20).await;
    road.has("warehouse", 21).await;
    ids.sort();
    for _ in 0..5 {
        ids.push(other.change().await);
    }
    road.has("warehouse", 26).await;
    other.settled().await;
    let theirs = |row: &String| ids.contains(row);
    let mut theirs: Vec<String> = road
        .rows("warehouse")
        .into_iter()
        .filter(|row| theirs(row))
        .collect();
    // What is committed while it begins may come twice.
    theirs.dedup();
    assert_eq!(theirs[theirs.len() - 5..], ids[20..]);
    for of in [&road.town, &other] {
        assert_eq!(road.cursors(of, "warehouse").await, 1);
    }
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn another_order_than_it_is_registered_in_is_refused() {
    let road = Road::new().await;
    road.town.write(1).await;
    let lanes = road.sink("warehouse", "");
    let ordered = road.sink("warehouse", "order = \"ordered\"");
    for (was, is) in [(&lanes, &ordered), (&ordered, &lanes)] {
        let sidecar = road.start(was);
        road.town.settled().await;
        assert!(sidecar.stop().await.success());
        let before = road.registered().count_documents(doc! {}).await.unwrap();
        let mut refused = road.start(is);
        assert_eq!(refused.exits().await.code(), Some(2));
        let said = refused.said("sink warehouse, order (");
        let [said] = said.as_slice() else {
            panic!("{:?}", refused.said(""));
        };
        for named in ["toml line ", road.town.rows().name(), "another name"] {
            assert!(said.contains(named), "{said}");
        }
        let after = road.registered().count_documents(doc! {}).await.unwrap();
        assert_eq!(after, before, "nothing is changed for its sake");
        road.asked(&["sinks", "remove", "warehouse", "--json"])
            .await;
        assert_eq!(road.cursors(&road.town, "warehouse").await, 0);
        road.town.write(1).await;
    }
}

#[tokio::test]
async fn it_is_operated_as_any_other() {
    let road = Road::new().await;
    road.town.write(1).await;
    let mut settings = road.settings(&road.sink("warehouse", "order = \"ordered\""));
    settings.push(("LISTEN", "127.0.0.1:0".into()));
    let sidecar = Sidecar::start(&settings);
    road.has("warehouse", 1).await;
    road.town.settled().await;
    let paused = road.asked(&["sinks", "pause", "warehouse", "--json"]).await;
    let circuit = paused[0]["circuit"].as_str().unwrap();
    eventually(PATIENCE, "it is paused here", async || {
        let (_, metrics) = sidecar.get("/metrics").await;
        metrics
            .lines()
            .any(|line| line.starts_with("toa_outbox_sink_paused{") && line.ends_with(" 1"))
    })
    .await;
    let ids = road.town.write(3).await;
    eventually(PATIENCE, "it is owed them", async || {
        let listed = road.asked(&["sinks", "list", "--json"]).await;
        let of = |sink: &&Value| sink["sink"] == "warehouse";
        let sink = listed.iter().find(of).unwrap();
        assert_eq!(
            (&sink["mode"], &sink["served"]),
            (&"ordered".into(), &true.into())
        );
        sink["owed"] == 3
    })
    .await;
    let delivery = road.asked(&["deliveries", &ids[0], "--json"]).await;
    assert!(
        delivery[0].to_string().contains("outstanding"),
        "{delivery:?}"
    );
    let status = road.asked(&["status", "--json"]).await;
    assert!(
        status
            .iter()
            .any(|line| line["sink"] == "warehouse" && line["mode"] == "ordered")
    );
    let checked = road.operate(&["check"]).await;
    let checked = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.contains("it is paused"), "{checked}");
    road.asked(&[
        "sinks",
        "resume",
        "warehouse",
        "--circuit",
        circuit,
        "--json",
    ])
    .await;
    road.has("warehouse", 4).await;
    road.town.settled().await;
    let delivery = road.asked(&["deliveries", &ids[0], "--json"]).await;
    assert!(delivery[0].to_string().contains("taken"), "{delivery:?}");
    let (_, metrics) = sidecar.get("/metrics").await;
    assert!(
        metrics.contains("toa_outbox_cursor_lag_seconds{"),
        "{metrics}"
    );
    assert!(sidecar.stop().await.success());
    road.asked(&["sinks", "remove", "warehouse", "--json"])
        .await;
    assert_eq!(road.cursors(&road.town, "warehouse").await, 0);
}

/// Each is read from a change stream of its own, and a read that waits for something new has a connection for as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_collections_in_order_delay_nobody() {
    let mut road = Road::new().await;
    road.town.interval = Duration::from_secs(60);
    let names = (0..100).map(|n| format!("{}_{n}_outbox", road.town.pots));
    let names: Vec<String> = names.collect();
    let consumer = road.town.consumer().await;
    for name in &names {
        let rows: Collection<Document> = road.town.database.collection(name);
        rows.insert_one(row(doc! { "n": 1 }).1).await.unwrap();
    }
    road.town.write(1).await;
    road.settings(&road.sink("warehouse", "order = \"ordered\""));
    let mut settings = road.town.settings();
    settings.push(("CONFIG", road.file().display().to_string()));
    let sidecar = Sidecar::start(&settings);
    road.town.change().await;
    // By then the streams are open, of which there is one for each.
    road.has("warehouse", 102).await;
    let mut slowest = Duration::ZERO;
    for written in 3..23 {
        let begun = Instant::now();
        road.town.change().await;
        consumer.wait_for(written, PATIENCE).await;
        road.has("warehouse", 100 + written).await;
        road.town.settled().await;
        slowest = slowest.max(begun.elapsed());
    }
    println!("the slowest of 20 took {slowest:?}");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert!(sidecar.said("no answer within").is_empty());
    assert!(sidecar.stop().await.success());
}
