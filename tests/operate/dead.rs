//! `dead` and `deliveries`: what was given up is looked at, sent again once, or discarded.

use bson::{Document, doc};
use futures::TryStreamExt;

use crate::{
    stage::Stage,
    till::{Conduct, Till, create},
};

/// The ids of the rows of failed deliveries, as the program prints them.
async fn dead(stage: &Stage) -> Vec<String> {
    let listed = stage
        .quick(&["dead", "list", "--json", "--limit", "0"])
        .await
        .ends_with(0);
    let id = |one: &serde_json::Value| one["id"].as_str().unwrap().to_owned();
    listed.json().iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_are_replayed_by_two_at_once_and_each_is_sent_once() {
    let (stage, till) = (Stage::new().await, Till::that(Conduct::Rejects));
    let pots = stage.service(&[("till", &till)]).await;
    create(&pots, 510).await;
    stage
        .deliveries_come_to(510, doc! { "state": "dead" })
        .await;
    assert_eq!(stage.sink("till").await["dead"], 510);
    let all = dead(&stage).await;
    assert_eq!(all.len(), 510);
    let listed = stage.quick(&["dead", "list"]).await.ends_with(0);
    assert_eq!(listed.out.lines().count(), 100);

    let discarded: Vec<&str> = all[..10].iter().map(String::as_str).collect();
    let discard = [&["dead", "discard"], &discarded[..]].concat();
    stage
        .quick(&discard)
        .await
        .ends_with(0)
        .line("discarded 10 deliveries");
    let before = stage
        .quick(&["dead", "replay", "--all", "--limit", "0"])
        .await
        .ends_with(2);
    assert!(
        before.err.contains("500 rows would go") && before.err.contains("--approval"),
        "{before:?}"
    );
    assert_eq!(dead(&stage).await.len(), 500);

    till.now(Conduct::Takes);
    let replay = [
        "dead",
        "replay",
        "--all",
        "--limit",
        "0",
        "--approval",
        "OPS-17",
        "--json",
    ];
    let (one, other) = tokio::join!(stage.quick(&replay), stage.quick(&replay));
    let replayed = |ran: crate::stage::Ran| {
        let summary = ran
            .ends_with(0)
            .json()
            .into_iter()
            .find(|line| !line["replayed"].is_null());
        summary.unwrap()["replayed"].as_u64().unwrap()
    };
    assert_eq!(replayed(one) + replayed(other), 500);
    stage.deliveries_come_to(0, doc! {}).await;
    let taken = till.taken();
    assert_eq!((taken.len(), till.replays()), (500, 500));
    assert!(taken.values().all(|&times| times == 1));
    assert!(discarded.iter().all(|id| !taken.contains_key(*id)));
    let nothing = stage
        .quick(&["dead", "replay", discarded[0]])
        .await
        .ends_with(0);
    nothing.line("nothing is dead");
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_replayed_after_its_row_has_gone_and_to_its_sink_alone() {
    let (stage, bad, good) = (
        Stage::new().await,
        Till::that(Conduct::Rejects),
        Till::default(),
    );
    let pots = stage.service(&[("bad", &bad), ("good", &good)]).await;
    create(&pots, 2).await;
    stage.rows_come_to(2, doc! { "published": true }).await;
    stage.rows().delete_many(doc! {}).await.unwrap();
    let all = dead(&stage).await;
    let shown = stage.quick(&["dead", "show", &all[0]]).await.ends_with(0);
    assert!(
        shown.out.contains("\"material\": \"clay\"") && shown.out.contains("dead"),
        "{shown:?}"
    );

    let dry = stage
        .quick(&["dead", "replay", &all[0], "--dry-run"])
        .await
        .ends_with(0);
    dry.line("would replay 1 deliveries");
    // It fails again, and nothing else goes.
    let canary = stage
        .quick(&["dead", "replay", "--sink", "bad", "--canary"])
        .await
        .ends_with(1);
    assert!(canary.err.contains("was given up again"), "{canary:?}");
    assert_eq!(dead(&stage).await.len(), 2);
    bad.now(Conduct::Takes);
    let canary = stage
        .quick(&["dead", "replay", "--sink", "bad", "--canary"])
        .await
        .ends_with(0);
    canary.line("replayed 2 deliveries");
    stage.deliveries_come_to(0, doc! {}).await;
    assert_eq!(
        (bad.taken().len(), bad.replays(), good.replays()),
        (2, 2, 0)
    );
    assert!(good.taken().values().all(|&times| times == 1));
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_became_of_a_row_is_told_sink_by_sink() {
    let stage = Stage::new().await;
    let [good, bad, away, gone, stuck] = [
        Conduct::Takes,
        Conduct::Rejects,
        Conduct::Takes,
        Conduct::Rejects,
        Conduct::Fails,
    ]
    .map(Till::that);
    let sinks = [
        ("good", &good),
        ("bad", &bad),
        ("away", &away),
        ("gone", &gone),
        ("stuck", &stuck),
    ];
    // Registered before it is paused, and paused before the others are there.
    let pots = stage.service(&[("away", &away)]).await;
    stage.quick(&["sinks", "pause", "away"]).await.ends_with(0);
    stage.stands(&pots, "away").await;
    pots.shutdown().await;
    stage.rows().delete_many(doc! {}).await.unwrap();
    let pots = stage.service(&sinks).await;
    create(&pots, 1).await;
    let owes =
        doc! { "outstanding": { "$all": ["away/created", "retrying stuck/created"], "$size": 2 } };
    stage.rows_come_to(1, owes).await;
    pots.shutdown().await;
    let abandoned = doc! { "$set": { "state": "abandoned" } };
    stage
        .deliveries()
        .update_one(doc! { "sink": "gone" }, abandoned)
        .await
        .unwrap();

    let rows: Vec<Document> = stage
        .rows()
        .find(doc! {})
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let id = dead(&stage).await[0].clone();
    let states = async || {
        let told = stage
            .quick(&["deliveries", &id, "--json"])
            .await
            .ends_with(0)
            .json();
        let mut states: Vec<(String, String)> = told
            .iter()
            .filter(|state| state["label"] == "created")
            .map(|state| {
                let text = |field: &str| state[field].as_str().unwrap().to_owned();
                (text("sink"), text("state"))
            })
            .collect();
        states.sort();
        states
    };
    let expected = |away: &str| {
        [
            ("amqp", "taken"),
            ("away", away),
            ("bad", "dead"),
            ("gone", "abandoned"),
            ("good", "taken"),
            ("stuck", "retrying"),
        ]
        .map(|(sink, state)| (sink.to_owned(), state.to_owned()))
    };
    assert_eq!(states().await, expected("outstanding"), "{rows:?}");
    let told = stage.quick(&["deliveries", &id]).await.ends_with(0);
    told.line("abandoned");
    let is_deleted = |line: &&str| line.contains("deleted");
    for line in told.out.lines().filter(is_deleted) {
        assert!(
            line.contains("skipped") && line.contains("does not hold"),
            "{told:?}"
        );
    }
    assert!(told.out.lines().any(|line| is_deleted(&line)), "{told:?}");
    stage.rows().delete_many(doc! {}).await.unwrap();
    assert_eq!(states().await, expected("taken"));
    let sink = stage.sink("gone").await;
    assert_eq!((&sink["dead"], &sink["abandoned"]), (&0.into(), &1.into()));
    let one = stage
        .quick(&["dead", "list", "--sink", "gone", "--label", "created"])
        .await;
    one.ends_with(0).line("abandoned");
    let none = stage
        .quick(&["dead", "list", "--label", "updated"])
        .await
        .ends_with(0);
    assert_eq!((none.out.as_str(), none.err.as_str()), ("", ""));
    for (command, is_data) in [("list", true), ("replay", false), ("discard", false)] {
        let misspelt = ["dead", command, "--sink", "goon"];
        let ran = stage.quick(&misspelt).await.ends_with(0);
        let told = if is_data { &ran.err } else { &ran.out };
        assert!(
            told.contains("goon: there is no such sink; there are amqp, away"),
            "{ran:?}"
        );
    }
    let retrying = stage
        .quick(&["dead", "replay", &id, "--sink", "stuck"])
        .await
        .ends_with(0);
    retrying.line("stuck/created is retrying");
    stage.quick(&["deliveries", "nothing"]).await.ends_with(1);
}
