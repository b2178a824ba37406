//! Rows that were changed after they were written, and parts of events that are never written.

use bson::{Document, doc};
use toa_outbox::{Entry, Error, Event, Outbox, Redact, RowId};

use crate::{
    rig::{PATIENCE, Rig, id},
    support::{Checker, Mongo, servers},
};

const KEY: &str = "a key of sixteen";

fn ids(consumer: &Checker) -> Vec<String> {
    let received = consumer.received();
    let mut ids: Vec<String> = received.iter().map(|one| one.message_id.clone()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn a_row_that_was_edited_is_not_sent_and_delays_no_other() {
    let mut rig = Rig::shared().await;
    rig.component = rig.component.clone().integrity(true);
    rig.settings.defer = true;
    let created = rig.consume("created").await;
    let pots = rig.quiet(|builder| builder).await;
    for material in ["glass", "clay", "tin"] {
        pots.create(doc! { "material": material }, doc! {})
            .await
            .unwrap();
    }
    rig.rows()
        .update_one(
            doc! { "event.state.material": "clay" },
            doc! { "$set": { "event.state.material": "gold" } },
        )
        .await
        .unwrap();
    // One of a replica that writes no digests yet.
    rig.seed(1, |_, _| {}).await;
    let good = rig
        .ids(doc! { "event.state.material": { "$ne": "gold" } })
        .await;
    let pass = pots.pass().await.unwrap();
    assert_eq!(pass.malformed, 1);
    created.wait_for(3, PATIENCE).await;
    assert!(ids(&created).iter().all(|id| good.contains(id)));
    // Again, and nothing more.
    assert_eq!(pots.pass().await.unwrap().malformed, 1);
    assert_eq!(created.count(), 3);
    rig.settled_but(1).await;
    // Mended, it leaves.
    rig.rows()
        .update_one(
            doc! { "published": false },
            doc! { "$set": { "event.state.material": "clay" } },
        )
        .await
        .unwrap();
    pots.pass().await.unwrap();
    created.wait_for(4, PATIENCE).await;
    rig.settled().await;
}

fn redact() -> [Redact; 3] {
    [
        Redact::dropped("state.card"),
        Redact::digested("state.owners.email").key(KEY),
        Redact::dropped("input"),
    ]
}

fn pot() -> Document {
    doc! { "_id": "blue", "card": "4242", "owners": [{ "email": "me@example.com" }] }
}

/// What is published of two changes of the pot.
async fn published(rig: &Rig, pots: &Outbox) -> Vec<serde_json::Value> {
    let (created, updated) = (rig.consume("created").await, rig.consume("updated").await);
    let state = pots.create(pot(), doc! { "card": "4242" }).await.unwrap();
    assert_eq!(
        state.get_str("card").unwrap(),
        "4242",
        "the entity is not touched"
    );
    let change = doc! { "$set": { "lid": true } };
    pots.assign(doc! { "_id": "blue" }, change, doc! { "card": "4242" })
        .await
        .unwrap();
    pots.nudge();
    created.wait_for(1, PATIENCE).await;
    updated.wait_for(1, PATIENCE).await;
    let stored = pots.entities().find_one(doc! { "card": "4242" });
    assert!(stored.await.unwrap().is_some());
    let body = |consumer: &Checker| serde_json::from_slice(&consumer.received()[0].body).unwrap();
    vec![body(&created), body(&updated)]
}

#[tokio::test]
async fn what_is_redacted_is_neither_stored_nor_published_at_once_later_or_inline() {
    let mut live = Rig::shared().await;
    live.component = live.component.clone().redact(redact()).integrity(true);
    let at_once = published(&live, &live.open().await).await;
    live.settled().await;
    let rows = live.count(doc! {}).await;
    let clean = live.count(doc! {
        "event.state.card": null, "event.origin.card": null, "event.input": null,
        "event.state.owners.email": { "$regex": "^hmac-sha256:[0-9a-f]{64}$" },
    });
    assert_eq!((rows, clean.await), (2, 2));

    let mut deferred = Rig::shared().await;
    deferred.component = deferred.component.clone().redact(redact());
    deferred.settings.defer = true;
    let later = published(&deferred, &deferred.open().await).await;
    assert_eq!(at_once, later);

    let mongo = Mongo::standalone().await;
    let mut alone = Rig::new(&mongo.uri(), &servers().await.rabbit.uri()).await;
    alone.component = alone.component.clone().redact(redact());
    let inline = published(&alone, &alone.open().await).await;
    assert_eq!(at_once, inline);
    assert!(!format!("{at_once:?}").contains("4242") && !format!("{at_once:?}").contains('@'));
}

#[tokio::test]
async fn the_same_event_under_the_same_id_is_the_same_as_it_is_stored() {
    let mut rig = Rig::shared().await;
    rig.component = rig.component.clone().redact(redact()).integrity(true);
    let pots = rig.open().await;
    let row = RowId::new();
    let append = async |pot: Document| {
        let mut session = rig.database.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let entry = Entry::new(Event::created(pot)).id(row.clone());
        let written = pots.append(&mut session, entry).await;
        session.commit_transaction().await.unwrap();
        written.map(|_| ())
    };
    append(pot()).await.unwrap();
    append(pot()).await.unwrap();
    // Another card makes no difference, since none is stored.
    let mut other = pot();
    other.insert("card", "4343");
    append(other).await.unwrap();
    let mut other = pot();
    other.insert("owners", vec![doc! { "email": "you@example.com" }]);
    assert!(matches!(append(other).await, Err(Error::IdTaken { .. })));
    let stored = rig.rows().find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(
        (id(&stored), rig.count(doc! {}).await),
        (row.to_string(), 1)
    );
}

#[tokio::test]
async fn a_path_that_cannot_be_redacted_is_refused_by_its_name() {
    let rig = Rig::shared().await;
    let component = rig
        .component
        .clone()
        .redact([Redact::dropped("stat.email")]);
    let opened = Outbox::open(&rig.database, component, rig.settings.clone()).await;
    let Err(error @ Error::Component { .. }) = opened else {
        panic!("it was opened");
    };
    assert!(error.to_string().contains("\"stat.email\""), "{error}");
}
