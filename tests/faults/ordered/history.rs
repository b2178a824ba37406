//! A stream that does not go on from where the sink was.

use bson::doc;
use toa_outbox::SinkOptions;

use super::{Log, cursor_of, cursors, open, rig, write};
use crate::{
    rig::{PATIENCE, soak},
    support::eventually,
};

/// What is still owed comes by id, then what is committed from then on.
async fn lost(token: impl Fn(&str) -> String) {
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 10).await;
    log.has(10).await;
    rig.settled().await;
    pots.shutdown().await;
    rig.seed(300, |_, _| {}).await;
    let cursor = cursors(&rig)
        .find_one(cursor_of(&rig))
        .await
        .unwrap()
        .unwrap();
    let data = cursor
        .get_document("token")
        .unwrap()
        .get_str("_data")
        .unwrap();
    let lost = doc! { "$set": { "token": { "_data": token(data) } } };
    cursors(&rig)
        .update_one(cursor_of(&rig), lost)
        .await
        .unwrap();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    log.has(310).await;
    write(&pots, 20).await;
    log.has(330).await;
    rig.settled().await;
    assert_eq!(
        log.rows().len(),
        330,
        "none was committed meanwhile, so each comes once"
    );
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_older_than_the_history_falls_back_on_what_is_owed() {
    // Its seconds are in the first digits.
    lost(|token| format!("8200000001{}", &token[10..])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_none_falls_back_on_what_is_owed() {
    lost(|_| "nonsense".into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_dropped_and_made_again_is_followed() {
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 10).await;
    log.has(10).await;
    rig.settled().await;
    rig.rows().drop().await.unwrap();
    rig.database
        .create_collection(rig.rows().name())
        .await
        .unwrap();
    write(&pots, 10).await;
    log.has(20).await;
    rig.settled().await;
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cursor_of_a_silent_stream_is_saved_every_minute() {
    if !soak() {
        return;
    }
    let rig = rig().await;
    let log = Log::default();
    let pots = open(&rig, &log, SinkOptions::ordered()).await;
    write(&pots, 1).await;
    log.has(1).await;
    rig.settled().await;
    let token = async || {
        let cursor = cursors(&rig).find_one(cursor_of(&rig)).await.unwrap();
        cursor.unwrap().get("token").cloned()
    };
    let before = eventually(PATIENCE, "it is saved", async || token().await).await;
    eventually(PATIENCE * 3, "it is saved again", async || {
        token().await.is_some_and(|token| token != before)
    })
    .await;
    pots.shutdown().await;
}
