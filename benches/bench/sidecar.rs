//! The product as a process.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    stage::{PATIENCE, Stage, Town},
    support::{eventually, memory, peak_memory, processor_time},
};

/// `toa-outbox run`, and what it says of its work.
pub struct Sidecar {
    child: Child,
    said: Arc<Mutex<Said>>,
}

#[derive(Default)]
struct Said {
    /// When it began to work.
    began: Option<Instant>,
    /// How many rows it has marked, and when it had marked the last.
    marked: usize,
    last: Option<Instant>,
    /// How often it said that it owns lanes.
    owned: usize,
}

/// Enough to see when it works, and no more: what is logged costs time.
const LOG: &str =
    "warn,toa_outbox::sidecar=info,toa_outbox::slots=info,toa_outbox::relay::marker=debug";

impl Sidecar {
    /// With the whole of the lanes, whoever else there may be, and no tail.
    pub fn pump(stage: &Stage, town: &Town) -> Self {
        Self::start(stage, town, &[("SLOT", "0/1"), ("DEFER", "1")])
    }

    /// As it comes.
    pub fn start(stage: &Stage, town: &Town, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toa-outbox"));
        command.args(["run", "--mongodb", &town.uri, "--amqp", &stage.rabbit.uri()]);
        command.env("TOA_OUTBOX_LOG_LEVEL", LOG);
        for (name, value) in settings {
            command.env(format!("TOA_OUTBOX_{name}"), value);
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(Said::default()));
        let (heard, lines) = (said.clone(), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                heard.lock().unwrap().hear(&line);
            }
        });
        Self { child, said }
    }

    pub async fn works(&self) -> Instant {
        eventually(PATIENCE, "it begins", async || {
            self.said.lock().unwrap().began
        })
        .await
    }

    /// Waits until it owns lanes by agreement with others.
    pub async fn owns(&self) {
        eventually(PATIENCE, "it owns lanes", async || {
            self.said.lock().unwrap().owned > 0
        })
        .await;
    }

    pub fn marked(&self) -> usize {
        self.said.lock().unwrap().marked
    }

    /// Waits until it has marked so many rows, from its beginning on; when that was.
    pub async fn has_marked(&self, rows: usize) -> Instant {
        eventually(PATIENCE, "everything is marked", async || {
            let said = self.said.lock().unwrap();
            said.last.filter(|_| said.marked >= rows)
        })
        .await
    }

    pub fn spent(&self) -> Duration {
        processor_time(self.child.id())
    }

    /// What it has in memory, in MiB.
    pub fn memory(&self) -> f64 {
        memory(self.child.id()) as f64 / 1024.0
    }

    /// Ends it in good order.
    pub async fn stop(mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        eventually(PATIENCE, "it ends", async || self.child.try_wait().unwrap()).await;
    }

    /// The most memory it ever had, in MiB.
    pub fn peak(&self) -> f64 {
        peak_memory(self.child.id()) as f64 / 1024.0
    }
}

impl Said {
    fn hear(&mut self, line: &str) {
        if line.contains("follows outbox collections") {
            self.began.get_or_insert_with(Instant::now);
        }
        if line.contains("owns lanes") {
            self.owned += 1;
        }
        if line.contains(" WARN ") || line.contains(" ERROR ") || line.starts_with("toa-outbox:") {
            eprintln!("{line}");
        }
        if let Some((_, rows)) = line.split_once(" marked rows=") {
            self.marked += rows.trim().parse::<usize>().expect(line);
            self.last = Some(Instant::now());
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
