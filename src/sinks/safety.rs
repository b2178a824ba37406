//! How much of a backlog, or of what is sent again, a destination is given at a time.
//!
//! Someone who comes back after an outage finds everything at once before the door. So there is a bound on what is sent in one
//! request and in any minute, and the first request after an outage goes alone. Bounds are those of one replica: several
//! together send as much more.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::error::{Error, Result};

/// Over which requests and bytes are counted.
const WINDOW: Duration = Duration::from_secs(60);

const MIB: u64 = 1024 * 1024;

/// How much of a backlog or a replay one replica sends to a destination at a time: all four figures, or the default. Several
/// replicas together send as much more.
///
/// What is [new](crate::Message::is_live) is not limited, and goes past a backlog that waits. What is larger than a batch may be is rejected where it is
/// not new.
///
/// After an outage the first message of the backlog goes alone, a canary, and those that follow wait for it to be accepted. It was an outage if
/// the destination was [not there](crate::Unreachable), or if two deliveries in a row failed whose messages had not failed before. Nobody knows of one that was before this
/// process started. Where an operator is to decide, the sink is paused under a circuit that is in the log and in `outbox_sinks`, for all replicas,
/// until it is resumed.
///
/// ```
/// use toa_outbox::{Safety, SinkOptions};
///
/// # fn example() -> toa_outbox::Result<()> {
/// let slow = Safety::new(64 * 1024, 10, 256 * 1024, 1)?;
/// let watched = SinkOptions::webhook().safety(slow.confirmed());
/// # Ok(()) }
/// ```
///
/// # In the order of the commits
///
/// Where the [order](crate::SinkOptions::ordered) of the commits is kept, nothing goes past anything. What was in the outbox when the
/// sink began, what was committed more than a minute ago, by the clock of the server, and what was tried is a backlog; the rest is new. So a
/// sink that has fallen behind by more than a minute is given no more than the window lets go, until it is not: **where more is written than
/// that, it never catches up**, and `toa_outbox_cursor_lag_seconds` grows. Have figures above what is written, or none.
///
/// One replica delivers, and another that takes over begins with an empty window and knows of no outage. A row whose labels do not fit into
/// one request goes in parts. It was an outage if the destination was not there, if it asked twice in a row to be left alone, or if a row
/// has failed alone as often as it may and its neighbour failed too; where nothing is given up, if two deliveries in a row failed. What
/// is larger than a batch may be and is not given up holds up what is behind it, and the log says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safety {
    batch_bytes: u64,
    window_requests: u64,
    window_bytes: u64,
    canary: u64,
    is_confirmed: bool,
}

/// 1 MiB a batch; 30 requests and 2 MiB in any 60 seconds; one canary.
impl Default for Safety {
    fn default() -> Self {
        Self {
            batch_bytes: MIB,
            window_requests: 30,
            window_bytes: 2 * MIB,
            canary: 1,
            is_confirmed: false,
        }
    }
}

impl Safety {
    /// At most `batch_bytes` a request, and in any 60 seconds at most `window_requests` requests and `window_bytes` bytes. All are
    /// more than zero, and a batch fits into the window; counted are the payloads. `canary` is how many messages go alone after an outage, before
    /// the rest may follow: 1, or 0 if nothing of a backlog is to be sent until an operator resumes the sink.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] with the name of the figure that cannot be used.
    pub fn new(
        batch_bytes: u64,
        window_requests: u64,
        window_bytes: u64,
        canary: u64,
    ) -> Result<Self> {
        let positive = "expected a positive whole number";
        for (name, value) in [
            ("batch_bytes", batch_bytes),
            ("window_requests", window_requests),
            ("window_bytes", window_bytes),
        ] {
            if value == 0 {
                return Err(refused(name, value, positive));
            }
        }
        if batch_bytes > window_bytes {
            let expected = format!("expected at most window_bytes, which is {window_bytes}");
            return Err(refused("batch_bytes", batch_bytes, &expected));
        }
        if canary > 1 {
            return Err(refused("canary", canary, "expected 1 or 0"));
        }
        Ok(Self {
            batch_bytes,
            window_requests,
            window_bytes,
            canary,
            is_confirmed: false,
        })
    }

    /// What follows the canary waits for an operator.
    #[must_use]
    pub fn confirmed(self) -> Self {
        Self {
            is_confirmed: true,
            ..self
        }
    }

    /// The most one request carries, in bytes.
    pub fn batch_bytes(&self) -> u64 {
        self.batch_bytes
    }

    /// The most requests in any 60 seconds.
    pub fn window_requests(&self) -> u64 {
        self.window_requests
    }

    /// The most bytes in any 60 seconds.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// How many requests go alone after an outage; 0: all wait for an operator.
    pub fn canary(&self) -> u64 {
        self.canary
    }

    /// Whether what follows the canary waits for an operator.
    pub fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }
}

fn refused(name: &str, value: u64, expected: &str) -> Error {
    Error::Setting {
        name: name.into(),
        origin: "safety".into(),
        value: value.to_string(),
        expected: expected.into(),
    }
}

