//! The Rust end of `leash.sh`: a server that cannot outlive this process.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::eventually;

/// A running or killed server, its folder, and the shell that ends both with us.
pub struct Leash {
    shell: Mutex<Child>,
    server: Mutex<Option<Pid>>,
    folder: PathBuf,
}

/// The path of a script beside this file.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/support")
        .join(name)
}

/// A fresh folder for one server; the leash that is given it removes it.
pub fn folder() -> PathBuf {
    // Cargo tells it when it builds a test, not when it builds an example.
    let parent = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::Builder::new()
        .prefix("server-")
        .tempdir_in(parent);
    folder.expect("a folder for a server").keep()
}

impl Leash {
    /// Starts a command whose data is in `folder`.
    pub async fn hold(folder: PathBuf, command: Command) -> Self {
        let output = File::create(folder.join("output")).expect("a file for the server's output");
        let shell = Command::new(script("leash.sh"))
            .arg(command.get_program())
            .args(command.get_args())
            .env("LEASH_PID", folder.join("pid"))
            .env("LEASH_DATA", &folder)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().expect("the file once more"))
            .stderr(output)
            .spawn()
            .expect("leash.sh");

        let leash = Self {
            shell: shell.into(),
            server: None.into(),
            folder,
        };
        leash.started().await;
        leash
    }

    /// Where the server keeps its data.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sends a signal to the server itself, if it runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(server) = *self.server.lock().unwrap() {
            // It may have ended on its own.
            let _ = kill_process(server, signal);
        }
    }

    /// Whether the process exists, paused or not.
    pub fn runs(&self) -> bool {
        self.server
            .lock()
            .unwrap()
            .is_some_and(|server| test_kill_process(server).is_ok())
    }

    /// What the server has used of the processors since it was last started.
    pub fn processor_time(&self) -> Duration {
        let server = self.server.lock().unwrap().expect("a server that runs");
        super::processor_time(server.as_raw_nonzero().get().unsigned_abs())
    }

    /// Waits until the server has ended, and forgets its pid.
    pub async fn ended(&self) {
        eventually(Duration::from_secs(30), "the server ends", async || {
            !self.runs()
        })
        .await;
        *self.server.lock().unwrap() = None;
    }

    /// Starts the command again, on the same data, once it has ended.
    pub async fn start_again(&self) {
        self.ended().await;
        fs::remove_file(self.pid_file()).expect("the old pid");
        let order = self
            .shell
            .lock()
            .unwrap()
            .stdin
            .as_ref()
            .map(|mut pipe| pipe.write_all(b"start\n"));
        order.expect("a pipe").expect("leash.sh lives");
        self.started().await;
    }

    /// What the server said, for a panic message.
    pub fn output(&self) -> String {
        fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    async fn started(&self) {
        let server = eventually(
            Duration::from_secs(10),
            "leash.sh starts the server",
            async || {
                let pid = fs::read_to_string(self.pid_file()).ok()?;
                Pid::from_raw(pid.trim().parse().ok()?)
            },
        );
        *self.server.lock().unwrap() = Some(server.await);
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.join("pid")
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        // Waiting closes the pipe first. The ports and the memory are free when this returns.
        let _ = self.shell.get_mut().map(Child::wait);
    }
}
