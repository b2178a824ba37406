//! Transactions with a body of the service's own.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    time::{Duration, SystemTime},
};

use bson::{Document, doc};
use cucumber::{then, when};
use futures::{FutureExt, future::join_all};
use mongodb::{ClientSession, options::ReturnDocument};
use toa_outbox::{Entry, Error, Event, Outbox, RowId, Transaction, Written};

use super::{change::now, json, world::Tea};

/// Stores a pot and emits its event.
async fn create(tx: &mut Transaction, pot: &str) -> toa_outbox::Result<()> {
    let state = doc! { "_id": pot, "_version": 1 };
    tx.entities()
        .insert_one(&state)
        .session(tx.session())
        .await?;
    tx.emit(Event::created(state)).await
}

#[when(
    regex = r#"^a transaction creates the pot "(\w+)" and then (gives up|violates a unique index|panics)$"#
)]
async fn ends_badly(w: &mut Tea, pot: String, end: String) {
    let service = w.service().await;
    let running = service.transaction(async |tx| {
        create(tx, &pot).await?;
        match end.as_str() {
            "gives up" => Err(Error::refused("out of clay")),
            "panics" => panic!("the pot was dropped"),
            _ => create(tx, &pot).await,
        }
    });
    let told = match AssertUnwindSafe(running).catch_unwind().await {
        Ok(result) => result.expect_err("an end").to_string(),
        Err(panic) => text(&*panic),
    };
    w.refusal = Some(told);
}

fn text(panic: &(dyn Any + Send)) -> String {
    panic.downcast_ref::<&str>().expect("a text").to_string()
}

#[when(regex = r#"^a transaction creates the pots "(\w+)" and "(\w+)"$"#)]
async fn two(w: &mut Tea, first: String, second: String) {
    let service = w.service().await;
    let running = service.transaction(async |tx| {
        create(tx, &first).await?;
        create(tx, &second).await
    });
    running.await.unwrap();
}

#[when(regex = r#"^(\d+) transactions at once each add 1 to the temperature of the pot "(\w+)"$"#)]
async fn warm(w: &mut Tea, count: usize, pot: String) {
    let service = w.service().await;
    let warmers = (0..count).map(|_| tokio::spawn(warm_once(service.clone(), pot.clone())));
    join_all(warmers)
        .await
        .into_iter()
        .for_each(|task| task.unwrap());
}

async fn warm_once(service: Outbox, pot: String) {
    let running = service.transaction(async move |tx| {
        let pots = tx.entities();
        let update = doc! { "$inc": { "temperature": 1 } };
        let warmed = pots.find_one_and_update(doc! { "_id": &pot }, update);
        let warmed = warmed.return_document(ReturnDocument::After);
        let state: Option<Document> = warmed.session(tx.session()).await?;
        let origin = doc! { "_id": &pot };
        tx.emit(Event::changed(origin, state.expect("the pot")))
            .await
    });
    running.await.unwrap();
}

#[when(
    regex = r#"^a transaction of the service's own creates the pot "(\w+)"(?:,| and) (commits and publishes|commits|aborts)$"#
)]
async fn own(w: &mut Tea, pot: String, end: String) {
    let service = w.service().await;
    let mut session = service.entities().client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let written = append(&service, &mut session, &pot).await;
    if end == "aborts" {
        session.abort_transaction().await.unwrap();
        return;
    }
    session.commit_transaction().await.unwrap();
    if end == "commits and publishes" {
        service.publish(written);
    }
}

async fn append(service: &Outbox, session: &mut ClientSession, pot: &str) -> Written {
    let state = doc! { "_id": pot, "_version": 1 };
    service
        .entities()
        .insert_one(&state)
        .session(&mut *session)
        .await
        .unwrap();
    let written = service
        .append(session, Event::created(state))
        .await
        .unwrap();
    written.expect("a row")
}

#[when(
    regex = r#"^the event (\{.*\}) is written under the id "(\w+)"(?: by (\d+) tasks)?( in vain)?$"#
)]
async fn under_id(w: &mut Tea, state: String, id: String, tasks: String, vain: String) {
    let service = w.service().await;
    let entry = Entry::new(Event::created(json::document(&state))).id(RowId::Text(id));
    let tasks = tasks.parse().unwrap_or(1);
    let written = (0..tasks).map(|_| tokio::spawn(write(service.clone(), entry.clone())));
    let results = join_all(written).await;
    let all = results.into_iter().map(|task| task.unwrap()).collect();
    w.done::<Vec<()>>(all, &vain);
}

#[when(regex = r#"^the event (\{.*\}) is written for (\d+) ms later( in vain)?$"#)]
async fn for_later(w: &mut Tea, state: String, ms: u64, vain: String) {
    let service = w.service().await;
    let state = json::document(&state);
    let pot = state.get_str("_id").unwrap().to_owned();
    let earliest = now() + ms as i64;
    let due = SystemTime::now() + Duration::from_millis(ms);
    let entry = Entry::new(Event::created(state)).not_before(due);
    let result = write(service, entry).await;
    if w.done(result, &vain).is_some() {
        let row = w.rows().find_one(doc! { "event.state._id": &pot }).await;
        let row = row.unwrap().expect("a row");
        assert!(row.get_i64("pending").unwrap() >= earliest);
        w.seeds.insert(pot, row);
    }
}

async fn write(service: Outbox, entry: Entry) -> toa_outbox::Result<()> {
    service
        .transaction(async move |tx| tx.emit(entry.clone()).await)
        .await
}

#[when(
    regex = r#"^a transaction is told that the id "(\w+)" is taken, and writes (\{.*\}) under another$"#
)]
async fn told_and_goes_on(w: &mut Tea, id: String, state: String) {
    let service = w.service().await;
    let event = Event::created(json::document(&state));
    let running = service.transaction(async move |tx| {
        let taken = Entry::new(event.clone()).id(RowId::Text(id.clone()));
        let told = tx.emit(taken).await.unwrap_err();
        assert!(matches!(told, Error::IdTaken { .. }), "{told}");
        assert!(!told.again());
        tx.emit(event.clone()).await
    });
    running.await.unwrap();
}

#[then("the caller is told that the row is too large, and how large it would be")]
fn too_large(w: &mut Tea) {
    let told = w.refusal.take().expect("something done in vain");
    let size = told
        .split_whitespace()
        .find_map(|word| word.parse::<usize>().ok());
    assert!(size.is_some_and(|size| size > 16 * 1024 * 1024), "{told}");
    assert!(told.contains("16760832"), "{told}");
}
