//! The ceiling of the backlog: what is over it is refused, and what is there stays.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures::future::join_all;
use toa_outbox::{Ceiling, Entry, Error, Event, Outbox, RowId, Settings};

use crate::{
    rig::{PATIENCE, Rig},
    support::{Mongo, eventually, servers},
};

/// A component whose rows nobody publishes.
async fn waiting(ceiling: Ceiling) -> Rig {
    let mut rig = Rig::shared().await;
    hold(&mut rig, ceiling);
    rig
}

fn hold(rig: &mut Rig, ceiling: Ceiling) {
    rig.settings = Settings {
        // Nobody listens there.
        amqp: vec!["amqp://127.0.0.1:1".into()],
        ceiling: Some(ceiling),
        ..rig.settings.clone()
    };
}

async fn create(pots: &Outbox, size: usize) -> toa_outbox::Result<Document> {
    let pot = doc! { "clay": "x".repeat(size) };
    pots.create(pot, 1).await
}

/// Writes until it is refused.
async fn fill(pots: &Outbox, size: usize) {
    for _ in 0..5000 {
        if !taken(create(pots, size).await) {
            return;
        }
    }
    panic!("it is never refused");
}

fn taken(outcome: toa_outbox::Result<Document>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(Error::Ceiling { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn several_writers_at_once_exceed_it_by_no_more_than_is_said() {
    const CEILING: u64 = 64;
    const REPLICAS: u64 = 4;
    const TASKS: u64 = 4;

    let rig = waiting(Ceiling::Rows(CEILING)).await;
    let replicas = join_all((0..REPLICAS).map(|_| rig.open())).await;
    let writers = replicas.iter().flat_map(|pots| vec![pots; TASKS as usize]);
    join_all(writers.map(|pots| fill(pots, 1))).await;
    eventually(PATIENCE, "nobody has room", async || {
        for pots in &replicas {
            if taken(create(pots, 1).await) {
                return false;
            }
        }
        rig.count(doc! {}).await >= CEILING
    })
    .await;
    let rows = rig.count(doc! {}).await;
    // A sixteenth for each replica, and what the tasks of the others had not committed yet.
    let most = CEILING + REPLICAS * (CEILING / 16) + (REPLICAS - 1) * TASKS;
    assert!(rows <= most, "{rows}");
    let pots = replicas[0].entities();
    assert_eq!(pots.count_documents(doc! {}).await.unwrap(), rows);
}

#[tokio::test]
async fn writing_goes_on_soon_after_rows_have_left() {
    let rig = waiting(Ceiling::Rows(20)).await;
    let pots = rig.open().await;
    fill(&pots, 1).await;
    assert_eq!(rig.count(doc! { "published": false }).await, 20);
    let id = rig.ids(doc! {}).await;
    let left = doc! { "$set": { "published": true, "publishedAt": bson::DateTime::now() } };
    rig.rows().update_one(doc! {}, left).await.unwrap();
    let begun = Instant::now();
    eventually(PATIENCE, "there is room again", async || {
        taken(create(&pots, 1).await)
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(!taken(create(&pots, 1).await));
    assert!(
        rig.ids(doc! {}).await.is_superset(&id),
        "nothing is touched"
    );
}

#[tokio::test]
async fn what_was_given_up_on_counts_too() {
    let rig = waiting(Ceiling::Rows(3)).await;
    let name = format!("{}_deliveries", rig.rows().name());
    let deliveries = rig.database.collection::<Document>(&name);
    let states = ["dead", "abandoned", "retrying"].map(|state| doc! { "state": state });
    deliveries.insert_many(states).await.unwrap();
    let pots = rig.open().await;
    assert!(taken(create(&pots, 1).await));
    assert!(!taken(create(&pots, 1).await));
    deliveries
        .delete_many(doc! { "state": "dead" })
        .await
        .unwrap();
    eventually(PATIENCE, "there is room again", async || {
        taken(create(&pots, 1).await)
    })
    .await;
}

#[tokio::test]
async fn bytes_are_counted_by_what_rows_have_on_average() {
    const CEILING: u64 = 3 << 20;
    let rig = waiting(Ceiling::Bytes(CEILING)).await;
    let clay = |index: i64| "x".repeat(if index % 3 == 0 { 3000 } else { 300 });
    rig.seed(2000, |row, index| {
        row.insert("event", doc! { "state": { "clay": clay(index) } });
    })
    .await;
    let pots = rig.open().await;
    fill(&pots, 1000).await;
    let sum = doc! { "$group": { "_id": null, "bytes": { "$sum": { "$bsonSize": "$$ROOT" } } } };
    let mut sums = rig.rows().aggregate([sum]).await.unwrap();
    assert!(sums.advance().await.unwrap());
    let bytes = sums.deserialize_current().unwrap();
    let bytes = u64::try_from(bytes.get_i32("bytes").unwrap()).unwrap();
    // By s / 16 a row: s is 1273, of 2600 rows.
    assert!(bytes.abs_diff(CEILING) < 2600 * 1273 / 16, "{bytes}");
}

#[tokio::test]
async fn what_is_there_already_is_found_and_all_else_refused_before_it_is_written() {
    let rig = waiting(Ceiling::Rows(1)).await;
    let pots = rig.open().await;
    let id = RowId::new();
    let append = async |id: &RowId| {
        let mut session = rig.database.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let entry = Entry::new(Event::created(doc! { "_id": "secret" })).id(id.clone());
        let written = pots.append(&mut session, entry).await;
        // The transaction goes on all the same.
        session.commit_transaction().await.unwrap();
        written
    };
    append(&id).await.unwrap();
    assert!(append(&id).await.unwrap().is_some());
    let Err(error) = append(&RowId::new()).await else {
        panic!("it was written");
    };
    assert!(matches!(
        error,
        Error::Ceiling {
            ceiling: Ceiling::Rows(1)
        }
    ));
    assert!(
        error.again() && !error.to_string().contains("secret"),
        "{error}"
    );
    assert_eq!(rig.count(doc! {}).await, 1);
}

#[tokio::test]
async fn a_count_that_fails_refuses_nothing() {
    let (_alone, set, mut rig) = crate::write::failing().await;
    hold(&mut rig, Ceiling::Rows(1));
    set.fail_command(doc! {
        "mode": "alwaysOn",
        "data": { "failCommands": ["aggregate"], "errorCode": 96 },
    })
    .await;
    let pots = rig.open().await;
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        outcomes.push(create(&pots, 1).await);
    }
    set.fail_off().await;
    assert!(outcomes.into_iter().all(taken));
    eventually(PATIENCE, "it holds again", async || {
        !taken(create(&pots, 1).await)
    })
    .await;
}

#[tokio::test]
async fn it_has_no_meaning_where_no_rows_are_written() {
    let mongo = Mongo::standalone().await;
    let mut rig = Rig::new(&mongo.uri(), &servers().await.rabbit.uri()).await;
    rig.settings.ceiling = Some(Ceiling::Rows(1));
    let pots = rig.open().await;
    for _ in 0..3 {
        assert!(taken(create(&pots, 1).await));
    }
}
