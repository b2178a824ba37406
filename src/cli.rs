//! What can be said on the command line.

mod init;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use toa_outbox::{Error, Settings};

/// A transactional outbox for MongoDB.
#[derive(Parser)]
#[command(version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(init::Init),
}

impl Cli {
    pub async fn run(self) -> Result<(), Error> {
        let settings = Settings::from_env()?;
        match self.command {
            Command::Init(init) => init.run(settings).await,
        }
    }
}

/// 2 for what the user can mend in the call or the settings, 1 for what failed.
pub fn exit_code(error: &Error) -> ExitCode {
    match error {
        Error::Setting { .. } | Error::Component { .. } => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
