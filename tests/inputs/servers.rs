//! `run` and servers that cannot be reached, refuse, or are others than they were taken for.

use bson::doc;

use crate::{
    stage::stage,
    support::{Mongo, unique},
};

#[tokio::test]
async fn what_is_wrong_with_mongodb() {
    let table = r#"
-MONGODB => 2 | TOA_OUTBOX_MONGODB (not set) | pass --mongodb
-DATABASE --mongodb mongodb://me:hunter2@127.0.0.1:{OPEN} => 2 | TOA_OUTBOX_DATABASE (not set) | pass --database | name it in the URI
--mongodb mongodb://me:hunter2@127.0.0.1:1/?{SOON} => 1 | 127.0.0.1:1 | Connection refused | check hosts | TOA_OUTBOX_MONGODB
--mongodb mongodb://me:hunter2@nowhere.invalid/?{SOON} => 1 | nowhere.invalid | check hosts | TOA_OUTBOX_MONGODB
--mongodb mongodb+srv://me:hunter2@nowhere.invalid/?{SOON} => 1 | nowhere.invalid | check hosts | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{OPEN}/?{SOON}&replicaSet=rs7 => 1 | Server selection timeout | check hosts, replicaSet | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{RABBIT}/?{SOON} => 1 | 127.0.0.1:{RABBIT} | check hosts | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{SECURE}/?{SOON} => 1 | 127.0.0.1:{SECURE} | tls | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{OPEN}/?{SOON}&tls=true => 1 | 127.0.0.1:{OPEN} | tls | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{SECURE}/?{SOON}&tls=true => 1 | 127.0.0.1:{SECURE} | UnknownIssuer | tls | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{SECURE}/?{SOON}&tls=true&tlsCAFile={CA} => 1 | 127.0.0.1:{SECURE} | tls | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{SECURE}/?{SOON}&tls=true&tlsCAFile=/nowhere/ca.pem => 1 | /nowhere/ca.pem | check tlsCAFile | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{SECURE}/?{SOON}&tls=true&tlsCertificateKeyFile={EMPTY} => 1 | {EMPTY} | tlsCertificateKeyFile | TOA_OUTBOX_MONGODB
--mongodb mongodb://me:hunter22@127.0.0.1:{GUARDED}/?authSource=tea&{SOON} => 1 | Authentication failed | check user, password and authSource | TOA_OUTBOX_MONGODB
--mongodb mongodb://you:hunter2@127.0.0.1:{GUARDED}/?authSource=tea&{SOON} => 1 | Authentication failed | check user, password and authSource
--mongodb mongodb://me:hunter2@127.0.0.1:{GUARDED}/?{SOON} => 1 | Authentication failed | authSource | TOA_OUTBOX_MONGODB
--mongodb mongodb://127.0.0.1:{GUARDED}/?{SOON} => 1 | asks who one is | add user and password | TOA_OUTBOX_MONGODB
--mongodb mongodb://me:hunter2@127.0.0.1:{GUARDED}/?authSource=tea&{SOON} --defer => 1 | lacks find, insert, update on | outbox_slots | grantPrivilegesToRole | actions: ["listCollections"]
"#;
    stage().await.judge(table).await;
    let alone = Mongo::standalone().await;
    let row = format!(
        "--mongodb mongodb://127.0.0.1:{}/ => 1 | standalone server | replica set",
        alone.port()
    );
    stage().await.judge(&row).await;
}

#[tokio::test]
async fn what_is_wrong_with_certificates_and_ports() {
    let table = r#"
-AMQP => 2 | TOA_OUTBOX_AMQP (not set) | pass --amqp
--amqp-ca {CA} => 2 | --amqp-ca (command line): "{CA}" | amqps://
--amqp amqps://me:hunter2@localhost --amqp-ca /nowhere/ca.pem => 2 | --amqp-ca (command line): "/nowhere/ca.pem" | PEM file of certificates: No such file
--amqp amqps://me:hunter2@localhost --amqp-ca {FOLDER} => 2 | --amqp-ca (command line): "{FOLDER}" | PEM file of certificates: Is a directory
--amqp amqps://me:hunter2@localhost --amqp-ca {EMPTY} => 2 | --amqp-ca (command line): "{EMPTY}" | there is none in it
--amqp amqps://me:hunter2@localhost --amqp-ca {TORN} => 2 | --amqp-ca (command line): "{TORN}" | PEM file of certificates
--amqp amqps://me:hunter2@localhost --amqp-ca {NONSENSE} => 2 | --amqp-ca (command line): "{NONSENSE}" | PEM file of certificates
--amqp amqps://me:hunter2@localhost --amqp-ca {KEY} => 2 | --amqp-ca (command line): "{KEY}" | there is none in it
--amqp amqps://me:hunter2@localhost --amqp-ca amqps://me:hunter2@mq => 2 | --amqp-ca (command line) | PEM file of certificates
--amqp amqps://me:hunter2@localhost --amqp-cert {CERT} => 2 | --amqp-cert (command line): "{CERT}" | set TOA_OUTBOX_AMQP_KEY too
--amqp amqps://me:hunter2@localhost --amqp-key {KEY} => 2 | --amqp-key (command line): "{KEY}" | set TOA_OUTBOX_AMQP_CERT too
--amqp amqps://me:hunter2@localhost --amqp-cert {CERT} --amqp-key {CERT} => 2 | --amqp-key (command line): "{CERT}" | private key | there is none in it
--amqp amqps://me:hunter2@localhost --amqp-cert {CA} --amqp-key {KEY} => 2 | --amqp-key (command line): "{KEY}" | the one of TOA_OUTBOX_AMQP_CERT
--listen 127.0.0.1:{BUSY} => 1 | 127.0.0.1:{BUSY} | in use | choose another by --listen
--listen 192.0.2.1:9464 => 2 | --listen (command line): "192.0.2.1:9464" | choose an address of this machine
"#;
    stage().await.judge(table).await;
}

