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
        // For bash it calls the commands of a program with a hyphen in its name by two names, one where they are set and
        // another where they are looked up (clap-rs/clap#6421).
        let script = String::from_utf8_lossy(&script);
        let script = script.replace("toa__subcmd__outbox", "toa__outbox");
        let mut output = Output::new(false);
        output.bytes(script.as_bytes())?;
        Ok(output.flush()?)
    }
}
