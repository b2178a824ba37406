//! `completions`: what a shell needs to complete the command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, failure::Outcome, output::Output};

/// Print a script that completes commands and options.
#[derive(Args)]
#[command(after_help = "Example:
  toa-outbox completions bash > /etc/bash_completion.d/toa-outbox")]
pub(super) struct Completions {
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "toa-outbox", &mut script);
        let mut output = Output::new(false);
        output.bytes(&script)?;
        Ok(output.flush()?)
    }
}
