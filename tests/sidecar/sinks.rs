//! Sinks of the configuration file, beside the broker and instead of it.

use std::{path::Path, time::Duration};

use bson::{Document, doc};
use serde_json::Value;

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Hook, Reply, eventually},
    town::Town,
};

const SECRET: &str = "c2VjcmV0IG9mIHRoZSB0ZWEgcG90cw==";

fn start(town: &Town, file: &Path, text: &str, with_broker: bool) -> Sidecar {
    std::fs::write(file, text).unwrap();
    let mut settings = town.settings();
    settings.retain(|(name, _)| with_broker || *name != "AMQP");
    settings.push(("CONFIG", file.display().to_string()));
    Sidecar::start(&settings)
}

fn hook(url: &str) -> String {
    format!(
        "[[sink]]\nname = \"hook\"\nkind = \"http\"\nlabels = [\"*.created\"]\nurl = \"{url}\"\n\
         secret = \"whsec_{SECRET}\"\ntimeout = 1000\n"
    )
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    whole.collect()
}

async fn takes(path: &Path, ids: &[String]) {
    eventually(PATIENCE, "the file has all of them", async || {
        let lines = lines(path);
        ids.iter()
            .all(|id| lines.iter().any(|line| line["row"] == id.as_str()))
    })
    .await;
    assert_eq!(lines(path).len(), ids.len(), "each once");
}

async fn owing(town: &Town, route: &str) -> u64 {
    let owing = doc! { "published": false, "outstanding": route };
    town.rows().count_documents(owing).await.unwrap()
}

#[tokio::test]
async fn a_file_without_a_broker() {
    let town = Town::shared().await.unhurried();
    let folder = tempfile::tempdir().unwrap();
    let (log, file) = (
        folder.path().join("pots.jsonl"),
        folder.path().join("x.toml"),
    );
    let text = format!(
        "[[sink]]\nname = \"log\"\nkind = \"file\"\nlabels = [\"{}.*\"]\npath = {log:?}\n",
        town.pots
    );
    let mut ids = town.write(20).await;
    let sidecar = start(&town, &file, &text, false);
    takes(&log, &ids).await;
    for _ in 0..5 {
        ids.push(town.change().await);
    }
    takes(&log, &ids).await;
    town.settled().await;
    sidecar.stop().await;
}

#[tokio::test]
async fn a_hook_that_hangs_delays_neither_the_broker_nor_a_file() {
    let town = Town::shared().await.unhurried();
    let created = town.consumer().await;
    let folder = tempfile::tempdir().unwrap();
    let (log, file) = (
        folder.path().join("pots.jsonl"),
        folder.path().join("x.toml"),
    );
    let server = Hook::start().await;
    server.answers(|_| Reply::Late(Duration::from_secs(3600), Box::new(Reply::status(204))));
    let text = format!(
        "{}[[sink]]\nname = \"log\"\nkind = \"file\"\nlabels = [\"*\"]\npath = {log:?}\n",
        hook(&server.url("/pots"))
    );
    let sidecar = start(&town, &file, &text, true);
    let ids = town.write(300).await;
    takes(&log, &ids).await;
    created.wait_for(ids.len(), PATIENCE).await;
    assert_eq!(
        town.rows()
            .count_documents(doc! { "published": true })
            .await
            .unwrap(),
        0
    );
    server.answers(|_| Reply::status(204));
    town.settled().await;
    eventually(PATIENCE, "the hook has all of them", async || {
        let taken: String = server
            .answered(204)
            .iter()
            .map(|asked| asked.text().to_owned())
            .collect();
        ids.iter().all(|id| taken.contains(id.as_str()))
    })
    .await;
    sidecar.stop().await;
}

#[tokio::test]
async fn what_it_rejects_is_dead_and_the_rest_arrives() {
    let town = Town::shared().await.unhurried();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let server = Hook::start().await;
    let ids = town.write(100).await;
    let bad = ids[37].clone();
    let is_bad = bad.clone();
    server.answers(move |asked| match asked.text().contains(&is_bad) {
        true => Reply::status(400),
        false => Reply::status(204),
    });
    let sidecar = start(&town, &file, &hook(&server.url("/pots")), false);
    town.settled().await;
    let taken: String = server
        .answered(204)
        .iter()
        .map(|asked| asked.text().to_owned())
        .collect();
    let arrived = ids.iter().filter(|id| taken.contains(id.as_str())).count();
    assert_eq!(arrived, 99);
    let deliveries = format!("{}_outbox_deliveries", town.pots);
    let deliveries = town.database.collection::<Document>(&deliveries);
    let dead = deliveries.find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(deliveries.count_documents(doc! {}).await.unwrap(), 1);
    assert_eq!(
        (
            dead.get_str("state").unwrap(),
            dead.get_i32("attempts").unwrap()
        ),
        ("dead", 1)
    );
    assert_eq!(owing(&town, "hook/created").await, 0);
    sidecar.stop().await;
}
