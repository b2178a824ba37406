//! The command line: prepares outbox collections. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.

mod cli;

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::Cli::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toa-outbox: {error}");
            cli::exit_code(&error)
        }
    }
}
