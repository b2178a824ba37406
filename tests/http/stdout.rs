//! Standard output, of this program run anew: that of a test is not its own.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;
use toa_outbox::{Builder, Stdout};

use crate::{
    PATIENCE,
    conformance::entity,
    flat,
    log::Log,
    mongodb,
    support::{Conduct, Destination, Pots, conforms, eventually, unique},
};

/// Where the one that is run has its rows, and its standard output.
const MONGODB: &str = "TEST_MONGODB";
const OUTPUT: &str = "TEST_OUTPUT";

/// This program, to run one of the tests that are ignored otherwise.
async fn anew(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(MONGODB, mongodb().await);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standard_output_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("output");
    let mut command = anew("stdout::conforming").await;
    command
        .env(OUTPUT, &path)
        .stdout(fs::File::create(&path).unwrap());
    let ran = tokio::task::spawn_blocking(move || command.status().unwrap()).await;
    let output = fs::read_to_string(&path).unwrap();
    assert!(ran.unwrap().success(), "{output}");
    assert!(output.contains("{\"row\""), "it ran nothing: {output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is run by another"]
async fn conforming() {
    let output = Output(env::var_os(OUTPUT).unwrap().into());
    conforms(&env::var(MONGODB).unwrap(), &output).await;
}

struct Output(PathBuf);

impl Destination for Output {
    const CONDUCTS: &[Conduct] = &[];

    async fn added_to(&self, builder: Builder, name: &str, labels: &str) -> Builder {
        builder.sink(name, [labels], Stdout::new())
    }

    async fn behave(&self, _: Conduct) {}

    fn pots(&self) -> Vec<usize> {
        let text = fs::read_to_string(&self.0).unwrap();
        // Behind what the test harness has begun to say.
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let objects = lines.filter_map(|line| Some(&line[line.find("{\"row\"")?..]));
        let pot = |object: &str| entity(&serde_json::from_str::<Value>(object).unwrap());
        objects.map(pot).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_any_more_is_told_of_and_owed_all_of_it() {
    let mut command = anew("stdout::unread").await;
    let ran = tokio::task::spawn_blocking(move || {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("{\"row\"") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        drop(output);
        child.wait().unwrap()
    });
    assert!(ran.await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is run by another"]
async fn unread() {
    let pots = Pots::new(&env::var(MONGODB).unwrap()).await;
    let (log, name) = (Log::read(), unique("out"));
    let builder = pots.builder();
    let builder = builder.sink_with(&name, [pots.labels()], Stdout::new(), flat());
    let outbox = builder.open().await.unwrap();
    let mut made = 0;
    eventually(PATIENCE, "it is told", async || {
        pots.make(&outbox, made..made + 1).await;
        made += 1;
        let lines = log.ours(&name);
        lines
            .iter()
            .any(|line| line.contains("writing to standard output"))
    })
    .await;
    pots.owed("it is owed something", |owed| owed > 0).await;
    outbox.shutdown().await;
    // The test harness has nobody to report to.
    std::process::exit(0);
}
