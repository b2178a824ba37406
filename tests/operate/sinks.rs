//! `sinks`: what there is, paused, resumed and removed, beside services that run.

use std::time::Duration;

use bson::doc;

use crate::{
    stage::Stage,
    support::eventually,
    till::{Conduct, PATIENCE, Till, create},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_paused_by_a_circuit_and_resumed_by_no_other() {
    let (stage, till) = (Stage::new().await, Till::default());
    let pots = stage.service(&[("till", &till)]).await;
    let paused = stage
        .quick(&["sinks", "pause", "till", "--reason", "a count", "--json"])
        .await
        .ends_with(0)
        .json();
    let circuit = paused[0]["circuit"].as_str().unwrap();
    let again = stage.quick(&["sinks", "pause", "till"]).await.ends_with(0);
    assert!(
        again.line("was paused already: a count").contains(circuit),
        "{again:?}"
    );
    let sink = stage.sink("till").await;
    assert_eq!(sink["paused"]["circuit"], circuit);
    let before = stage.stands(&pots, "till").await;
    create(&pots, 19).await;
    stage
        .rows_come_to(20, doc! { "outstanding": ["till/created"] })
        .await;
    assert_eq!(till.taken().len() as u64, before);
    let sink = stage.sink("till").await;
    assert_eq!(sink["owed"], 20);
    let pinned = sink["pins"]["row"].as_str().unwrap().to_owned();
    let table = stage.quick(&["sinks", "list"]).await.ends_with(0);
    assert!(
        table.line("till is paused").contains("a count"),
        "{table:?}"
    );
    assert!(table.out.contains(&pinned), "{table:?}");
    assert!(table.line("amqp ").contains("broker"), "{table:?}");
    let checked = stage.quick(&["check"]).await;
    assert!(
        checked.line("it is paused: a count").contains(circuit),
        "{checked:?}"
    );
    let status = stage.quick(&["status"]).await.ends_with(0);
    assert!(status.line("till ").contains("paused"), "{status:?}");

    let wrong = stage
        .quick(&["sinks", "resume", "till", "--circuit", "other"])
        .await
        .ends_with(2);
    assert!(
        wrong.err.contains("sinks list") && !wrong.err.contains(circuit),
        "{wrong:?}"
    );
    assert_eq!(stage.sink("till").await["paused"]["circuit"], circuit);
    let few = [
        "sinks",
        "resume",
        "till",
        "--circuit",
        circuit,
        "--max-rows",
        "5",
    ];
    let few = stage.quick(&few).await.ends_with(2);
    assert!(few.err.contains("20 rows"), "{few:?}");
    let resumed = [
        "sinks",
        "resume",
        "till",
        "--circuit",
        circuit,
        "--canary",
        "--approval",
        "OPS-7",
    ];
    stage.quick(&resumed).await.ends_with(0).line("resumed");
    stage
        .rows_come_to(before + 20, doc! { "published": true })
        .await;
    let taken = till.taken();
    assert!(taken.values().all(|&times| times == 1));
    assert_eq!(taken.len() as u64, before + 20);
    let approved = doc! { "_id.approval": "OPS-7", "_id.sink": "till" };
    assert_eq!(stage.registry().count_documents(approved).await.unwrap(), 1);
    stage
        .quick(&["sinks", "resume", "till", "--circuit", circuit])
        .await
        .ends_with(0)
        .line("nothing to do");
    let stranger = stage.quick(&["sinks", "pause", "tell"]).await.ends_with(2);
    assert!(stranger.err.contains("till"), "{stranger:?}");
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_resumed_for_nobody_is_paused_again() {
    let (stage, till) = (Stage::new().await, Till::that(Conduct::Fails));
    let pots = stage.service(&[("till", &till)]).await;
    create(&pots, 3).await;
    stage
        .rows_come_to(3, doc! { "outstanding": ["retrying till/created"] })
        .await;
    pots.shutdown().await;
    let paused = stage
        .quick(&["sinks", "pause", "till", "--json"])
        .await
        .json();
    let circuit = paused[0]["circuit"].as_str().unwrap();
    let resume = [
        "sinks",
        "resume",
        "till",
        "--circuit",
        circuit,
        "--canary",
        "--max-time",
        "1s",
    ];
    let ran = stage.quick(&resume).await.ends_with(1);
    assert!(
        ran.err.contains("paused again by the same circuit"),
        "{ran:?}"
    );
    assert_eq!(stage.sink("till").await["paused"]["circuit"], circuit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_gone_is_removed_and_its_rows_released() {
    let (stage, till) = (Stage::new().await, Till::default());
    let pots = stage.service(&[("till", &till)]).await;
    pots.shutdown().await;
    let other = Till::default();
    // The next version has another.
    let pots = stage.service(&[("ledger", &other)]).await;
    create(&pots, 30).await;
    stage
        .rows_come_to(30, doc! { "outstanding": ["till/created"] })
        .await;
    let sink = stage.sink("till").await;
    assert_eq!(
        (&sink["served"], &sink["owed"]),
        (&false.into(), &30.into())
    );
    let checked = stage.quick(&["check"]).await;
    let line = checked.line("nobody serves it, and 30 rows are kept");
    assert!(line.contains("toa-outbox sinks remove till"), "{checked:?}");

    let served = stage
        .quick(&["sinks", "remove", "ledger", "--yes"])
        .await
        .ends_with(1);
    assert!(served.err.contains("is served by"), "{served:?}");
    stage
        .quick(&["sinks", "remove", "till", "--dry-run"])
        .await
        .ends_with(0)
        .line("30 rows would be released");
    let meant = stage.quick(&["sinks", "remove", "till"]).await.ends_with(2);
    assert!(meant.err.contains("add --yes"), "{meant:?}");
    assert_eq!(stage.sink("till").await["owed"], 30);
    stage
        .quick(&["sinks", "remove", "till", "--yes"])
        .await
        .ends_with(0)
        .line("removed");
    assert_eq!(
        stage
            .rows()
            .count_documents(doc! { "published": true })
            .await
            .unwrap(),
        30
    );
    assert_eq!(
        stage
            .registry()
            .count_documents(doc! { "_id.sink": "till" })
            .await
            .unwrap(),
        0
    );
    pots.shutdown().await;
}

/// A row is kept for as long as it is owed, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_paused_for_longer_than_the_retention_loses_nothing() {
    let (stage, till) = (Stage::new().await, Till::default());
    let pots = stage
        .service_with(&[("till", &till)], |settings| {
            settings.retention = Duration::from_secs(1);
        })
        .await;
    stage.quick(&["sinks", "pause", "till"]).await.ends_with(0);
    stage.stands(&pots, "till").await;
    create(&pots, 9).await;
    stage
        .rows_come_to(10, doc! { "outstanding": ["till/created"] })
        .await;
    // One that is owed to nobody goes, and so the reaper has been there.
    let past = bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() - 5000);
    let done = crate::stage::with(
        crate::stage::published(crate::stage::row("done", 9)),
        "publishedAt",
        past,
    );
    stage.insert([done]).await;
    eventually(2 * PATIENCE, "the reaper has been there", async || {
        stage
            .rows()
            .count_documents(doc! { "_id": "done" })
            .await
            .unwrap()
            == 0
    })
    .await;
    stage.rows_come_to(10, doc! { "published": false }).await;
    let sink = stage.sink("till").await;
    assert_eq!(sink["owed"], 10);
    assert!(sink["pins"]["seconds"].as_i64().unwrap() >= 0, "{sink}");
    pots.shutdown().await;
    stage
        .quick(&["sinks", "remove", "till", "--yes"])
        .await
        .ends_with(0)
        .line("10 rows released");
    stage.rows_come_to(0, doc! { "published": false }).await;
    assert_eq!(
        stage
            .registry()
            .count_documents(doc! { "_id.sink": "till" })
            .await
            .unwrap(),
        0
    );
    let listed = stage
        .quick(&["sinks", "list", "--json"])
        .await
        .ends_with(0)
        .json();
    assert!(
        listed.iter().all(|sink| sink["sink"] != "till"),
        "{listed:?}"
    );
}

#[tokio::test]
async fn init_makes_what_they_need() {
    let stage = Stage::new().await;
    let would = stage
        .run(&["init", "--sinks", "--dry-run", &stage.outbox()])
        .await
        .ends_with(0);
    would.line("would create the collection of failed deliveries");
    would.line("would create the index { outstanding: 1");
    stage
        .run(&["init", "--sinks", &stage.outbox()])
        .await
        .ends_with(0);
    assert_eq!(
        stage.deliveries().list_index_names().await.unwrap().len(),
        4
    );
    let again = stage
        .run(&["init", "--sinks", "--dry-run"])
        .await
        .ends_with(0);
    again.line("nothing to do");
}
