//! What the process tells while it runs: on standard error, a line each.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::Log;

/// Shows what is told from now on, as text for people or a JSON document a line, coloured on a terminal only.
/// `filter` is a level, or what <https://docs.rs/tracing-subscriber/latest/tracing_subscriber/filter/struct.EnvFilter.html>
/// describes; the client of the broker is kept quiet: it repeats message bodies, and what matters of it we say ourselves.
pub(super) fn show(form: Log, filter: &str) {
    let quiet = "lapin=off".parse();
    let filter = quiet
        .into_iter()
        .fold(EnvFilter::new(filter), EnvFilter::add_directive);
    let lines = fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // Where an application has its own, that one is kept.
    let _ = match form {
        Log::Json => lines.json().flatten_event(true).try_init(),
        Log::Text => lines.try_init(),
    };
}
