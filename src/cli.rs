//! What can be said on the command line. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.

mod config;
mod init;
mod options;

use std::process::ExitCode;

use clap::{Parser, Subcommand, error::ErrorKind};

use crate::{Error, config::masked};
use options::Options;

/// A transactional outbox for MongoDB.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Config(config::Config),
    Init(init::Init),
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
            eprintln!("toa-outbox: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(cli.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toa-outbox: {error}");
            exit_code(&error)
        }
    }
}

impl Cli {
    async fn run(self) -> Result<(), Error> {
        match self.command {
            Command::Config(config) => config.run(&self.options),
            Command::Init(init) => init.run(&self.options).await,
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
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join("; ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    eprintln!("toa-outbox: {}; --help tells what there is", masked(line));
    ExitCode::from(2)
}

/// 2 for what the user can mend in the call or the settings, 1 for what failed.
fn exit_code(error: &Error) -> ExitCode {
    match error {
        Error::Setting { .. } | Error::Component { .. } => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