/// What was sent within the last 60 seconds, and whether there is room for more. It has no clock: it is told the time, which
/// must not go back.
#[derive(Clone, Debug)]
pub(super) struct Window {
    safety: Safety,
    /// When, and how many bytes, the oldest first: never more than `window_requests`.
    sent: VecDeque<(Instant, u64)>,
    bytes: u64,
}

/// Whether a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Now, and it has been counted.
    Now,
    /// Then, unless another comes before.
    At(Instant),
    /// Not as it is: it has more bytes than a batch may.
    Never,
}

impl Window {
    /// One in which nothing was sent yet.
    pub(super) fn new(safety: Safety) -> Self {
        Self {
            safety,
            sent: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Reserves room for a request of so many bytes, before it is sent: what becomes of it, it counts for 60 seconds.
    pub(super) fn reserve(&mut self, now: Instant, bytes: u64) -> Room {
        self.forget(now);
        if bytes > self.safety.batch_bytes {
            return Room::Never;
        }
        match self.blocking(bytes) {
            Some(sent) => Room::At(sent + WINDOW),
            None => {
                self.sent.push_back((now, bytes));
                self.bytes += bytes;
                Room::Now
            }
        }
    }

    /// What was reserved last was not sent.
    pub(super) fn return_last(&mut self) {
        if let Some((_, bytes)) = self.sent.pop_back() {
            self.bytes -= bytes;
        }
    }

    /// Drops what was sent before the window.
    fn forget(&mut self, now: Instant) {
        while let Some(&(sent, bytes)) = self.sent.front()
            && now.saturating_duration_since(sent) >= WINDOW
        {
            self.sent.pop_front();
            self.bytes -= bytes;
        }
    }

    /// When that was sent which has to be forgotten last before there is room; none if there is.
    fn blocking(&self, bytes: u64) -> Option<Instant> {
        let mut requests = self.sent.len() as u64;
        let mut taken = self.bytes;
        let mut blocking = None;
        for &(sent, of) in &self.sent {
            let has_room = requests < self.safety.window_requests
                && taken.saturating_add(bytes) <= self.safety.window_bytes;
            if has_room {
                break;
            }
            requests -= 1;
            taken -= of;
            blocking = Some(sent);
        }
        blocking
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn what_is_no_limit_is_refused_by_the_name_of_its_figure() {
        for (figures, name) in [
            ((0, 1, 1, 1), "batch_bytes"),
            ((1, 0, 1, 1), "window_requests"),
            ((1, 1, 0, 1), "window_bytes"),
            ((2, 1, 1, 1), "batch_bytes"),
            ((1, 1, 1, 2), "canary"),
        ] {
            let refused = Safety::new(figures.0, figures.1, figures.2, figures.3);
            let text = refused.unwrap_err().to_string();
            assert!(text.starts_with(&format!("{name} ")), "{text}");
        }
        let default = Safety::default();
        assert_eq!(Safety::new(MIB, 30, 2 * MIB, 1).unwrap(), default);
        assert!(Safety::new(u64::MAX, u64::MAX, u64::MAX, 0).is_ok());
    }

    #[test]
    fn the_thirty_first_request_waits_for_the_first_to_be_a_minute_old() {
        let (mut window, began) = (Window::new(Safety::default()), Instant::now());
        for second in 0..30 {
            let now = began + Duration::from_secs(second);
            assert_eq!(window.reserve(now, 1), Room::Now);
        }
        let now = began + Duration::from_secs(30);
        assert_eq!(window.reserve(now, 1), Room::At(began + WINDOW));
        assert_eq!(window.reserve(began + WINDOW, 1), Room::Now);
        assert_eq!(window.reserve(began, MIB + 1), Room::Never);
    }

    proptest! {
        /// No 60 seconds see more than they may, whoever asks whenever; and who waits as long as he is told, finds room.
        #[test]
        fn no_window_sees_more_than_it_may(
            asked in vec((0u64..40_000, 1u64..=120), 1..200),
            requests in 1u64..6,
        ) {
            let safety = Safety::new(100, requests, 250, 1).unwrap();
            let mut window = Window::new(safety);
            let began = Instant::now();
            let mut now = began;
            let mut sent: Vec<(Instant, u64)> = Vec::new();
            for (millis, bytes) in asked {
                now += Duration::from_millis(millis);
                match window.reserve(now, bytes) {
                    Room::Now => sent.push((now, bytes)),
                    Room::Never => prop_assert!(bytes > 100),
                    Room::At(then) => {
                        prop_assert!(then > now && then <= now + WINDOW);
                        let early = window.clone().reserve(then - Duration::from_nanos(1), bytes);
                        prop_assert_eq!(early, Room::At(then));
                        prop_assert_eq!(window.clone().reserve(then, bytes), Room::Now);
                    }
                }
            }
            for &(first, _) in &sent {
                let within = sent.iter().filter(|(at, _)| *at >= first && *at < first + WINDOW);
                let (count, bytes) = within.fold((0, 0), |(count, sum), (_, bytes)| (count + 1, sum + bytes));
                prop_assert!(count <= requests && bytes <= 250);
            }
        }
    }
}
