//! A member beats in the moment in which another evicts it.

use std::{collections::BTreeMap, time::Duration};

use bson::doc;
use futures::TryStreamExt;
use libtest_mimic::Trial;
use mongodb::Client;

use crate::{
    crew::Replica,
    dose,
    stage::{PATIENCE, Stage, assert_one_owner},
    support::{Cable, ReplicaSet, eventually},
    trial,
};

pub fn tests() -> Vec<Trial> {
    vec![trial!(the_last_beat_is_in_time)]
}

/// How often a machine that is busy may be too late with it.
const TRIES: usize = 5;

/// The server holds the eviction back until the beat is there.
async fn the_last_beat_is_in_time() {
    let set = ReplicaSet::start_with(1, &["--setParameter", "enableTestCommands=1"]).await;
    let mut stage = Stage::of(&set).await.unhurried();
    // A request has to outlast being held back.
    stage.beat = Duration::from_secs(3);
    let (consumer, client) = (stage.consume().await, set.client().await);
    let cable = Cable::to(set.port(0)).await;
    let by = |uri: String| stage.casting().with("TOA_OUTBOX_MONGODB", uri).start();
    let mut crew = vec![
        by(stage.mongo_by(cable.port())),
        by(format!("{}&appName=other", stage.mongo_by(set.port(0)))),
    ];
    stage.whole(&crew).await;
    let mut tries = 0;
    for _ in 0..dose(1, 5) {
        loop {
            stage.seed(1_000).await;
            // So that nothing but its beat waits for a connection.
            stage.all_arrive(&consumer).await;
            let members = beats(&stage).await;
            let in_time = last_beat(&set, &stage, &cable, &client, &crew[0]).await;
            let now = beats(&stage).await;
            set.fail_off().await;
            cable.mend();
            stage.whole(&crew).await;
            if in_time {
                assert!(now.keys().eq(members.keys()), "{now:?} were {members:?}");
                let now = beats(&stage).await;
                assert!(now.keys().eq(members.keys()), "{now:?} were {members:?}");
                break;
            }
            tries += 1;
            assert!(tries < TRIES, "the eviction came first, every time");
        }
    }
    println!(
        "the last beat: {} repeated, {tries} times too late",
        stage.all_arrive(&consumer).await.len()
    );
    crew[0].stop().await;
    assert_one_owner(&crew);
}

/// Whether it came before the eviction that was on its way by then.
async fn last_beat(
    set: &ReplicaSet,
    stage: &Stage,
    cable: &Cable,
    client: &Client,
    late: &Replica,
) -> bool {
    let me = me(late);
    late.pause();
    stage.seed(1_000).await;
    set.fail_command(doc! { "mode": "alwaysOn", "data": {
        "failCommands": ["findAndModify"], "appName": "other", "blockConnection": true, "blockTimeMS": 1_500,
    } })
    .await;
    eventually(PATIENCE, "it is about to be evicted", async || {
        is_evicting(client).await
    })
    .await;
    // It would renew the epoch next, and the eviction find another one. So it does not learn of its beat.
    cable.swallow_back();
    let still = beats(stage).await;
    late.resume();
    let mut in_time = false;
    eventually(PATIENCE, "the eviction is over", async || {
        // Whoever was evicted cannot beat.
        in_time |= beats(stage).await.get(&me) > still.get(&me);
        !is_evicting(client).await
    })
    .await;
    in_time
}

/// The id it has in the group.
fn me(replica: &Replica) -> String {
    let told = replica.told();
    let me = told.iter().rev().find_map(|line| line["me"].as_str());
    me.unwrap().to_owned()
}

/// Whether an eviction is on its way in the server: no other request looks for a member by its beat.
async fn is_evicting(client: &Client) -> bool {
    let stages = [
        doc! { "$currentOp": {} },
        doc! { "$match": { "command.query.members": { "$exists": true } } },
    ];
    let found = client.database("admin").aggregate(stages).await.unwrap();
    let found: Vec<_> = found.try_collect().await.unwrap();
    !found.is_empty()
}

/// The members' beats.
async fn beats(stage: &Stage) -> BTreeMap<String, i64> {
    let group = stage.document().await.unwrap();
    let members = group.get_array("members").unwrap().iter();
    let beat = |member: &bson::Bson| {
        let member = member.as_document().unwrap();
        let id = member.get_str("id").unwrap();
        (id.to_owned(), member.get_i64("beat").unwrap())
    };
    members.map(beat).collect()
}
