//! A user that has just the role of `examples/deploy/role.js`, and users that lack something of it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use bson::{Document, doc};
use mongodb::{Client, Database};
use tokio::process::Command;

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Rabbit, ReplicaSet},
    town::Town,
};

/// A database that asks who one is.
struct Guarded {
    mongo: ReplicaSet,
    /// Its own, since the role names the collection and so the exchange.
    rabbit: Rabbit,
    tea: Database,
    _key: tempfile::NamedTempFile,
}

impl Guarded {
    async fn start() -> Self {
        let key = tempfile::NamedTempFile::new().unwrap();
        fs::write(&key, "of this test alone").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let path = key.path().to_str().unwrap();
        let args = ["--auth", "--keyFile", path];
        let (mongo, rabbit) = tokio::join!(ReplicaSet::start_with(1, &args), Rabbit::start());
        let root = doc! { "role": "root", "db": "admin" };
        // The first user may be made by anyone on this machine.
        let create = doc! { "createUser": "admin", "pwd": "hunter2", "roles": [root] };
        let anyone = mongo.client().await;
        anyone.database("admin").run_command(create).await.unwrap();
        let admin = Client::with_uri_str(uri(&mongo, "admin", "admin"))
            .await
            .unwrap();
        Self {
            tea: admin.database("tea"),
            mongo,
            rabbit,
            _key: key,
        }
    }

    /// Runs the file as an administrator's shell would.
    async fn make_role(&self) {
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let made = Command::new("node")
            .arg(project.join("tests/support/mongosh.js"))
            .arg(uri(&self.mongo, "admin", "admin"))
            .arg(project.join("examples/deploy/role.js"))
            .env("NODE_PATH", project.join(".servers/node/node_modules"))
            .output()
            .await
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
    }

    async fn user(&self, name: &str, roles: &[&str]) {
        let command = doc! { "createUser": name, "pwd": "hunter2", "roles": roles };
        self.tea.run_command(command).await.unwrap();
    }

    /// A town whose service is the administrator, and whose sidecar is this user.
    fn town(&self, user: &str) -> Town {
        Town {
            database: self.tea.clone(),
            mongodb: uri(&self.mongo, user, "tea"),
            amqp: self.rabbit.uri(),
            pots: "tea_pots".into(),
            interval: Duration::from_millis(500),
            beat: Duration::from_secs(2),
        }
    }
}

fn uri(mongo: &ReplicaSet, user: &str, of: &str) -> String {
    let port = mongo.port(0);
    format!("mongodb://{user}:hunter2@127.0.0.1:{port}/tea?replicaSet=rs0&authSource={of}")
}

#[tokio::test]
async fn a_user_with_just_the_role_runs_it() {
    let guarded = Guarded::start().await;
    guarded.make_role().await;
    guarded.user("toa-outbox", &["toaOutbox"]).await;
    let town = guarded.town("toa-outbox");
    let consumer = town.consumer().await;
    let sidecar = town.sidecar();
    town.change().await;
    town.settled().await;
    town.change().await;
    town.settled().await;
    assert_eq!(consumer.count(), 2);
    let warned = sidecar.said(" WARN ");
    assert!(warned.is_empty(), "{warned:?}");
    assert!(sidecar.stop().await.success());
}

/// CASE 6, and which of them it is.
#[tokio::test]
async fn a_user_that_lacks_a_privilege_is_told_which() {
    let guarded = Guarded::start().await;
    guarded.make_role().await;
    for (lacking, on) in [
        ("changeStream", ""),
        ("listCollections", ""),
        ("find", ""),
        ("insert", "outbox_slots"),
        ("update", "outbox_slots"),
    ] {
        let user = guarded.user_without(lacking, on).await;
        let mut sidecar = guarded.town(&user).sidecar();
        assert_eq!(sidecar.exits().await.code(), Some(1), "{user}");
        let said = sidecar.said("toa-outbox: ");
        let [said] = said.as_slice() else {
            panic!("{said:?}");
        };
        for named in [&format!("lacks {lacking} on"), on, "grantPrivilegesToRole"] {
            assert!(said.contains(named), "{said}");
        }
        assert!(sidecar.said("hunter2").is_empty());
    }
}