/// It tries on, so it says so and does not end.
#[tokio::test]
async fn what_is_wrong_with_the_broker() {
    let table = r#"
--amqp amqp://me:hunter2@127.0.0.1:1 => on | amqp://127.0.0.1:1/ | Connection refused | check host and port in TOA_OUTBOX_AMQP
--amqp amqp://me:hunter2@nowhere.invalid => on | amqp://nowhere.invalid:5672/ | check host and port in TOA_OUTBOX_AMQP
--amqp amqp://guest:hunter2@127.0.0.1:{RABBIT}/%2f => on | 127.0.0.1:{RABBIT} | ACCESS_REFUSED | check user and password in TOA_OUTBOX_AMQP
--amqp amqp://me:hunter2@127.0.0.1:{RABBIT}/%2f => on | 127.0.0.1:{RABBIT} | ACCESS_REFUSED | check user and password in TOA_OUTBOX_AMQP
--amqp amqp://guest:guest@127.0.0.1:{RABBIT}/nowhere => on | 127.0.0.1:{RABBIT}/nowhere | check the virtual host in TOA_OUTBOX_AMQP
--amqp amqp://me:hunter2@127.0.0.1:{RABBITS}/%2f => on | 127.0.0.1:{RABBITS} | neither AMQP nor | check the port in TOA_OUTBOX_AMQP
--amqp amqps://me:hunter2@127.0.0.1:{RABBIT}/%2f => on | 127.0.0.1:{RABBIT} | TLS | check the port in TOA_OUTBOX_AMQP
--amqp amqp://me:hunter2@127.0.0.1:{OPEN}/%2f => on | 127.0.0.1:{OPEN} | TOA_OUTBOX_AMQP
--amqp amqps://me:hunter2@localhost:{RABBITS}/%2f => on | localhost:{RABBITS} | UnknownIssuer | set TOA_OUTBOX_AMQP_CA
--amqp amqps://me:hunter2@localhost:{RABBITS}/%2f --amqp-ca {STRANGER} => on | localhost:{RABBITS} | set TOA_OUTBOX_AMQP_CA
--amqp amqps://me:hunter2@127.0.0.1:{RABBITS}/%2f --amqp-ca {CA} => on | 127.0.0.1:{RABBITS} | connect by a name its certificate is for
--amqp amqps://me:hunter2@localhost:{RABBITS}/%2f --amqp-ca {CA} => on | localhost:{RABBITS} | TOA_OUTBOX_AMQP_CERT
"#;
    stage().await.judge(table).await;
}

#[tokio::test]
async fn an_exchange_of_another_type_is_named_with_the_remedy() {
    let stage = stage().await;
    let name = unique("tea").replace('_', "");
    let exchange = format!("{name}.pots.created");
    stage.spoil(&exchange).await;
    let rows = stage.open.client().await.database(&name);
    let rows = rows.collection(&format!("{name}_pots_outbox"));
    let event = doc! { "origin": null, "state": {}, "trailers": null, "input": null };
    let row = doc! { "_id": "x", "lane": 3, "published": false, "pending": 0, "event": event };
    rows.insert_one(row).await.unwrap();
    let mut run = stage.sidecar(&name, "");
    let parts = [
        &exchange,
        "PRECONDITION_FAILED",
        "durable fanout",
        "delete it",
    ];
    let is_said = run.says(|line| parts.iter().all(|part| line.contains(part)));
    assert!(is_said.await, "{:?}", run.said);
}

/// What reads the log of a program wants documents to the last.
#[tokio::test]
async fn the_last_line_of_a_json_log_is_json() {
    let stage = stage().await;
    let wrong = "--log json --mongodb mongodb://me:hunter2@127.0.0.1:1/?{SOON}";
    let mut run = stage.sidecar("tea", wrong);
    run.says(|_| false).await;
    let last = run.said.last().unwrap();
    let last: serde_json::Value = serde_json::from_str(last).expect(last);
    assert_eq!(last["level"], "ERROR");
    let message = last["message"].as_str().unwrap();
    assert!(message.contains("check hosts"), "{message}");
}
