//! Replicas that may not do all that others may.

use std::{fs, os::unix::fs::PermissionsExt, time::Instant};

use bson::doc;
use libtest_mimic::Trial;
use mongodb::Client;

use crate::{
    stage::{PATIENCE, Stage, assert_one_owner},
    support::ReplicaSet,
    trial,
};

pub fn tests() -> Vec<Trial> {
    vec![
        trial!(whose_marks_fail_for_long_leaves_its_lanes_to_who_can_mark),
        trial!(find_insert_and_update_are_rights_enough),
    ]
}

/// Longer than an election: this takes most of a minute.
async fn whose_marks_fail_for_long_leaves_its_lanes_to_who_can_mark() {
    let set = ReplicaSet::start_with(1, &["--setParameter", "enableTestCommands=1"]).await;
    let stage = Stage::of(&set).await.unhurried();
    let consumer = stage.consume().await;
    let named = |name: &str| {
        let uri = format!("{}&appName={name}", stage.mongo_by(set.port(0)));
        stage.casting().with("TOA_OUTBOX_MONGODB", uri).start()
    };
    let crew = vec![named("poor"), named("rich")];
    stage.whole(&crew).await;
    set.fail_command(doc! { "mode": "alwaysOn", "data": {
        "failCommands": ["update"], "appName": "poor", "namespace": stage.group(), "errorCode": 1,
    } })
    .await;
    stage.seed(1_000).await;
    consumer.wait_for(1_000, PATIENCE).await;
    let begun = Instant::now();
    stage.whole_of(&crew, 1).await;
    println!("marks fail: lanes given up after {:.2?}", begun.elapsed());
    assert_eq!(crew[0].count("cannot publish or mark"), 1);
    assert_eq!(stage.members().await, 2, "it stays a member");
    // The other cannot know that they were sent.
    let repeated = stage.all_arrive(&consumer).await.len();
    assert!(0 < repeated && repeated < 1_000, "{repeated}");
    set.fail_off().await;
    stage.whole_of(&crew, 2).await;
    assert_eq!(crew[0].count("takes lanes again"), 1);
    stage.seed(1_000).await;
    assert_eq!(stage.all_arrive(&consumer).await.len(), repeated);
    assert_one_owner(&crew);
}

/// Of each other they learn by looking at their document, not by a change stream.
async fn find_insert_and_update_are_rights_enough() {
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(&key, "of this test alone").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let path = key.path().to_str().unwrap();
    let set = ReplicaSet::start_with(1, &["--auth", "--keyFile", path]).await;
    let user = |name: &str| {
        format!(
            "mongodb://{name}:secret@127.0.0.1:{}/?replicaSet=rs0",
            set.port(0)
        )
    };
    create_user(
        &set.client().await,
        "admin",
        doc! { "role": "root", "db": "admin" },
    )
    .await;
    let stage = Stage::on(&user("admin")).await;
    let admin = Client::with_uri_str(user("admin")).await.unwrap();
    admin
        .database("admin")
        .run_command(doc! { "createRole": "poor", "roles": [], "privileges": [{
            "resource": { "db": stage.rows().namespace().db, "collection": "" },
            "actions": ["find", "insert", "update", "createCollection", "createIndex"],
        }] })
        .await
        .unwrap();
    create_user(&admin, "poor", doc! { "role": "poor", "db": "admin" }).await;

    let poor = stage.casting().with("TOA_OUTBOX_MONGODB", user("poor"));
    let mut crew = vec![poor.start(), poor.start()];
    stage.whole(&crew).await;
    let consumer = stage.consume().await;
    stage.seed(1_000).await;
    crew.push(poor.start());
    let joined = stage.whole(&crew).await;
    stage.seed(1_000).await;
    let mut gone = crew.remove(0);
    gone.stop().await;
    let left = stage.whole(&crew).await;
    println!("a join took {joined:.2?}, a stop {left:.2?}");
    stage.seed(1_000).await;
    println!("{} repeated", stage.all_arrive(&consumer).await.len());
    crew.push(gone);
    assert_one_owner(&crew);
}

async fn create_user(client: &Client, name: &str, role: bson::Document) {
    let command = doc! { "createUser": name, "pwd": "secret", "roles": [role] };
    client.database("admin").run_command(command).await.unwrap();
}
