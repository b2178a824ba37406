//! TLS to the broker and to MongoDB, with certificates on both sides: what works, and what says why it does not.

use std::{fs, path::Path, time::Duration};

use bson::doc;
use toa_outbox::Settings;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::{
    load::{bulky, commit},
    log::Log,
    rig::{PATIENCE, Rig},
    support::{Authority, Checker, Identity, Rabbit, ReplicaSet, eventually},
};

/// A broker that wants certificates, and what a client needs to be let in.
struct Secure {
    authority: Authority,
    rabbit: Rabbit,
    client: Identity,
}

/// It is good for `localhost` and not for `127.0.0.1`, where the same broker answers.
const HOST: &str = "localhost";

impl Secure {
    async fn start() -> Self {
        let authority = Authority::new();
        let server = authority.issue("broker", &[HOST]);
        Self {
            rabbit: Rabbit::start_secure(&authority.ca(), &server).await,
            client: authority.issue("client", &[]),
            authority,
        }
    }

    fn uri(&self, host: &str) -> String {
        let port = self.rabbit.secure_port();
        format!("amqps://guest:guest@{host}:{port}/%2f")
    }

    /// Everything as it should be.
    fn settings(&self, settings: &Settings) -> Settings {
        Settings {
            amqp: vec![self.uri(HOST)],
            amqp_ca: Some(self.authority.ca()),
            amqp_cert: Some(self.client.cert.clone()),
            amqp_key: Some(self.client.key.clone()),
            ..settings.clone()
        }
    }

    /// The server's files were replaced; it would look at them some minutes later by itself.
    async fn look_again(&self) {
        let told = self.rabbit.ctl(&["eval", "ssl:clear_pem_cache()."]).await;
        told.unwrap();
    }
}

/// One for all tests, one after the other: some change its certificate.
async fn secure() -> MutexGuard<'static, Secure> {
    static SECURE: OnceCell<Mutex<Secure>> = OnceCell::const_new();
    let start = || async { Mutex::new(Secure::start().await) };
    SECURE.get_or_init(start).await.lock().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_secure_mongodb_reach_a_secure_broker() {
    let broker = secure().await;
    let server = broker.authority.issue("mongod", &["127.0.0.1"]);
    let client = &broker.client;
    let mongo = ReplicaSet::start_secure(&broker.authority.ca(), &server, client).await;

    let mut rig = Rig::new(&mongo.uri(), &broker.rabbit.uri()).await;
    let taken = rig.consume("created").await;
    rig.settings = broker.settings(&rig.settings);
    let pots = rig.open().await;
    commit(&pots, 100, |_| doc! {}).await;
    taken.wait_for(100, PATIENCE).await;
    rig.settled().await;
    pots.shutdown().await;
    assert_eq!(taken.duplicates().len(), 0);
}

