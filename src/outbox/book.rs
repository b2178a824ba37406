//! What is known of the backlog, and what follows from it. All figures are in the unit of the ceiling.

use std::time::{Duration, Instant};

/// After which a count is old.
const PERIOD: Duration = Duration::from_secs(1);

/// The least time from one count to the next, but for a row that waits for it with room left.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// The same, in times of what a count takes: neither who looks ahead nor who is refused over and over may be a load.
const PAUSE: u32 = 10;

/// What one process may add to a count: this part of the room there was.
const PART: u64 = 16;

/// And this part of the ceiling at least, so that not every row is counted for when little is left.
const LEAST_PART: u64 = 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Room,
    Full,
    /// It has to be counted first.
    Unknown,
}

pub(super) struct Book {
    most: u64,
    last: Last,
    /// Rows that were let through since the last count, whatever became of them.
    used: u64,
    /// Rows that were let through and may not be seen by a count yet.
    open: u64,
    /// Rows that are open no more, since the beginning.
    closed: u64,
}

/// How the last count went.
enum Last {
    Never,
    Counted(Count),
    Failed { at: Instant },
}

struct Count {
    held: u64,
    /// How many were closed when it began: it has seen those, and maybe not the later ones.
    closed: u64,
    /// How much may be used before it is counted again.
    grant: u64,
    at: Instant,
    pause: Duration,
}

impl Book {
    pub(super) fn new(most: u64) -> Self {
        Self {
            most,
            last: Last::Never,
            used: 0,
            open: 0,
            closed: 0,
        }
    }

    pub(super) fn judge(&self, weight: u64, now: Instant) -> Verdict {
        match &self.last {
            Last::Never => Verdict::Unknown,
            // A count that fails keeps no row back.
            Last::Failed { at } if now < *at + PERIOD => Verdict::Room,
            Last::Failed { .. } => Verdict::Unknown,
            Last::Counted(count) if self.has_room(weight) => {
                match self.used > 0 && self.used.saturating_add(weight) > count.grant {
                    true => Verdict::Unknown,
                    false => Verdict::Room,
                }
            }
            Last::Counted(count) if now < count.at + count.pause => Verdict::Full,
            Last::Counted(_) => Verdict::Unknown,
        }
    }

    /// Whether it fits, as far as is known.
    pub(super) fn has_room(&self, weight: u64) -> bool {
        let Last::Counted(count) = &self.last else {
            return true;
        };
        let own = self.open.saturating_add(self.closed - count.closed);
        let total = count.held.saturating_add(own).saturating_add(weight);
        total <= self.most
    }

    /// Whether it is time to count before someone has to wait for it.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        match &self.last {
            Last::Never => true,
            Last::Failed { at } => now >= *at + PERIOD,
            Last::Counted(count) => {
                let is_soon = self.used.saturating_mul(2) > count.grant;
                let wait = match is_soon {
                    true => count.pause,
                    false => count.pause.max(PERIOD),
                };
                now >= count.at + wait
            }
        }
    }

    pub(super) fn open(&mut self, weight: u64) {
        self.used = self.used.saturating_add(weight);
        self.open = self.open.saturating_add(weight);
    }

    pub(super) fn close(&mut self, weight: u64) {
        self.open = self.open.saturating_sub(weight);
        self.closed = self.closed.saturating_add(weight);
    }

    pub(super) fn closed(&self) -> u64 {
        self.closed
    }

    /// What the server holds, when `closed` had been closed before it was asked. It took a while.
    pub(super) fn counted(&mut self, held: u64, closed: u64, at: Instant, took: Duration) {
        let room = self.most.saturating_sub(held);
        let grant = (room / PART).max(self.most / LEAST_PART).max(1);
        self.used = 0;
        self.last = Last::Counted(Count {
            held,
            closed,
            grant,
            at,
            pause: (took * PAUSE).max(LEAST_PAUSE),
        });
    }

    /// Whether that is news.
    pub(super) fn failed(&mut self, at: Instant) -> bool {
        let before = std::mem::replace(&mut self.last, Last::Failed { at });
        !matches!(before, Last::Failed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(1);

    fn book(most: u64, held: u64, now: Instant) -> Book {
        let mut book = Book::new(most);
        assert_eq!(book.judge(1, now), Verdict::Unknown, "never counted");
        book.counted(held, 0, now, QUICK);
        book
    }

    #[test]
    fn own_rows_are_added_to_what_was_counted() {
        let now = Instant::now();
        let mut book = book(10, 8, now);
        book.open(1);
        assert!(book.has_room(1) && !book.has_room(2));
        book.close(1);
        assert!(book.has_room(1) && !book.has_room(2));
        // What was closed before a count is in it; what is open still may not be.
        book.open(1);
        let closed = book.closed();
        book.counted(9, closed, now, QUICK);
        assert!(!book.has_room(1));
        book.close(1);
        assert!(!book.has_room(1));
        book.counted(8, book.closed(), now, QUICK);
        assert!(book.has_room(2));
    }

    #[test]
    fn far_below_nobody_waits_for_a_count() {
        let now = Instant::now();
        let mut book = book(16_000, 0, now);
        for _ in 0..500 {
            assert_eq!(book.judge(1, now + PERIOD * 60), Verdict::Room);
            book.open(1);
        }
        assert!(!book.is_stale(now));
        assert!(book.is_stale(now + PERIOD));
        book.open(1);
        assert!(book.is_stale(now + LEAST_PAUSE), "half of it is used");
        let mut slow = Book::new(16_000);
        slow.counted(0, 0, now, PERIOD);
        assert!(!slow.is_stale(now + PERIOD * 9) && slow.is_stale(now + PERIOD * 10));
        (501..1000).for_each(|_| book.open(1));
        assert_eq!(book.judge(1, now), Verdict::Unknown);
    }

    #[test]
    fn what_is_full_is_asked_again_but_so_often() {
        let now = Instant::now();
        let mut book = book(10, 10, now);
        let pause = Duration::from_millis(99);
        assert_eq!(book.judge(1, now + pause), Verdict::Full);
        assert_eq!(book.judge(1, now + LEAST_PAUSE), Verdict::Unknown);
        book.counted(10, 0, now, Duration::from_millis(50));
        assert_eq!(book.judge(1, now + LEAST_PAUSE), Verdict::Full);
    }

    #[test]
    fn a_count_that_fails_keeps_no_row_back() {
        let now = Instant::now();
        let mut book = book(10, 10, now);
        assert!(book.failed(now), "it is told once");
        assert!(!book.failed(now));
        assert_eq!(book.judge(1, now), Verdict::Room);
        assert!(book.has_room(1));
        assert_eq!(book.judge(1, now + PERIOD), Verdict::Unknown);
        book.counted(10, 0, now, QUICK);
        assert_eq!(book.judge(1, now), Verdict::Full);
        assert!(book.failed(now), "and again after it went well");
    }

    #[test]
    fn a_row_larger_than_a_part_of_the_room_is_let_through_alone() {
        let now = Instant::now();
        let mut book = book(1600, 0, now);
        assert_eq!(book.judge(1000, now), Verdict::Room);
        book.open(1000);
        assert_eq!(book.judge(100, now), Verdict::Unknown);
    }
}
