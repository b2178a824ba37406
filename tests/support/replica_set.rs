//! Private MongoDB replica sets.

use std::path::Path;
use std::time::Duration;

use futures::future::{join_all, select_ok};
use mongodb::Client;
use mongodb::bson::{Document, doc};

use super::authority::Identity;
use super::eventually;
use super::mongo::{Mongo, START};

const SET: &str = "rs0";

/// Members that replicate; one is enough for transactions and change streams.
pub struct ReplicaSet {
    members: Vec<Mongo>,
    /// What a client has to say of TLS, as options of a URI.
    tls: String,
}

impl ReplicaSet {
    /// Starts and initiates a set; there is a primary, and the others follow it, when this returns.
    pub async fn start(members: usize) -> Self {
        Self::start_with(members, &[]).await
    }

    /// The same, with more arguments for each `mongod`.
    pub async fn start_with(members: usize, args: &[&str]) -> Self {
        Self::start_speaking(members, args, String::new()).await
    }

    /// One member that speaks nothing but TLS, to clients with a certificate that `ca` signed, such as `client`.
    pub async fn start_secure(ca: &Path, own: &Identity, client: &Identity) -> Self {
        let (ca, own) = (ca.display().to_string(), own.both.display().to_string());
        let args = [
            ["--tlsMode", "requireTLS"],
            ["--tlsCAFile", &ca],
            ["--tlsCertificateKeyFile", &own],
        ];
        let shown = client.both.display();
        let tls = format!("&tls=true&tlsCAFile={ca}&tlsCertificateKeyFile={shown}");
        Self::start_speaking(1, args.as_flattened(), tls).await
    }

    async fn start_speaking(members: usize, args: &[&str], tls: String) -> Self {
        let args = [&["--replSet", SET, "--oplogSize", "200"], args].concat();
        let members = join_all((0..members).map(|_| Mongo::start(&args, &tls))).await;
        join_all(members.iter().map(|member| member.answers(|_| true))).await;

        let set = Self { members, tls };
        set.initiate().await;
        set
    }

    /// Leads to whoever is primary.
    pub fn uri(&self) -> String {
        let (hosts, tls) = (self.hosts().join(","), &self.tls);
        format!("mongodb://{hosts}/?replicaSet={SET}{tls}")
    }

    /// Leads to one member, whatever it is.
    pub fn member_uri(&self, index: usize) -> String {
        self.members[index].uri()
    }

    /// The port of one member on 127.0.0.1.
    pub fn port(&self, index: usize) -> u16 {
        self.members[index].port()
    }

    /// A client of the calling test's runtime.
    pub async fn client(&self) -> Client {
        Client::with_uri_str(self.uri()).await.expect("a client")
    }

    /// The member that takes writes, once there is one.
    pub async fn primary_index(&self) -> usize {
        eventually(START, "the set has a primary", async || {
            // The first to say so: a frozen member would keep the others' answers waiting.
            let claims = self.members.iter().enumerate().map(|(index, member)| {
                Box::pin(async move {
                    let hello = member.admin(doc! { "hello": 1 }).await.map_err(drop)?;
                    is_primary(&hello).then_some(index).ok_or(())
                })
            });
            select_ok(claims).await.ok().map(|(index, _)| index)
        })
        .await
    }

    /// What its members have used of the processors since they were last started.
    pub fn processor_time(&self) -> Duration {
        self.members.iter().map(Mongo::processor_time).sum()
    }

    /// Kills a member (-9) and waits until it is gone.
    pub async fn kill(&self, index: usize) {
        self.members[index].kill().await;
    }

    /// Shuts a member down cleanly.
    pub async fn stop(&self, index: usize) {
        self.members[index].stop().await;
    }

    /// Starts a member that was killed or stopped and waits until it leads or follows.
    pub async fn start_again(&self, index: usize) {
        let member = &self.members[index];
        member
            .start_again_until(|hello| is_primary(hello) || is_secondary(hello))
            .await;
        if self.members.len() == 1 {
            // Alone it follows for a moment before it leads.
            self.primary_index().await;
        }
    }

    /// Freezes a member: connections stay open, nothing answers.
    pub fn pause(&self, index: usize) {
        self.members[index].pause();
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self, index: usize) {
        self.members[index].resume();
    }

    /// Makes commands fail on the primary, by the fail point `failCommand` with these settings:
    /// `"mode": { "times": 1 }, "data": { "failCommands": ["insert"], "errorCode": 91 }`.
    pub async fn fail_command(&self, settings: Document) {
        let mut command = doc! { "configureFailPoint": "failCommand" };
        command.extend(settings);

        let primary = self.primary_index().await;
        self.members[primary]
            .admin(command)
            .await
            .expect("failCommand");
    }

    /// Ends [`fail_command`](Self::fail_command), on all members: another may be primary by now.
    pub async fn fail_off(&self) {
        let off = doc! { "configureFailPoint": "failCommand", "mode": "off" };
        join_all(self.members.iter().map(|member| member.admin(off.clone()))).await;
    }

    fn hosts(&self) -> Vec<String> {
        self.members
            .iter()
            .map(|member| format!("127.0.0.1:{}", member.port()))
            .collect()
    }

    async fn initiate(&self) {
        let hosts = self.hosts().into_iter().zip(0..);
        let members: Vec<_> = hosts
            .map(|(host, id)| doc! { "_id": id, "host": host })
            .collect();
        // The defaults, 10 s and 2 s, would make every failover a long test.
        let settings = doc! { "electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500 };
        let config = doc! { "_id": SET, "members": members, "settings": settings };

        let first = &self.members[0];
        first
            .admin(doc! { "replSetInitiate": config })
            .await
            .expect("initiated");
        first.answers(is_primary).await;
        for member in &self.members[1..] {
            member.answers(is_secondary).await;
        }
    }
}

fn is_primary(hello: &Document) -> bool {
    hello.get_bool("isWritablePrimary").unwrap_or(false)
}

fn is_secondary(hello: &Document) -> bool {
    hello.get_bool("secondary").unwrap_or(false)
}
