//! What is delivered once more because an operator asks for it.

use std::sync::{Arc, Mutex};

use bson::{DateTime, Document, doc};
use mongodb::Collection;
use toa_outbox::{BoxError, Message, Outbox, Policy, Sink, SinkOptions, Verdict};

use crate::{
    rig::{PATIENCE, Rig},
    support::eventually,
};

/// Whether it was a replay, and its body.
type Taken = (bool, Vec<u8>);

/// Keeps what it takes.
#[derive(Clone, Default)]
struct Bodies(Arc<Mutex<Vec<Taken>>>);

impl Sink for Bodies {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let taken = batch
            .iter()
            .map(|one| (one.is_replay(), one.body().to_vec()));
        self.0.lock().unwrap().extend(taken);
        Ok(vec![Verdict::Accepted; batch.len()])
    }
}

#[tokio::test]
async fn an_audit_is_given_the_whole_event_again() {
    let rig = Rig::shared().await;
    let sink = Bodies::default();
    let options = SinkOptions::audit().policy(Policy::backoff());
    let pots = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone())
        .sink_with("audit", ["*.created"], sink.clone(), options)
        .open()
        .await
        .unwrap();
    rig.seed(1, |_, _| {}).await;
    rig.settled().await;
    let row = rig.rows().find_one(doc! {}).await.unwrap().unwrap();
    let replayed = doc! {
        "_id": { "row": row.get("_id").cloned(), "route": "audit/created" },
        "sink": "audit", "state": "retrying", "replay": true, "attempts": 0,
        "next": DateTime::now(), "row": row,
    };
    let name = format!("{}_deliveries", rig.rows().name());
    let deliveries: Collection<Document> = rig.database.collection(&name);
    deliveries.insert_one(replayed).await.unwrap();
    eventually(PATIENCE, "it is replayed", async || {
        sink.0.lock().unwrap().len() == 2
    })
    .await;
    let bodies = sink.0.lock().unwrap().clone();
    let ((first, body), (again, same)) = (&bodies[0], &bodies[1]);
    assert!(!first && *again);
    assert_eq!(String::from_utf8_lossy(same), String::from_utf8_lossy(body));
    pots.shutdown().await;
}
