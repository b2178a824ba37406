//! CASES 1–3 and 5: nothing leaves before the commit, and nothing is lost or left hanging after it.

use bson::doc;

use crate::rig::{PATIENCE, Rig};

#[tokio::test]
async fn a_committed_row_reaches_a_consumer_and_is_marked() {
    let rig = Rig::shared().await;
    let created = rig.consume("created").await;
    let pots = rig.open().await;
    let pot = pots.create(doc! { "material": "glass" }, doc! { "by": "me" }).await.unwrap();
    created.wait_for(1, PATIENCE).await;
    let delivery = &created.received()[0];
    let body: serde_json::Value = serde_json::from_slice(&delivery.body).unwrap();
    assert_eq!(body["material"], "glass");
    assert_eq!(body["_id"], pot.get_object_id("_id").unwrap().to_hex());
    rig.settled().await;
    assert_eq!(pots.shutdown().await, Default::default());
    assert_eq!(created.count(), 1);
}
