//! The sidecar, and the operator's tool; `toa-outbox help` tells the rest.

use std::process::ExitCode;

fn main() -> ExitCode {
    toa_outbox::cli::main()
}
