//! How much may wait before nothing more is taken.

use std::{fmt, str::FromStr};

/// How much an outbox holds before it refuses more: see [`Settings::ceiling`](crate::Settings::ceiling).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// So many rows.
    Rows(u64),
    /// Rows of so many bytes together, as BSON.
    Bytes(u64),
}

/// What a text may end with, the longest units first.
const UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// What a text has to be.
pub(crate) const EXPECTED: &str =
    "a number of rows such as 100000, or of bytes such as 64MiB (KiB, MiB or GiB), at least 1";

impl Ceiling {
    /// In its unit.
    pub(crate) fn most(self) -> u64 {
        match self {
            Self::Rows(most) | Self::Bytes(most) => most,
        }
    }

    /// Whether the server can count as far.
    pub(crate) fn is_usable(self) -> bool {
        (1..=i64::MAX.unsigned_abs()).contains(&self.most())
    }

    /// For people.
    pub(crate) fn in_words(self) -> String {
        match self {
            Self::Rows(_) => format!("{self} rows"),
            Self::Bytes(_) => self.to_string(),
        }
    }

    /// What a row of so many bytes counts for.
    pub(crate) fn weight(self, size: usize) -> u64 {
        match self {
            Self::Rows(_) => 1,
            Self::Bytes(_) => u64::try_from(size).unwrap_or(u64::MAX),
        }
    }
}

/// Neither a number of rows nor one of bytes.
#[derive(Debug, thiserror::Error)]
#[error("expected {EXPECTED}")]
pub struct NotACeiling(());

impl FromStr for Ceiling {
    type Err = NotACeiling;

    fn from_str(text: &str) -> Result<Self, NotACeiling> {
        let unit = UNITS.iter().find_map(|(unit, bytes)| {
            let number = text.strip_suffix(unit)?;
            Some((number.trim_end(), bytes))
        });
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u64>().ok(),
            false => None,
        };
        let ceiling = match unit {
            Some((text, bytes)) => number(text)
                .and_then(|number| number.checked_mul(*bytes))
                .map(Self::Bytes),
            None => number(text).map(Self::Rows),
        };
        ceiling
            .filter(|ceiling| ceiling.is_usable())
            .ok_or(NotACeiling(()))
    }
}

/// As it is read.
impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows(rows) => rows.fmt(f),
            Self::Bytes(bytes) => {
                let is_whole = |(_, unit): &&(&str, u64)| bytes.is_multiple_of(*unit);
                let (name, unit) = UNITS.iter().find(is_whole).unwrap_or(&("B", 1));
                write!(f, "{}{name}", bytes / unit)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_bytes_are_told_apart() {
        let read = |text: &str| text.parse::<Ceiling>().ok();
        assert_eq!(read("100000"), Some(Ceiling::Rows(100_000)));
        assert_eq!(read("64MiB"), Some(Ceiling::Bytes(64 << 20)));
        assert_eq!(read("1 GiB"), Some(Ceiling::Bytes(1 << 30)));
        assert_eq!(read("3KiB"), Some(Ceiling::Bytes(3072)));
        for text in [
            "",
            "0",
            "0MiB",
            "-1",
            "+1",
            "1.5",
            "64MB",
            "MiB",
            "64mib",
            "1e5",
            "99999999999999999999",
            "18014398509481984KiB",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read() {
        for text in ["100000", "64MiB", "1GiB", "3KiB", "1500B"] {
            assert_eq!(text.parse::<Ceiling>().unwrap().to_string(), text);
        }
    }
}