/// Its rows would be published again by every sweep, since no mark of them would be taken.
#[tokio::test]
async fn a_collection_that_cannot_be_marked_is_not_followed() {
    let guarded = Guarded::start().await;
    guarded.make_role().await;
    let user = guarded.user_without("update", "tea_pots_outbox").await;
    let town = guarded.town(&user);
    let consumer = town.consumer().await;
    town.change().await;
    let sidecar = town.sidecar();
    let said = sidecar.says("tea_pots_outbox is not followed").await;
    assert!(
        said.contains("lacks update on tea.tea_pots_outbox"),
        "{said}"
    );
    assert_eq!(consumer.count(), 0);

    guarded.grant(&user, "tea_pots_outbox", &["update"]).await;
    // It is asked for again.
    town.settled().await;
    consumer.wait_for(1, PATIENCE).await;
    assert!(sidecar.stop().await.success());
}

/// Where no stream of the database is needed, one of the collection still is.
#[tokio::test]
async fn an_ordered_sink_that_may_not_be_given_its_stream_does_not_begin() {
    let guarded = Guarded::start().await;
    guarded.make_role().await;
    let user = guarded.user_without("changeStream", "").await;
    let all = [
        "insert",
        "update",
        "remove",
        "createCollection",
        "createIndex",
    ];
    guarded.grant(&user, "outbox_sinks", &all).await;
    guarded
        .grant(&user, "tea_pots_outbox_deliveries", &all)
        .await;
    let town = guarded.town(&user);
    town.change().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let sink =
        "[[sink]]\nname = \"log\"\nkind = \"stdout\"\nlabels = [\"*\"]\norder = \"ordered\"\n";
    fs::write(file.path(), sink).unwrap();
    let mut settings = town.settings();
    settings.push(("DEFER", "1".into()));
    settings.push(("CONFIG", file.path().display().to_string()));
    let sidecar = Sidecar::start(&settings);
    let said = sidecar.says("tea_pots_outbox is not followed").await;
    let lacks =
        "ordered sinks need more rights: this user lacks changeStream on tea.tea_pots_outbox";
    assert!(
        said.contains(lacks) && said.contains("grantPrivilegesToRole"),
        "{said}"
    );
    let sinks = guarded.tea.collection::<Document>("outbox_sinks");
    assert_eq!(sinks.count_documents(doc! {}).await.unwrap(), 0);
    guarded
        .grant(&user, "tea_pots_outbox", &["changeStream"])
        .await;
    town.settled().await;
    assert!(sidecar.stop().await.success());
}

impl Guarded {
    /// To the role of that name.
    async fn grant(&self, role: &str, on: &str, actions: &[&str]) {
        let privilege = doc! {
            "resource": { "db": "tea", "collection": on },
            "actions": actions,
        };
        let grant = doc! { "grantPrivilegesToRole": role, "privileges": [privilege] };
        self.tea.run_command(grant).await.unwrap();
    }

    /// A user with the role, less one action on one collection; their common name.
    async fn user_without(&self, action: &str, on: &str) -> String {
        let role = doc! { "rolesInfo": "toaOutbox", "showPrivileges": true };
        let info = self.tea.run_command(role).await.unwrap();
        let role = info.get_array("roles").unwrap()[0].as_document().unwrap();
        let mut privileges: Vec<Document> = Vec::new();
        for privilege in role.get_array("privileges").unwrap() {
            let mut privilege = privilege.as_document().unwrap().clone();
            let resource = privilege.get_document("resource").unwrap();
            if resource.get_str("collection").unwrap() == on {
                let actions = privilege.get_array_mut("actions").unwrap();
                let before = actions.len();
                actions.retain(|had| had.as_str() != Some(action));
                assert_eq!(actions.len() + 1, before, "the role has it");
            }
            privileges.push(privilege);
        }
        let name = format!("no_{action}_{on}");
        let create = doc! { "createRole": &name, "roles": [], "privileges": privileges };
        self.tea.run_command(create).await.unwrap();
        self.user(&name, &[&name]).await;
        name
    }
}
