//! A sidecar that runs: the real binary.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{eventually, memory, processor_time};

/// Long enough for anything that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Sidecar {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Sidecar {
    /// Starts `toa-outbox run` with settings by their names in the environment, without their common prefix.
    pub fn start(settings: &[(&str, String)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toa-outbox"));
        command.arg("run").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        for (name, value) in settings {
            let name = match *name {
                "BEAT" => "TOA_ATOMICITY_INTERVAL".to_owned(),
                name => format!("TOA_OUTBOX_{name}"),
            };
            command.env(name, value);
        }
        let mut child = command.spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let (heard, lines) = (said.clone(), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                heard.lock().unwrap().push(line);
            }
        });
        Self { child, said }
    }

    /// Asks what it shows; status and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let said = self.says("shows /livez").await;
        let (_, address) = said.split_once("address=").unwrap();
        let mut stream = TcpStream::connect(address.trim()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// What it has used of a core so far.
    pub fn processor_time(&self) -> Duration {
        processor_time(self.child.id())
    }

    /// What it has in memory, in KiB.
    pub fn memory(&self) -> u64 {
        memory(self.child.id())
    }

    /// The lines it wrote that have `text` in them.
    pub fn said(&self, text: &str) -> Vec<String> {
        let said = self.said.lock().unwrap();
        said.iter()
            .filter(|line| line.contains(text))
            .cloned()
            .collect()
    }

    /// Waits for a line.
    pub async fn says(&self, text: &str) -> String {
        eventually(
            PATIENCE,
            &format!("it says {text:?}: {:?}", self.said("")),
            async || self.said(text).pop(),
        )
        .await
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub async fn exits(&mut self) -> ExitStatus {
        eventually(PATIENCE, "the sidecar exits", async || {
            self.child.try_wait().unwrap()
        })
        .await
    }

    /// Ends it in good order.
    pub async fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.exits().await
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the sidecar said:\n{}", self.said("").join("\n"));
        }
    }
}
