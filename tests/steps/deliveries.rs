//! What failed on its way to a sink, as it stands in its collection.

use bson::{Bson, Document, doc};
use cucumber::{then, when};
use mongodb::Collection;

use super::{
    row,
    world::{PATIENCE, Tea},
};
use crate::support::eventually;

impl Tea {
    fn deliveries(&self) -> Collection<Document> {
        let name = format!("{}_deliveries", self.rows().name());
        self.database.collection(&name)
    }

    fn registry(&self) -> Collection<Document> {
        self.database.collection("outbox_sinks")
    }

    async fn delivery_of(&self, label: &str, pot: &str, sink: &str) -> Option<Document> {
        let row = row::row(self, pot).await?;
        let id = doc! { "row": row.get("_id").cloned(), "route": format!("{sink}/{label}") };
        self.deliveries()
            .find_one(doc! { "_id": id })
            .await
            .unwrap()
    }
}

#[then(
    regex = r#"^the delivery of "(\w+)" of the pot "(\S+)" to "(\S+)" is (retrying|dead)(?: after (\d+) attempts?)?$"#
)]
async fn is(w: &mut Tea, label: String, pot: String, sink: String, state: String, after: String) {
    let after: Option<i32> = after.parse().ok();
    eventually(PATIENCE, "the delivery is as it should", async || {
        let Some(delivery) = w.delivery_of(&label, &pot, &sink).await else {
            return false;
        };
        let attempts = delivery.get_i32("attempts").unwrap();
        delivery.get_str("state").unwrap() == state && after.is_none_or(|after| after == attempts)
    })
    .await;
    w.pot = pot;
    w.failed = w.delivery_of(&label, &w.pot, &sink).await;
}

#[then("its row is kept with it")]
async fn kept(w: &mut Tea) {
    let delivery = w.failed.as_ref().expect("a delivery was spoken of");
    let copy = delivery.get_document("row").unwrap();
    let row = row::row(w, &w.pot).await.unwrap();
    assert_eq!(
        (copy.get("_id"), copy.get("event")),
        (row.get("_id"), row.get("event"))
    );
    assert!(delivery.get_datetime("deadAt").is_ok());
    assert!(delivery.get_str("error").unwrap().len() <= 256);
}

#[then("no delivery is known")]
async fn none(w: &mut Tea) {
    eventually(PATIENCE, "none is known", async || {
        w.deliveries().count_documents(doc! {}).await.unwrap() == 0
    })
    .await;
}

#[when("one that died had claimed it")]
async fn claimed(w: &mut Tea) {
    let claim = doc! { "claim": bson::Uuid::new(), "next": bson::DateTime::from_millis(soon()) };
    w.deliveries()
        .update_many(doc! {}, doc! { "$set": claim })
        .await
        .unwrap();
}

#[when("every delivery is deleted")]
async fn deleted(w: &mut Tea) {
    w.deliveries().delete_many(doc! {}).await.unwrap();
}

#[when("one that died had just given it up")]
async fn given_up(w: &mut Tea) {
    let row = row::row(w, &w.pot).await.unwrap();
    let now = bson::DateTime::now();
    let dead = doc! { "state": "dead", "attempts": 7, "deadAt": now, "next": now, "row": row };
    w.deliveries()
        .update_many(doc! {}, doc! { "$set": dead })
        .await
        .unwrap();
}

/// When a claim ends that the scenario can wait for.
fn soon() -> i64 {
    bson::DateTime::now().timestamp_millis() + 3000
}

#[then(regex = r#"^the sink "(\S+)" is paused by the circuit "(\S+)"$"#)]
async fn paused(w: &mut Tea, sink: String, circuit: String) {
    let paused = doc! { "_id": { "sink": sink }, "paused.circuit": circuit };
    eventually(PATIENCE, "it is paused", async || {
        w.registry()
            .find_one(paused.clone())
            .await
            .unwrap()
            .is_some()
    })
    .await;
}

#[when(regex = r#"^the sink "(\S+)" is resumed$"#)]
async fn resumed(w: &mut Tea, sink: String) {
    w.registry()
        .delete_one(doc! { "_id": { "sink": sink } })
        .await
        .unwrap();
}

#[then(regex = r#"^each row owes "(\S+)" or nothing$"#)]
async fn each_owes(w: &mut Tea, route: String) {
    let more = doc! { "published": false, "outstanding": { "$ne": [Bson::from(route)] } };
    eventually(PATIENCE, "nothing else is owed", async || {
        w.count(more.clone()).await == 0
    })
    .await;
}

#[then(regex = r#"^it owes "(.+)" alone$"#)]
async fn owes_alone(w: &mut Tea, route: String) {
    let owed = doc! { "event.state._id": &w.pot, "outstanding": [Bson::from(route)] };
    eventually(PATIENCE, "it owes that alone", async || {
        w.count(owed.clone()).await == 1
    })
    .await;
}

#[when("nine of its attempts have failed")]
async fn nine_failed(w: &mut Tea) {
    let nine = doc! { "$set": { "attempts": 9, "next": bson::DateTime::now() } };
    w.deliveries().update_many(doc! {}, nine).await.unwrap();
}

#[then(regex = r#"^(\d+) deliveries are abandoned$"#)]
async fn abandoned(w: &mut Tea, count: u64) {
    let abandoned = doc! { "state": "abandoned", "row.event": { "$exists": true } };
    eventually(PATIENCE, "they are abandoned", async || {
        w.deliveries()
            .count_documents(abandoned.clone())
            .await
            .unwrap()
            == count
    })
    .await;
}
