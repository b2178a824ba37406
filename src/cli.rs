//! What can be said on the command line. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.

mod argument;
mod check;
mod completions;
mod config;
mod dead;
mod deliveries;
mod failure;
mod init;
mod limits;
mod list;
mod log;
mod options;
mod output;
mod publish;
mod run;
mod show;
mod sinks;
mod status;
mod tail;
mod target;

use std::process::ExitCode;

use clap::{Parser, Subcommand, error::ErrorKind};

use crate::config::masked;
use failure::{Outcome, say};
use options::Options;

/// A transactional outbox for MongoDB.
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Exit codes:
  0  done, or ended by Ctrl-C where that is the way to end it
  1  failed, or something is wrong
  2  the command line or a setting cannot be used"
)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Config(config::Config),
    Init(init::Init),
    Check(check::Check),
    Status(status::Status),
    List(list::List),
    Show(show::Show),
    Publish(publish::Publish),
    Tail(tail::Tail),
    Sinks(sinks::Sinks),
    Dead(dead::Dead),
    Deliveries(deliveries::OfRow),
    Completions(completions::Completions),
}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(cli.run());
    // MongoDB's driver panics where one of its tasks is dropped while another still needs it. They end with the process.
    std::mem::forget(runtime);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

impl Cli {
    async fn run(self) -> Outcome {
        let options = &self.options;
        match self.command {
            Command::Run(run) => run.run(options).await,
            Command::Config(config) => config.run(options),
            Command::Init(init) => init.run(options).await,
            Command::Check(check) => check.run(options).await,
            Command::Status(status) => status.run(options).await,
            Command::List(list) => list.run(options).await,
            Command::Show(show) => show.run(options).await,
            Command::Publish(publish) => publish.run(options).await,
            Command::Tail(tail) => tail.run(options).await,
            Command::Sinks(sinks) => sinks.run(options).await,
            Command::Dead(dead) => dead.run(options).await,
            Command::Deliveries(of_row) => of_row.run(options).await,
            Command::Completions(completions) => completions.run(),
        }
    }
}

/// Help and version as they are, and what is wrong on one line: clap repeats an argument, which may be a connection
/// string in the wrong place.
fn refuse(error: &clap::Error) -> ExitCode {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        // A closed pipe is nobody's fault.
        let _ = error.print();
        return if is_help {
            ExitCode::from(2)
        } else {
            ExitCode::SUCCESS
        };
    }
    let text = error.render().to_string();
    let said = text.split("\nUsage:").next().unwrap_or_default();
    let lines = said.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    // Where a list follows, its heading ends with a colon.
    let line = lines.collect::<Vec<_>>().join("; ").replace(":; ", ": ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    say(&format!("{}; --help tells what there is", masked(line)));
    ExitCode::from(2)
}
