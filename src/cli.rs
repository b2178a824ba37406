//! What can be said on the command line. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.

mod init;
mod log;
mod options;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::Error;
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
    Run(run::Run),
    Init(init::Init),
}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
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
            Command::Run(run) => run.run(&self.options).await,
            Command::Init(init) => init.run(&self.options).await,
        }
    }
}

/// 2 for what the user can mend in the call or the settings, 1 for what failed.
fn exit_code(error: &Error) -> ExitCode {
    match error {
        Error::Setting { .. } | Error::Component { .. } => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
