//! How a marking that fails goes on: repeated where it may pass, in halves where the server refuses a row for good.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

use crate::row::RowId;

/// Before a marking that failed is repeated, at first.
pub(crate) const LEAST_WAIT: Duration = Duration::from_millis(100);

/// Rows to be marked with the same, in parts that the server takes.
pub(crate) struct Parts<'a>(Vec<&'a [RowId]>);

impl<'a> Parts<'a> {
    pub(crate) fn of(rows: &'a [RowId]) -> Self {
        Self(vec![rows])
    }

    /// What is to be marked next.
    pub(crate) fn next(&mut self) -> Option<&'a [RowId]> {
        self.0.pop()
    }

    /// Takes back a part that was refused, in halves; the row that is refused once it is alone.
    pub(crate) fn refused(&mut self, part: &'a [RowId]) -> Option<&'a RowId> {
        if let [row] = part {
            return Some(row);
        }
        let (first, second) = part.split_at(part.len() / 2);
        self.0.extend([second, first]);
        None
    }

    /// How many rows are left.
    #[cfg(feature = "sidecar")]
    pub(crate) fn left(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }
}

/// How long to wait before each repetition of a marking that may pass.
pub(crate) fn waits() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(LEAST_WAIT)
        .with_max_delay(Duration::from_secs(5))
        .without_max_times()
        .with_jitter()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_that_is_refused_is_found_and_the_others_are_marked() {
        let rows: Vec<RowId> = (0..100).map(|row| RowId::Text(row.to_string())).collect();
        let bad = &rows[37];
        let (mut parts, mut marked, mut alone) = (Parts::of(&rows), 0, Vec::new());
        while let Some(part) = parts.next() {
            match part.contains(bad) {
                true => alone.extend(parts.refused(part)),
                false => marked += part.len(),
            }
        }
        assert_eq!((marked, alone), (99, vec![bad]));
    }
}
