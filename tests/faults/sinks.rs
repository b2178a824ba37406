//! Sinks of a service's own that are away, or hang.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

use bson::{Document, doc};
use mongodb::Client;
use toa_outbox::{BoxError, Builder, Error, Message, Outbox, Policy, Sink, SinkOptions, Verdict};
use tokio::sync::Notify;

use crate::{
    rig::{PATIENCE, Rig, soak},
    support::ReplicaSet,
};

const DAY: Duration = Duration::from_secs(86_400);

/// How many cycles are looked at.
const PASSES: usize = 5;

/// Asks to be left alone for a day.
struct Away(Arc<Notify>);

impl Sink for Away {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        self.0.notify_one();
        let retry = Verdict::Retry {
            reason: "closed".into(),
            after: Some(DAY),
        };
        Ok(vec![retry; batch.len()])
    }
}

/// Never answers.
struct Hung(Arc<Notify>);

impl Sink for Hung {
    async fn deliver(&self, _: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        self.0.notify_one();
        std::future::pending().await
    }
}

fn flat() -> SinkOptions {
    SinkOptions::new().policy(Policy::flat())
}

async fn told(notify: &Notify) {
    let told = tokio::time::timeout(PATIENCE, notify.notified()).await;
    told.expect("a delivery is tried");
}

/// What each cycle of the others would otherwise read, every few seconds, for as long as the sink is away.
#[tokio::test]
async fn what_a_sink_that_is_away_is_owed_is_read_for_no_other() {
    let rig = Rig::shared().await;
    let asked = Arc::new(Notify::new());
    let away = |builder: Builder| builder.sink_with("away", ["*"], Away(asked.clone()), flat());
    // Makes the indexes.
    rig.quiet(away).await.shutdown().await;
    let owed = if soak() { 1_000_000 } else { 20_000 };
    // As they are when the others have them.
    rig.seed(owed, |row, _| {
        row.insert("partial", true);
        row.insert("outstanding", ["away/created"]);
    })
    .await;
    let pots = rig.quiet(away).await;
    told(&asked).await;
    // Waits for the end of the cycle that it was asked in.
    pots.pass().await.unwrap();
    let queries = rig.profiled(&pots, PASSES).await;
    // Two a cycle for the broker, whose loop's own first cycle may fall among them, and none for the other.
    let expected = 2 * PASSES..=2 * (PASSES + 1);
    assert!(expected.contains(&queries.len()), "{queries:?}");
    for query in &queries {
        assert_eq!(query.get_i32("docsExamined").unwrap(), 0, "{query}");
        assert!(query.get_i32("keysExamined").unwrap() <= 2 * 128, "{query}");
    }
    pots.shutdown().await;
}

/// Where what fails could not be kept, it would hold up its row for ever.
#[tokio::test]
async fn a_service_that_cannot_keep_what_fails_does_not_start() {
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(&key, "of this test alone").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let set =
        ReplicaSet::start_with(1, &["--auth", "--keyFile", key.path().to_str().unwrap()]).await;
    let uri = |name: &str| {
        let port = set.port(0);
        format!("mongodb://{name}:secret@127.0.0.1:{port}/?replicaSet=rs0")
    };
    let create = async |client: Client, name: &str, role: Document| {
        let user = doc! { "createUser": name, "pwd": "secret", "roles": [role] };
        client.database("admin").run_command(user).await.unwrap();
    };
    create(
        set.client().await,
        "admin",
        doc! { "role": "root", "db": "admin" },
    )
    .await;
    let admin = Client::with_uri_str(uri("admin")).await.unwrap();
    let mut rig = Rig::new(&uri("admin"), "amqp://127.0.0.1:1").await;
    let refused = async |rig: &Rig| {
        let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
        let opened = builder
            .sink("away", ["*"], Away(Arc::default()))
            .open()
            .await;
        match opened.err() {
            Some(error @ Error::Unfit { .. }) => error.to_string(),
            other => panic!("it is refused for what is missing: {other:?}"),
        }
    };

    rig.settings.ensure = false;
    let missing = refused(&rig).await;
    let init = format!("toa-outbox init --sinks {}_pots_outbox", rig.namespace());
    assert!(
        missing.contains("does not exist") && missing.contains(&init),
        "{missing}"
    );

    rig.settings.ensure = true;
    let resource = doc! { "db": rig.database.name(), "collection": "" };
    let actions = [
        "find",
        "insert",
        "update",
        "createCollection",
        "createIndex",
    ];
    let privilege = doc! { "resource": resource, "actions": actions.to_vec() };
    let role = doc! { "createRole": "poor", "roles": [], "privileges": [privilege] };
    admin.database("admin").run_command(role).await.unwrap();
    create(admin, "poor", doc! { "role": "poor", "db": "admin" }).await;
    let poor = Client::with_uri_str(uri("poor")).await.unwrap();
    rig.database = poor.database(rig.database.name());
    let lacking = refused(&rig).await;
    for part in [
        "lacks remove on",
        "_pots_outbox_deliveries",
        "outbox_sinks",
        "grantPrivilegesToRole",
    ] {
        assert!(lacking.contains(part), "{part}: {lacking}");
    }
}

#[tokio::test]
async fn a_sink_that_hangs_keeps_no_shutdown_waiting_beyond_the_grace() {
    let mut rig = Rig::shared().await;
    rig.settings.grace = Duration::from_secs(1);
    let created = rig.consume("created").await;
    let tried = Arc::new(Notify::new());
    let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
    let pots = builder
        .sink_with("hung", ["*.created"], Hung(tried.clone()), flat())
        .open()
        .await
        .unwrap();
    for _ in 0..10 {
        pots.create(Document::new(), Document::new()).await.unwrap();
    }
    told(&tried).await;
    created.wait_for(10, PATIENCE).await;
    let began = Instant::now();
    let left = pots.shutdown().await;
    assert!(began.elapsed() < PATIENCE / 2);
    assert_eq!((left.in_flight, left.unmarked), (10, 0), "{left:?}");
    let owes = doc! { "published": false, "outstanding": ["hung/created"] };
    assert_eq!(rig.count(owes).await, 10);
}
