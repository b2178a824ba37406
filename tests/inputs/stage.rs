//! The servers that are got wrong, and the program run on them.

use std::{fs, os::unix::fs::PermissionsExt, process::Stdio, time::Duration};

use bson::doc;
use mongodb::Client;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    sync::OnceCell,
    time::timeout,
};

use crate::support::{Admin, Authority, Identity, Rabbit, ReplicaSet, unique};
use lapin::ExchangeKind;

/// Long enough for anything that is going to be said.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whom the broker and the database show their certificates as.
const HOST: &str = "localhost";

pub struct Stage {
    /// Asks nobody who he is.
    pub open: ReplicaSet,
    /// Asks everybody.
    guarded: ReplicaSet,
    /// Speaks TLS alone.
    secure: ReplicaSet,
    /// Speaks TLS on another port.
    pub rabbit: Rabbit,
    authority: Authority,
    stranger: Authority,
    client: Identity,
    /// A port that somebody has.
    busy: TcpListener,
    folder: TempDir,
}

/// One for all tests of this binary.
pub async fn stage() -> &'static Stage {
    static STAGE: OnceCell<Stage> = OnceCell::const_new();
    STAGE.get_or_init(Stage::start).await
}

impl Stage {
    async fn start() -> Self {
        let authority = Authority::new();
        let server = authority.issue("server", &[HOST]);
        let client = authority.issue("client", &[]);
        let folder = TempDir::new().unwrap();
        let (ca, key) = (authority.ca(), folder.path().join("keyfile"));
        fs::write(&key, "of this test alone").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let guarding = ["--auth", "--keyFile", key.to_str().unwrap()];
        let member = authority.issue("member", &["127.0.0.1"]);
        let (open, guarded, secure, rabbit) = tokio::join!(
            ReplicaSet::start(1),
            ReplicaSet::start_with(1, &guarding),
            ReplicaSet::start_secure(&ca, &member, &client),
            Rabbit::start_secure(&ca, &server),
        );
        let stage = Self {
            open,
            guarded,
            secure,
            rabbit,
            stranger: Authority::new(),
            authority,
            client,
            busy: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            folder,
        };
        stage.furnish().await;
        stage
    }

    async fn furnish(&self) {
        let write =
            |name: &str, text: &str| fs::write(self.folder.path().join(name), text).unwrap();
        let ca = fs::read_to_string(self.authority.ca()).unwrap();
        write("empty", "");
        write("torn", &ca[..ca.len() / 2]);
        write(
            "nonsense",
            "-----BEGIN CERTIFICATE-----\nhunter2\n-----END CERTIFICATE-----\n",
        );
        let user = doc! { "createUser": "me", "pwd": "hunter2", "roles": ["read"] };
        let admin = doc! { "createUser": "admin", "pwd": "hunter2", "roles": ["root"] };
        // The first user may be made by anyone on this machine.
        let anyone = self.guarded.client().await;
        anyone.database("admin").run_command(admin).await.unwrap();
        let port = self.guarded.port(0);
        let admin = format!("mongodb://admin:hunter2@127.0.0.1:{port}/?replicaSet=rs0");
        let admin = Client::with_uri_str(admin).await.unwrap();
        admin.database("tea").run_command(user).await.unwrap();
    }

    /// An exchange of the database's namesake that is none of ours.
    pub async fn spoil(&self, exchange: &str) {
        let admin = Admin::of(&self.rabbit.uri()).await;
        admin.declare_as(exchange, ExchangeKind::Direct).await;
    }

    /// Connection string of the server that can be used.
    pub fn mongodb(&self) -> String {
        format!("{}&serverSelectionTimeoutMS=20000", self.open.uri())
    }

