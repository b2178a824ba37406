//! How much of what is next goes together: rows as a whole, and of one that does not fit by itself, as many labels as do.

use super::{delivery::Delivery, piece::Piece};
use crate::sinks::Message;

pub(super) struct Portion {
    /// Of which rows.
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) messages: Vec<Message>,
    /// How many of the last row go later.
    pub(super) untried: usize,
}

impl Delivery<'_> {
    /// So many rows from one on, or as many of them as the sink is given together.
    pub(super) fn portion(&self, first: usize, rows: usize) -> Portion {
        let attempt = self.bisection.failures().saturating_add(1);
        let now = tokio::time::Instant::now();
        let pieces = self.queue.iter().skip(first).take(rows);
        let messages = pieces.flat_map(|piece| {
            // An earlier owner may have tried it.
            let is_live = piece.is_new(now) && attempt == 1;
            piece.todo.iter().map(move |(_, message)| Message {
                attempt,
                is_live,
                ..message.clone()
            })
        });
        let mut messages: Vec<Message> = messages.collect();
        let fits = match messages.is_empty() {
            true => 0,
            false => self.of.batched.fitting(&messages),
        };
        let counts = self.queue.iter().skip(first).take(rows);
        let cut = Cut::of(counts.map(|piece: &Piece| piece.todo.len()), fits);
        messages.truncate(cut.messages);
        Portion {
            first,
            rows: cut.rows,
            messages,
            untried: cut.untried,
        }
    }
}

/// Where a batch ends.
struct Cut {
    rows: usize,
    messages: usize,
    untried: usize,
}

impl Cut {
    /// Of rows of so many messages, if so many of these fit: at least one, if there is one.
    fn of(rows: impl IntoIterator<Item = usize>, fits: usize) -> Self {
        let mut cut = Self {
            rows: 0,
            messages: 0,
            untried: 0,
        };
        for messages in rows {
            match cut.messages + messages {
                all if all <= fits => cut.messages = all,
                _ if cut.messages > 0 => break,
                _ => {
                    (cut.messages, cut.untried) = (fits, messages - fits);
                    cut.rows += 1;
                    break;
                }
            }
            cut.rows += 1;
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_as_a_whole_and_one_that_is_too_much_in_parts() {
        for (rows, fits, expected) in [
            (&[2, 2, 2][..], 6, (3, 6, 0)),
            (&[2, 2, 2], 5, (2, 4, 0)),
            (&[2, 2, 2], 2, (1, 2, 0)),
            (&[2, 2, 2], 1, (1, 1, 1)),
            (&[3, 1], 2, (1, 2, 1)),
            // Those without a message go along.
            (&[0, 1, 0, 1], 1, (3, 1, 0)),
            (&[0, 2], 1, (2, 1, 1)),
            (&[0, 0], 0, (2, 0, 0)),
        ] {
            let cut = Cut::of(rows.iter().copied(), fits);
            let cut = (cut.rows, cut.messages, cut.untried);
            assert_eq!(cut, expected, "{rows:?} {fits}");
        }
    }
}
