//! The processes of one test, and what they tell.

use std::{
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    task::JoinHandle,
};

use crate::{
    replica,
    stage::PATIENCE,
    support::eventually,
    timeline::{self, Nap, Span},
};

/// One process of the service.
pub struct Replica {
    child: Child,
    /// Kept here: whoever waits for a child closes its input.
    orders: ChildStdin,
    told: Arc<Mutex<Vec<Value>>>,
    reading: JoinHandle<()>,
    routes: Vec<String>,
    beat: Duration,
    naps: Vec<Nap>,
    gone: Option<u64>,
}

/// How to start one.
#[derive(Clone)]
pub struct Casting {
    pub variables: Vec<(String, String)>,
    pub labels: String,
    pub beat: Duration,
}

impl Casting {
    /// The same with another value of a variable.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn labels(mut self, labels: &str) -> Self {
        labels.clone_into(&mut self.labels);
        self
    }

    pub fn start(&self) -> Replica {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .envs(self.variables.iter().cloned())
            .env(replica::LABELS, &self.labels)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let orders = child.stdin.take().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let reading = tokio::spawn(read(lines, told.clone()));
        let routes = self
            .labels
            .split_whitespace()
            .map(|label| format!("amqp/{label}"));
        Replica {
            child,
            orders,
            told,
            reading,
            routes: routes.collect(),
            beat: self.beat,
            naps: Vec::new(),
            gone: None,
        }
    }
}

async fn read(
    mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    told: Arc<Mutex<Vec<Value>>>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(line) => told.lock().unwrap().push(line),
            Err(_) => eprintln!("a replica says: {line}"),
        }
    }
}

impl Replica {
    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        kill_process(pid.expect("it runs"), signal).unwrap();
    }

    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to stop, without waiting.
    pub fn ask_to_stop(&self) {
        self.signal(Signal::TERM);
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(&mut self) {
        self.ask_to_stop();
        self.has_stopped().await;
    }

    /// Waits until it has, having been asked to.
    pub async fn has_stopped(&mut self) {
        let status = self.ended().await;
        assert!(status.success(), "{status}: {:?}", self.told().last());
    }

    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    async fn ended(&mut self) -> ExitStatus {
        let status = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        self.gone = Some(timeline::now());
        let status = status.expect("it ends").unwrap();
        // What it had told before.
        let _ = (&mut self.reading).await;
        status
    }

    /// Makes no more changes, and waits for those that have begun.
    pub async fn write_no_more(&mut self) {
        let before = self.count("writes no more");
        self.write(0).await;
        eventually(PATIENCE, "what has begun to be written is", async || {
            self.count("writes no more") > before
        })
        .await;
    }

    /// So many changes a second from now on.
    pub async fn write(&mut self, rate: u32) {
        let order = format!("write {rate}\n");
        self.orders.write_all(order.as_bytes()).await.unwrap();
    }

    pub fn told(&self) -> Vec<Value> {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What it told last, but for lanes that go on being its own.
    pub fn last(&self) -> Vec<Value> {
        let mut told = self.told();
        told.retain(|line| line["until"].is_null());
        told.split_off(told.len().saturating_sub(3))
    }

    /// How often it has told something that contains `text`.
    pub fn count(&self, text: &str) -> usize {
        let told = self.told();
        told.iter()
            .filter(|line| {
                line["message"]
                    .as_str()
                    .is_some_and(|said| said.contains(text))
            })
            .count()
    }

    /// What it told of level error, which nothing here is meant to cause.
    pub fn errors(&self) -> Vec<Value> {
        let mut told = self.told();
        told.retain(|line| line["level"] == "ERROR");
        told
    }

    /// At that time its clock has jumped ahead of the one all share.
    pub fn was_suspended(&mut self, at: u64, length: Duration) {
        let length = timeline::nanos(length);
        self.naps.push(Nap { at, length });
    }

    pub fn spans(&self) -> Vec<Span> {
        let mut told = self.told();
        timeline::set_back(&mut told, &self.naps);
        timeline::spans(&told, &self.routes, self.beat, self.gone)
    }

    /// How many lanes it owns at that time.
    pub fn share(&self, at: u64) -> usize {
        let spans = self.spans();
        let route = &self.routes[0];
        let owned = |lane: &u8| {
            spans
                .iter()
                .any(|span| span.route == *route && span.owns(*lane, at))
        };
        (0..toa_outbox::LANES).filter(owned).count()
    }
}
