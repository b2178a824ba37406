//! Who closed the channel? Suspects are set apart until one answer tells.
//!
//! A broker that cannot take one message closes the channel with everything unconfirmed on it, guilty
//! and innocent. Its reason names the exchange where that is at fault; otherwise each message that was
//! on the channel is a suspect. Suspects go on a channel of their own, one at a time: an ack clears the
//! suspicion, another close proves the guilt, and the guilty one is not tried again before the next
//! cycle. So an innocent message is struck at most once for each culprit.
//!
//! The quarantine outlives the connection. The client confirms that a channel is closed ahead of what it
//! still has queued for it, and the broker answers what comes late by closing the connection
//! (`CHANNEL_ERROR - expected 'channel.open'`). With each connection beginning in innocence, a large
//! enough backlog and one culprit would end one after the other.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How many suspects are remembered; one more is treated as innocent, and may strike once more.
const MOST: usize = 10_000;

/// How long after its last failure a guilty one is worth its place when there are too many: longer than
/// any wait between two attempts.
const STALE: Duration = Duration::from_secs(600);

/// Who is suspect: an exchange, or one message by row and label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Suspect {
    Exchange(String),
    Message(String, String),
}

#[derive(Default)]
pub(super) struct Quarantine {
    suspects: HashMap<Suspect, Option<Guilt>>,
}

struct Guilt {
    since: Instant,
    reason: String,
}

/// What to do with a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Nothing speaks against it.
    Innocent,
    /// Try it alone.
    Probe(Suspect),
    /// It failed alone less than a cycle ago.
    Wait(Suspect, String),
}

impl Quarantine {
    pub(super) fn is_empty(&self) -> bool {
        self.suspects.is_empty()
    }

    pub(super) fn suspect(&mut self, suspect: Suspect, now: Instant) {
        if self.suspects.len() >= MOST {
            // Some of them will never be seen here again: marked by others, or deleted.
            let fresh = |guilt: &Guilt| now.duration_since(guilt.since) < STALE;
            self.suspects
                .retain(|_, guilt| guilt.as_ref().is_some_and(fresh));
        }
        if self.suspects.len() < MOST {
            self.suspects.entry(suspect).or_default();
        }
    }

    pub(super) fn clear(&mut self, suspect: &Suspect) {
        self.suspects.remove(suspect);
    }

    pub(super) fn convict(&mut self, suspect: &Suspect, reason: String, now: Instant) {
        let guilt = Guilt { since: now, reason };
        self.suspects.insert(suspect.clone(), Some(guilt));
    }

    pub(super) fn treatment(
        &self,
        message: &[Suspect; 2],
        cycle: Duration,
        now: Instant,
    ) -> Treatment {
        let found = message
            .iter()
            .find_map(|suspect| Some((suspect, self.suspects.get(suspect)?)));
        match found {
            None => Treatment::Innocent,
            Some((suspect, Some(guilt))) if now.duration_since(guilt.since) < cycle => {
                Treatment::Wait(suspect.clone(), guilt.reason.clone())
            }
            Some((suspect, _)) => Treatment::Probe(suspect.clone()),
        }
    }
}

/// The exchange a broker's reason names, if it names one:
/// `NOT_FOUND - no exchange 'tea.pots.created' in vhost '/'`.
pub(super) fn named_exchange(reason: &str) -> Option<&str> {
    let (_, rest) = reason.split_once("exchange '")?;
    let (name, _) = rest.split_once('\'')?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLE: Duration = Duration::from_secs(5);

    fn message() -> [Suspect; 2] {
        let exchange = Suspect::Exchange("x".into());
        [exchange, Suspect::Message("row".into(), "label".into())]
    }

    #[test]
    fn a_suspect_is_probed_and_then_cleared_or_left_alone_for_a_cycle() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        let [exchange, _] = message();
        assert_eq!(
            quarantine.treatment(&message(), CYCLE, now),
            Treatment::Innocent
        );
        quarantine.suspect(exchange.clone(), now);
        assert_eq!(
            quarantine.treatment(&message(), CYCLE, now),
            Treatment::Probe(exchange.clone())
        );
        quarantine.convict(&exchange, "gone".into(), now);
        let wait = Treatment::Wait(exchange.clone(), "gone".into());
        assert_eq!(quarantine.treatment(&message(), CYCLE, now), wait);
        let later = now + CYCLE;
        assert_eq!(
            quarantine.treatment(&message(), CYCLE, later),
            Treatment::Probe(exchange.clone())
        );
        quarantine.clear(&exchange);
        assert!(quarantine.is_empty());
    }

    #[test]
    fn a_new_suspicion_does_not_end_a_sentence() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        let [_, alone] = message();
        quarantine.convict(&alone, "too large".into(), now);
        quarantine.suspect(alone.clone(), now);
        assert!(matches!(
            quarantine.treatment(&message(), CYCLE, now),
            Treatment::Wait(..)
        ));
    }

    #[test]
    fn too_many_suspects_make_room_and_the_guilty_stay() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        let [exchange, _] = message();
        quarantine.convict(&exchange, "gone".into(), now);
        for row in 0..=MOST {
            quarantine.suspect(Suspect::Message(row.to_string(), "label".into()), now);
        }
        assert!(quarantine.suspects.len() < MOST);
        let wait = Treatment::Wait(exchange, "gone".into());
        assert_eq!(quarantine.treatment(&message(), CYCLE, now), wait);
    }

    #[test]
    fn the_exchange_is_read_from_the_reason() {
        let reason = "NOT_FOUND - no exchange 'tea.pots.created' in vhost '/'";
        assert_eq!(named_exchange(reason), Some("tea.pots.created"));
        assert_eq!(
            named_exchange("PRECONDITION_FAILED - message size 9 is larger"),
            None
        );
    }
}
