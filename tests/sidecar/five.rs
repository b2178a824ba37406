//! The commands of the README, as they stand there.

use std::{path::Path, process::Stdio};

use serde_json::Value;
use tokio::process::Command;

use crate::support::ports;

/// The shell blocks of a section.
fn commands(section: &str) -> String {
    let readme = include_str!("../../README.md");
    let (_, text) = readme.split_once(&format!("\n## {section}\n")).unwrap();
    let (text, _) = text.split_once("\n## ").unwrap();
    let blocks = text.split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap())
        .collect()
}

/// With links to the project's parts and servers of its own; what `cargo install` would bring is the binary that is tested.
fn script() -> String {
    let commands = commands("Sidecar in five minutes");
    let install = "cargo install --path .\n";
    assert!(commands.contains(install));
    let commands = commands.replace(install, "");
    let binary = Path::new(env!("CARGO_BIN_EXE_toa-outbox"));
    let folder = binary.parent().unwrap().display();
    let project = env!("CARGO_MANIFEST_DIR");
    format!(
        "set -eu\n\
         export PATH={folder}:$PATH\n\
         ln -s {project}/{{Makefile,examples,tests,.servers}} .\n\
         trap 'set +e; kill %1; wait %1; make down' EXIT\n\
         {commands}"
    )
}

#[tokio::test]
async fn sidecar_in_five_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let first = ports::free(8);
    let output = Command::new("bash")
        .arg("-c")
        .arg(script())
        .current_dir(folder.path())
        .env("UP_FOLDER", folder.path().join("up"))
        .env("UP_MONGODB_PORT", first.to_string())
        .env("UP_RABBITMQ_PORT", (first + 1).to_string())
        // Within a make of ours, that of the README would say which folder it is in, on standard output.
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for log in ["comq.log", "pika.log", "amqplib.log"] {
        let log = std::fs::read_to_string(folder.path().join(log)).unwrap();
        let messages: Vec<Value> = log
            .lines()
            .skip(1)
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(messages.len() >= 2000, "{said}");
        let decoded =
            |message: &Value| message["type"] == "created" && message["body"]["temperature"] == 20;
        assert!(messages.iter().all(decoded), "{:?}", messages.first());
    }
}
