//! How much an operator lets go at once.

use std::time::Duration;

use clap::Args;

use super::argument;
use crate::Error;

/// The most rows that go without an approval: as many as `--limit` shows, and one can look through.
pub(super) const HARD_ROWS: u64 = 100;

/// The longest id of an approval: that of a ticket, or a name.
const LONGEST_APPROVAL: usize = 128;

/// How long a canary may take where nothing else is said.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// From one look at what became of it to the next.
pub(super) const LOOK: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(super) struct Limits {
    /// No more than so many rows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_rows: Option<u64>,
    /// No more than so many bytes, by the size of the rows
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_bytes: Option<u64>,
    /// No longer than this, such as 5m
    #[arg(long, value_name = "SPAN", value_parser = argument::span)]
    pub(super) max_time: Option<Duration>,
    /// Wait until one has been taken before the rest goes; it gets 60 s, or --max-time
    #[arg(long)]
    pub(super) canary: bool,
    /// By whose leave, such as a ticket; asked for above 100 rows, and kept
    #[arg(long, value_name = "ID", value_parser = approval)]
    pub(super) approval: Option<String>,
}

impl Limits {
    /// How long a canary may take.
    pub(super) fn patience(&self) -> Duration {
        self.max_time.unwrap_or(PATIENCE)
    }

    /// Refuses what is too much without an approval. `look` says how to see what would go.
    pub(super) fn allow(&self, rows: u64, look: &str) -> Result<(), Error> {
        if rows <= HARD_ROWS || self.approval.is_some() {
            return Ok(());
        }
        Err(Error::Setting {
            name: "--approval".into(),
            origin: "not set".into(),
            value: String::new(),
            expected: format!(
                "{rows} rows would go, and nothing was done: more than {HARD_ROWS} take an approval; look at them ({look}), then \
                 pass the id of a ticket, or who allows it"
            ),
        })
    }
}

fn approval(text: &str) -> Result<String, String> {
    let is_known = |c: char| c.is_ascii_graphic();
    match (1..=LONGEST_APPROVAL).contains(&text.len()) && text.chars().all(is_known) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected 1 to {LONGEST_APPROVAL} letters, digits or punctuation marks"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_can_look_through_takes_an_approval() {
        let mut limits = Limits {
            max_rows: None,
            max_bytes: None,
            max_time: None,
            canary: false,
            approval: None,
        };
        assert!(limits.allow(HARD_ROWS, "list").is_ok());
        let refused = limits.allow(HARD_ROWS + 1, "list").unwrap_err().to_string();
        assert!(refused.contains("101 rows"), "{refused}");
        limits.approval = Some("OPS-1".into());
        assert!(limits.allow(HARD_ROWS + 1, "list").is_ok());
    }

    #[test]
    fn an_approval_is_one_word() {
        for usable in ["OPS-17", "https://tickets/7", "anna"] {
            assert!(approval(usable).is_ok(), "{usable}");
        }
        for unusable in ["", "a b", "a\n", &"x".repeat(129)] {
            assert!(approval(unusable).is_err(), "{unusable:?}");
        }
    }
}