/// Opens with wrong settings, expects the cause to be told more than once, mends it, and expects the
/// row to leave then, without anything being started again.
async fn told_until_mended(
    broker: &Secure,
    settings: impl FnOnce(Settings) -> Settings,
    cause: &str,
    mend: impl AsyncFnOnce(),
) {
    let mut rig = Rig::shared().await;
    let plain = broker.rabbit.uri();
    let taken = Checker::bind(&plain, &rig.exchange("created")).await;
    rig.settings = settings(broker.settings(&rig.settings));
    let log = Log::read();
    let key = format!("{}", broker.rabbit.secure_port());
    let pots = rig.open().await;
    commit(&pots, 1, |_| doc! {}).await;
    let told = || {
        let lines = log.ours(&key).into_iter();
        lines
            .filter(|line| line.contains("cannot connect"))
            .collect::<Vec<_>>()
    };
    // A cause is told at its first time and at its tenth.
    let often = eventually(PATIENCE, "it is tried again", async || {
        told().into_iter().find(|line| line.contains("times=10"))
    })
    .await;
    assert!(often.contains(cause), "{often}");
    println!("{often}");
    assert_eq!(taken.count(), 0);
    mend().await;
    taken.wait_for(1, PATIENCE).await;
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_a_strange_authority_is_not_spoken_to() {
    let broker = secure().await;
    let stranger = Authority::new();
    let (ours, theirs) = (broker.authority.ca(), stranger.ca());
    let wrong = |settings| Settings {
        amqp_ca: Some(theirs.clone()),
        ..settings
    };
    // The file is renewed under it, as a rotation does.
    let mend = async || {
        fs::copy(&ours, &theirs).unwrap();
    };
    told_until_mended(&broker, wrong, "UnknownIssuer", mend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_certificate_is_told_what_is_missing() {
    let broker = secure().await;
    let mut rig = Rig::shared().await;
    rig.settings = Settings {
        amqp_cert: None,
        amqp_key: None,
        ..broker.settings(&rig.settings)
    };
    let log = Log::read();
    let pots = rig.open().await;
    let key = broker.rabbit.secure_port().to_string();
    let told = || log.ours(&key);
    let line = eventually(PATIENCE, "it is told", async || told().into_iter().next()).await;
    assert!(line.contains("TOA_OUTBOX_AMQP_CERT"), "{line}");
    println!("{line}");
    pots.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_strange_authority_is_told_so_until_it_has_another_certificate() {
    let broker = secure().await;
    let stranger = Authority::new();
    let theirs = stranger.issue("stranger", &[]);
    let wrong = |settings| Settings {
        amqp_cert: Some(theirs.cert.clone()),
        amqp_key: Some(theirs.key.clone()),
        ..settings
    };
    let mend = async || {
        fs::copy(&broker.client.cert, &theirs.cert).unwrap();
        fs::copy(&broker.client.key, &theirs.key).unwrap();
    };
    told_until_mended(&broker, wrong, "TOA_OUTBOX_AMQP_CERT", mend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_host_is_not_accepted() {
    let broker = secure().await;
    let server = |hosts: &[&str]| drop(broker.authority.issue("broker", hosts));
    server(&["other.example"]);
    broker.look_again().await;
    let mend = async || {
        server(&[HOST]);
        broker.look_again().await;
    };
    told_until_mended(&broker, |settings| settings, "not valid for name", mend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_has_expired_is_not_accepted() {
    let broker = secure().await;
    broker.authority.issue_expired("broker", &[HOST]);
    broker.look_again().await;
    let mend = async || {
        broker.authority.issue("broker", &[HOST]);
        broker.look_again().await;
    };
    told_until_mended(&broker, |settings| settings, "has expired", mend).await;
}

/// As without TLS: what a shutdown gave up does not leave when nobody expects it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cut_does_not_leave_later() {
    let broker = secure().await;
    let mut rig = Rig::shared().await;
    rig.settings = broker.settings(&rig.settings);
    rig.settings.grace = Duration::from_secs(1);
    let plain = broker.rabbit.uri();
    let taken = Checker::queue(&plain, &rig.exchange("created")).await;
    let pots = rig.open().await;
    commit(&pots, 1, |_| doc! {}).await;
    rig.settled().await;
    broker.rabbit.pause();
    commit(&pots, 200, |_| bulky(10_000)).await;
    let left = pots.shutdown().await;
    broker.rabbit.resume();
    let pots = rig.open().await;
    rig.settled().await;
    pots.shutdown().await;
    taken.drain(&plain).await;
    assert_eq!(taken.distinct(), 201);
    let late = taken.duplicates().len();
    println!("left after the cut: {late} of {}", left.in_flight);
    // What the broker's machine had received before the cut cannot be taken back.
    assert!(left.in_flight > 0 && late < left.in_flight / 5);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_an_error_at_the_start() {
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec!["amqps://guest:hunter2@localhost".into()];
    rig.settings.amqp_ca = Some(Path::new("/no/such/ca.pem").into());
    let opened = toa_outbox::Outbox::open(&rig.database, rig.component, rig.settings).await;
    let error = opened.err().unwrap().to_string();
    assert!(
        error.contains("TOA_OUTBOX_AMQP_CA") && error.contains("/no/such/ca.pem"),
        "{error}"
    );
    assert!(!error.contains("hunter2"), "{error}");
}