    /// A row of a table with names in place of what is made anew each time.
    fn filled(&self, text: &str) -> String {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let key = self.client.key.display().to_string();
        let cert = self.client.cert.display().to_string();
        let names = [
            ("OPEN", self.open.port(0).to_string()),
            ("GUARDED", self.guarded.port(0).to_string()),
            ("SECURE", self.secure.port(0).to_string()),
            ("RABBIT", self.rabbit.port().to_string()),
            ("RABBITS", self.rabbit.secure_port().to_string()),
            ("BUSY", self.busy.local_addr().unwrap().port().to_string()),
            ("SOON", "serverSelectionTimeoutMS=700".into()),
            ("CA", self.authority.ca().display().to_string()),
            ("STRANGER", self.stranger.ca().display().to_string()),
            ("CERT", cert),
            ("KEY", key),
            ("FOLDER", self.folder.path().display().to_string()),
            ("EMPTY", file("empty")),
            ("TORN", file("torn")),
            ("NONSENSE", file("nonsense")),
        ];
        let fill = |text: String, (name, value): &(&str, String)| {
            text.replace(&format!("{{{name}}}"), value)
        };
        names.iter().fold(text.to_owned(), fill)
    }

    /// `run`, with servers that can be used where the arguments do not name others. An argument `-NAME` takes away one
    /// of these.
    pub fn sidecar(&self, database: &str, args: &str) -> Run {
        let args = self.filled(args);
        let mut command = Command::new(env!("CARGO_BIN_EXE_toa-outbox"));
        command
            .arg("run")
            .current_dir(&self.folder)
            .env("TOA_OUTBOX_DATABASE", database)
            .env("TOA_OUTBOX_MONGODB", self.mongodb())
            .env("TOA_OUTBOX_AMQP", self.rabbit.uri())
            .env("TOA_OUTBOX_INTERVAL", "500")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for arg in args.split(' ').filter(|arg| !arg.is_empty()) {
            match arg.strip_prefix('-').filter(|name| !name.starts_with('-')) {
                Some(name) => command.env_remove(format!("TOA_OUTBOX_{name}")),
                None => command.arg(arg),
            };
        }
        Run::of(command.spawn().unwrap())
    }

    /// Tries every row of a table at once, and tells of all that are not as they should be.
    pub async fn judge(&self, table: &str) {
        let rows = table.trim().lines().map(async |row| {
            let (args, says) = row.split_once(" => ").unwrap();
            let says: Vec<&str> = says.split(" | ").collect();
            let problem = self.fault(args, &says).await;
            problem.map(|problem| format!("{row}\n  {problem}"))
        });
        let problems: Vec<String> = futures::future::join_all(rows)
            .await
            .into_iter()
            .flatten()
            .collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    /// What is wrong with the answer, if anything. What is said begins with how it ends: a code, or `on` if it goes on.
    async fn fault(&self, args: &str, says: &[&str]) -> Option<String> {
        let (end, says) = says.split_first().unwrap();
        let says: Vec<String> = says.iter().map(|part| self.filled(part)).collect();
        let mut run = self.sidecar(&unique("tea"), args);
        let goes_on = *end == "on";
        let is_said = run.says(|line| {
            let is_last = line.starts_with("toa-outbox: ");
            (goes_on || is_last) && says.iter().all(|part| line.contains(part))
        });
        let is_said = is_said.await;
        let code = match goes_on {
            true => run
                .child
                .try_wait()
                .unwrap()
                .map(|status| status.to_string()),
            false => Some(run.child.wait().await.unwrap().code().unwrap().to_string()),
        };
        let all = run.said.join("\n");
        let last = run
            .said
            .iter()
            .filter(|line| line.starts_with("toa-outbox: "));
        let problem = if all.contains("hunter2") {
            "the password is shown"
        } else if all.contains("panicked") {
            "it panicked"
        } else if !is_said {
            "it is not said"
        } else if code.as_deref() != (!goes_on).then_some(*end) {
            "it ends in another way"
        } else if last.count() != usize::from(!goes_on) {
            "not one line"
        } else {
            return None;
        };
        Some(format!("{problem}, {code:?}: {all}"))
    }
}

pub struct Run {
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>,
    pub said: Vec<String>,
}

impl Run {
    fn of(mut child: Child) -> Self {
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self {
            child,
            lines,
            said: Vec::new(),
        }
    }

    /// Reads on until a line is right; whether there was one before the end.
    pub async fn says(&mut self, is_right: impl Fn(&str) -> bool) -> bool {
        let reading = async {
            while let Ok(Some(line)) = self.lines.next_line().await {
                let is_right = is_right(&line);
                self.said.push(line);
                if is_right {
                    return true;
                }
            }
            false
        };
        timeout(PATIENCE, reading).await.unwrap_or(false)
    }
}
