//! A private MongoDB server.

use std::fs;
use std::process::Command;
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use rustix::process::Signal;
use tokio::time::timeout;

use super::eventually;
use super::leash::{self, Leash};
use super::ports;

/// How long a server may take to serve.
pub(super) const START: Duration = Duration::from_secs(60);

/// One `mongod`: a standalone, or a member of a [`ReplicaSet`](super::ReplicaSet).
pub struct Mongo {
    leash: Leash,
    port: u16,
    /// What a client has to say of TLS, as options of a URI.
    tls: String,
}

impl Mongo {
    /// A server that is no replica set: no transactions, no change streams.
    pub async fn standalone() -> Self {
        Self::standalone_with(&[]).await
    }

    /// The same, with more arguments, such as `--auth`.
    pub async fn standalone_with(args: &[&str]) -> Self {
        let mongo = Self::start(args, "").await;
        mongo.answers(|_| true).await;
        mongo
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads to this server alone.
    pub fn uri(&self) -> String {
        let (port, tls) = (self.port, &self.tls);
        format!("mongodb://127.0.0.1:{port}/?directConnection=true{tls}")
    }

    /// A client of the calling test's runtime.
    pub async fn client(&self) -> Client {
        Client::with_uri_str(self.uri()).await.expect("a client")
    }

    /// Kills it (-9) and waits until it is gone.
    pub async fn kill(&self) {
        self.leash.signal(Signal::KILL);
        self.leash.ended().await;
    }

    /// Shuts it down cleanly.
    pub async fn stop(&self) {
        self.leash.signal(Signal::TERM);
        self.leash.ended().await;
    }

    /// Starts it on the same data and port, after [`kill`](Self::kill) or [`stop`](Self::stop).
    pub async fn start_again(&self) {
        self.start_again_until(|_| true).await;
    }

    pub(super) async fn start_again_until(&self, expected: impl Fn(&Document) -> bool) {
        self.leash.start_again().await;
        self.answers(expected).await;
    }

    /// Freezes the process: connections stay open, nothing answers.
    pub fn pause(&self) {
        self.leash.signal(Signal::STOP);
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self) {
        self.leash.signal(Signal::CONT);
    }

    pub fn processor_time(&self) -> Duration {
        self.leash.processor_time()
    }

    /// Runs an administrative command on this very server; waits a few seconds at most.
    pub async fn admin(&self, command: Document) -> mongodb::error::Result<Document> {
        let mut options = ClientOptions::parse(self.uri()).await?;
        options.server_selection_timeout = Some(Duration::from_secs(2));
        let client = Client::with_options(options)?;

        let answer = timeout(
            Duration::from_secs(5),
            client.database("admin").run_command(command),
        )
        .await;
        client.shutdown().immediate(true).await;
        answer.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    pub(super) async fn start(args: &[&str], tls: &str) -> Self {
        let folder = leash::folder();
        let data = folder.join("data");
        fs::create_dir(&data).expect("a data folder");

        let port = ports::free(1);
        let mut command = Command::new(leash::script("mongod.sh"));
        command.arg(data).arg(port.to_string()).args(args);

        Self {
            leash: Leash::hold(folder, command).await,
            port,
            tls: tls.to_owned(),
        }
    }

    /// Waits until the server's `hello` says what is expected.
    pub(super) async fn answers(&self, expected: impl Fn(&Document) -> bool) {
        eventually(START, "mongod serves", async || {
            assert!(
                self.leash.runs(),
                "mongod ended (install.sh brings it): {}",
                self.leash.output()
            );
            self.admin(doc! { "hello": 1 })
                .await
                .is_ok_and(|hello| expected(&hello))
        })
        .await;
    }
}
