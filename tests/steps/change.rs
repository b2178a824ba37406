//! Pots are created and changed, one at a time.

use bson::{Bson, Document, doc};
use cucumber::{gherkin::Step, then, when};

use super::{
    json,
    world::{PATIENCE, Tea},
};

pub fn now() -> i64 {
    bson::DateTime::now().timestamp_millis()
}

/// The state of a pot.
pub fn of(pot: &str, fields: Document) -> Document {
    let mut state = doc! { "_id": pot };
    state.extend(fields);
    state
}

#[when(
    regex = r#"^the pot "(\w+)" is created( in vain)?(?: with (\{.*?\}))?(?: and the input (\{.*\}))?$"#
)]
async fn create(w: &mut Tea, pot: String, vain: String, fields: String, input: String) {
    let service = w.service().await;
    let state = of(&pot, json::or_empty(&fields));
    let before = now();
    let result = service.create(state, json::or_null(&input)).await;
    w.written = (before, now());
    w.pot = pot;
    w.done(result, &vain);
}

#[when(regex = r#"^the pot "(\w+)" is created with these fields:$"#)]
async fn create_with(w: &mut Tea, pot: String, step: &Step) {
    let rows = step.table.as_ref().expect("a table").rows.iter().skip(1);
    w.fields = rows
        .clone()
        .map(|row| (row[0].clone(), json::value(&row[2])))
        .collect();
    let fields = rows
        .map(|row| (row[0].clone(), json::bson(&row[1])))
        .collect();
    w.service()
        .await
        .create(of(&pot, fields), Bson::Null)
        .await
        .unwrap();
}

#[when(regex = r#"^the pot "(\w+)" is being created$"#)]
async fn being_created(w: &mut Tea, pot: String) {
    let service = w.service().await;
    w.running = Some(tokio::spawn(async move {
        service.create(of(&pot, doc! {}), Bson::Null).await.unwrap();
    }));
}

#[then("the operation is not over")]
fn not_over(w: &mut Tea) {
    assert!(!w.running.as_ref().expect("an operation").is_finished());
}

#[then("the operation is over")]
async fn over(w: &mut Tea) {
    let running = w.running.take().expect("an operation");
    tokio::time::timeout(PATIENCE, running)
        .await
        .expect("over")
        .unwrap();
}

#[when(
    regex = r#"^the pot "(\w+)" is transited to (\{.*?\})(?: with the input (\{.*\}))?(?: with the trailers (\{.*\}))?( in vain)?$"#
)]
async fn transit(
    w: &mut Tea,
    pot: String,
    to: String,
    input: String,
    trailers: String,
    vain: String,
) {
    let service = w.service().await;
    let result = service.transit(pot.as_str(), json::or_null(&input), |state, attached| {
        state.extend(json::document(&to));
        attached.extend(json::or_empty(&trailers));
        Ok(())
    });
    let result = result.await;
    w.done(result, &vain);
}

#[when(
    regex = r#"^the pot "(\w+)" is assigned (\{.*?\})(?: with the input (\{.*\}))?( in vain)?$"#
)]
async fn assign(w: &mut Tea, pot: String, update: String, input: String, vain: String) {
    let service = w.service().await;
    let (filter, update) = (doc! { "_id": pot }, json::document(&update));
    let result = service.assign(filter, update, json::or_null(&input)).await;
    w.done(result, &vain);
}

#[when(regex = r#"^the pot "(\w+)" is terminated( in vain)?$"#)]
async fn terminate(w: &mut Tea, pot: String, vain: String) {
    let result = w.service().await.terminate(pot, Bson::Null).await;
    w.done(result, &vain);
}

#[then(regex = r"^the caller is told: (.+)$")]
fn is_told(w: &mut Tea, expected: String) {
    let told = w.refusal.take().expect("something done in vain");
    assert!(told.contains(&expected), "{told}");
}
