//! Beside replicas that run, one of which knows a label more.

use std::{io::Write, time::Duration};

use bson::{Document, doc};
use mongodb::Collection;
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::process::Child;

use crate::{
    stage::{Stage, row, with},
    support::{Checker, eventually},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Pots and cups, with two replicas: one follows what there is, the other pots alone, and it boils them.
struct Beside {
    stage: Stage,
    _replicas: [Child; 2],
    _file: NamedTempFile,
}

impl Beside {
    async fn start() -> Self {
        let stage = Stage::new().await;
        for rows in [&stage.outbox(), &cups(&stage).name().to_owned()] {
            stage.run(&["init", rows]).await.ends_with(0);
        }
        let file = boiling(&stage);
        let replicas = [
            stage.replica(&[]),
            stage.replica(&["--config", file.path().to_str().unwrap()]),
        ];
        let beside = Self {
            stage,
            _replicas: replicas,
            _file: file,
        };
        eventually(PATIENCE, "both own lanes", async || {
            let [cups, pots] = beside.owners().await;
            cups == [0, 128] && pots == [64, 128]
        })
        .await;
        beside
    }

    /// How many lanes each replica has of cups, and of pots; what nobody has is left out.
    async fn owners(&self) -> [Vec<u64>; 2] {
        let states = self
            .stage
            .run(&["status", "--json"])
            .await
            .ends_with(0)
            .json();
        let lanes = |state: &Value| {
            let owners = state["owners"].as_array().unwrap().iter();
            let owners = owners.filter(|owner| owner["replica"].is_string());
            let mut lanes: Vec<u64> = owners
                .map(|owner| owner["lanes"].as_u64().unwrap())
                .collect();
            lanes.sort();
            lanes
        };
        [lanes(&states[0]), lanes(&states[1])]
    }
}

/// The settings of a replica that knows pots, and when they boil.
pub fn boiling(stage: &Stage) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    let text = format!(
        r#"
        [[component]]
        namespace = "{}"
        name = "pots"
        [[component.label]]
        name = "boiled"
        "#,
        stage.namespace
    );
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn cups(stage: &Stage) -> Collection<Document> {
    let name = format!("{}_cups_outbox", stage.namespace);
    stage.database.collection(&name)
}

#[tokio::test]
async fn each_component_is_seen_as_its_replicas_see_it() {
    let beside = Beside::start().await;
    let stage = &beside.stage;
    // Nobody sends what is not due.
    let owing = with(row("owing", -3600), "outstanding", vec!["amqp/boiled"]);
    stage.insert([row("soon", -3600), owing]).await;
    cups(stage).insert_one(row("cup", -3600)).await.unwrap();

    let table = stage.run(&["status"]).await.ends_with(0);
    assert!(
        table.out.contains("64 to 128") && !table.out.contains("nobody"),
        "{table:?}"
    );

    let checked = stage.run(&["check"]).await.ends_with(0);
    for false_alarm in ["no member serves", "nobody here knows", "wrong"] {
        assert!(!checked.out.contains(false_alarm), "{checked:?}");
    }

    let exchange = format!("{}.cups.created", stage.namespace);
    let created = Checker::bind(&stage.amqp, &exchange).await;
    let ran = stage.run(&["publish", "cup", "soon"]).await.ends_with(0);
    ran.line("sent 2 rows as 2 messages, 0 failed, 2 marked");
    created.wait_for(1, PATIENCE).await;
    let cup = cups(stage)
        .find_one(doc! { "_id": "cup" })
        .await
        .unwrap()
        .unwrap();
    assert!(
        cup.get_bool("published").unwrap() && !cup.contains_key("outstanding"),
        "{cup}"
    );
    let pot = stage
        .rows()
        .find_one(doc! { "_id": "soon" })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        pot.get_array("outstanding").unwrap(),
        &["amqp/boiled".into()],
        "{pot}"
    );
}
