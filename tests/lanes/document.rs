//! What the group agreed on is dropped, set back, of another version, or its primary is gone.

use bson::doc;
use libtest_mimic::Trial;

use crate::{
    crew::Replica,
    dose,
    stage::{PATIENCE, Stage, assert_one_owner},
    support::{ReplicaSet, eventually},
    trial,
};

pub fn tests() -> Vec<Trial> {
    vec![
        trial!(a_dropped_document_makes_no_second_owner),
        trial!(a_document_from_an_older_dump_makes_no_second_owner),
        trial!(another_version_is_left_alone),
        trial!(primaries_that_are_killed_evict_nobody),
        trial!(it_can_be_read),
    ]
}

async fn a_dropped_document_makes_no_second_owner() {
    let stage = Stage::shared().await;
    let consumer = stage.consume().await;
    let crew = stage.start(3);
    stage.whole(&crew).await;
    for round in 0..dose(2, 10) {
        stage.seed(2_000).await;
        match round % 2 {
            0 => drop(
                stage
                    .slots()
                    .delete_one(doc! { "_id": stage.group() })
                    .await
                    .unwrap(),
            ),
            _ => stage.slots().drop().await.unwrap(),
        }
        eventually(PATIENCE, "a group of three again", async || {
            stage.members().await == 3
        })
        .await;
        stage.whole(&crew).await;
    }
    println!(
        "dropped: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    assert_one_owner(&crew);
}

async fn a_document_from_an_older_dump_makes_no_second_owner() {
    let stage = Stage::shared().await;
    let consumer = stage.consume().await;
    let mut crew = stage.start(3);
    stage.whole(&crew).await;
    let mut gone = Vec::new();
    for _ in 0..dose(2, 10) {
        let dump = stage.document().await.unwrap();
        let dumped = ids(&stage).await;
        let mut one = crew.remove(0);
        one.stop().await;
        gone.push(one);
        crew.push(stage.casting().start());
        // Older than a lease: time is the subject.
        tokio::time::sleep(stage.beat * 4).await;
        stage.whole(&crew).await;
        stage.seed(2_000).await;
        let before = owned(&crew);
        let id = doc! { "_id": stage.group() };
        stage.slots().replace_one(id, dump).await.unwrap();
        eventually(
            PATIENCE,
            "everybody has come again, and nobody else is there",
            async || {
                let now = ids(&stage).await;
                now.len() == 3 && now.iter().all(|id| !dumped.contains(id))
            },
        )
        .await;
        eventually(PATIENCE, "everybody owns anew", async || {
            let now = owned(&crew);
            now.iter().zip(&before).all(|(now, before)| now > before)
        })
        .await;
        stage.whole(&crew).await;
    }
    crew.extend(gone);
    println!(
        "set back: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    assert_one_owner(&crew);
}

async fn another_version_is_left_alone() {
    let stage = Stage::shared().await;
    let theirs = doc! { "_id": stage.group(), "protocol": 2, "epoch": 5, "whatever": true };
    stage.slots().insert_one(&theirs).await.unwrap();
    let crew = stage.start(1);
    eventually(PATIENCE, "it says why it owns nothing", async || {
        crew[0].count("another version") == 1
    })
    .await;
    // Nothing is to happen: time is the subject.
    tokio::time::sleep(stage.beat * 4).await;
    assert_eq!(stage.document().await.unwrap(), theirs);
    assert_eq!(crew[0].count("another version"), 1, "and says it once");
    stage
        .slots()
        .delete_one(doc! { "_id": stage.group() })
        .await
        .unwrap();
    stage.whole(&crew).await;
}

/// Five replicas, three servers.
async fn primaries_that_are_killed_evict_nobody() {
    let set = ReplicaSet::start(3).await;
    let stage = Stage::of(&set).await.unhurried();
    let consumer = stage.consume().await;
    let mut crew = stage.start(5);
    stage.whole(&crew).await;
    let before = ids(&stage).await;
    for replica in &mut crew {
        replica.write(20).await;
    }
    for _ in 0..dose(2, 5) {
        let primary = set.primary_index().await;
        set.kill(primary).await;
        set.primary_index().await;
        let took = stage.whole(&crew).await;
        println!("a new primary: owned again after {took:.2?}");
        // Nobody waited for a lease and a drain; two beats are usual.
        assert!(took < stage.beat * 8, "{took:?}");
        set.start_again(primary).await;
    }
    assert_eq!(ids(&stage).await, before, "nobody was evicted");
    for replica in &mut crew {
        replica.write_no_more().await;
    }
    println!(
        "primaries killed: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    assert_one_owner(&crew);
}

/// How often each has come to own something.
fn owned(crew: &[Replica]) -> Vec<usize> {
    crew.iter()
        .map(|replica| replica.count("owns lanes"))
        .collect()
}

/// The members' ids, in order.
async fn ids(stage: &Stage) -> Vec<String> {
    let Some(group) = stage.document().await else {
        return Vec::new();
    };
    let members = group.get_array("members").unwrap().iter();
    members
        .map(|member| {
            member
                .as_document()
                .unwrap()
                .get_str("id")
                .unwrap()
                .to_owned()
        })
        .collect()
}

/// As the README says.
async fn it_can_be_read() {
    let stage = Stage::shared().await;
    let crew = stage.start(2);
    stage.whole(&crew).await;
    let group = stage.document().await.unwrap();
    let epoch = group.get_document("epoch").unwrap();
    for member in group.get_array("members").unwrap() {
        let member = member.as_document().unwrap();
        assert_eq!(member.get_document("seen").unwrap(), epoch);
        assert_eq!(
            member.get_array("routes").unwrap(),
            &["amqp/created".into()]
        );
        let host = rustix::system::uname();
        assert!(
            member
                .get_str("id")
                .unwrap()
                .starts_with(&*host.nodename().to_string_lossy())
        );
    }
    assert_eq!(group.get_i32("protocol").unwrap(), 1);
    let binding = doc! { "_id": { "collection": stage.rows().name() } };
    let binding = stage.slots().find_one(binding).await.unwrap().unwrap();
    assert_eq!(
        binding.get_str("pumpedBy").unwrap(),
        format!("group {}", stage.group())
    );
}
