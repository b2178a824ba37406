//! When a sink is given what is not new, and how much of it: as its [`Safety`] says.
//!
//! ```text
//!   trusted ── not there, or failed twice ──► lost ── a canary, accepted ──► trusted
//!      ▲                                       │                │
//!      └────── an operator resumes it ─────── paused ◄── or an operator decides
//! ```
//!
//! It has no clock: it is told the time.

use tokio::time::Instant;

use crate::sinks::{
    Message,
    safety::{Room, Safety, Window},
};

/// How many deliveries have to fail in a row before the destination is thought to be down. One message may be to blame itself.
const DOUBTS: u32 = 2;

/// Why a sink is paused after its canary.
const CONFIRMED: &str = "it accepted the first message after an outage, and the rest of the backlog waits for an operator";

/// Why it is paused before it has one.
const AT_ONCE: &str = "there was an outage, and the backlog waits for an operator";

/// None: nothing is limited.
pub(super) struct Pacing(Option<Limits>);

struct Limits {
    safety: Safety,
    window: Window,
    trust: Trust,
    /// When there is room for more of a backlog.
    until: Option<Instant>,
}

/// What is thought of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// It takes what it is given, but for what failed since then.
    Good { doubts: u32 },
    /// There was an outage.
    Lost,
    /// The sink is paused.
    Paused,
}

/// Whether messages may leave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leave {
    Now,
    /// There is no room before then.
    Later(Instant),
    /// For this reason.
    Never(String),
    /// When an operator has said so, for this reason.
    Confirmed(String),
}

impl Pacing {
    pub(super) fn new(safety: Option<Safety>) -> Self {
        Self(safety.map(|safety| Limits {
            safety,
            window: Window::new(safety),
            trust: Trust::Good { doubts: 0 },
            until: None,
        }))
    }

    /// Whether it goes behind what is new.
    pub(super) fn is_behind(&self, message: &Message) -> bool {
        self.0.is_some() && !message.is_live
    }

    /// How many of these may go together, at least one: what is new goes with nothing else, and a canary alone.
    pub(super) fn together(&self, messages: &[Message]) -> usize {
        let Some(limits) = &self.0 else {
            return messages.len();
        };
        let mut alike = messages.chunk_by(|one, next| one.is_live == next.is_live);
        let alike = alike.next().unwrap_or_default();
        match alike.first() {
            Some(first) if !first.is_live => limits.fitting(alike),
            _ => alike.len(),
        }
    }

    /// Whether these may leave, and if so, they have been counted.
    pub(super) fn leave(&mut self, now: Instant, messages: &[Message]) -> Leave {
        let is_live = messages.iter().all(|message| message.is_live);
        match &mut self.0 {
            Some(limits) if !is_live => limits.leave(now, messages),
            _ => Leave::Now,
        }
    }

    /// The destination was not there: nothing of these was sent.
    pub(super) fn is_away(&mut self, messages: &[Message]) {
        let is_live = messages.iter().all(|message| message.is_live);
        if let Some(limits) = &mut self.0
            && !is_live
        {
            limits.window.return_last();
        }
        self.is_down();
    }

    /// The message failed alone, or with all that went with it. That it does again is no news.
    pub(super) fn failed(&mut self, message: &Message) {
        if message.attempt > 1 {
            return;
        }
        self.becomes(|trust| match trust {
            Trust::Good { doubts } if doubts + 1 < DOUBTS => Trust::Good { doubts: doubts + 1 },
            Trust::Good { .. } => Trust::Lost,
            lost => lost,
        });
    }

    /// It was found out otherwise that the destination is down.
    pub(super) fn is_down(&mut self) {
        self.becomes(|trust| match trust {
            Trust::Good { .. } => Trust::Lost,
            lost => lost,
        });
    }

    /// The message was accepted. If that is for an operator to see before any other follows, why the sink is to be paused.
    pub(super) fn taken(&mut self, message: &Message) -> Option<String> {
        let limits = self.0.as_mut()?;
        match limits.trust {
            Trust::Good { .. } => limits.trust = Trust::Good { doubts: 0 },
            Trust::Lost if message.is_live => {}
            Trust::Lost if limits.safety.is_confirmed() => return Some(CONFIRMED.into()),
            Trust::Lost => limits.trust = Trust::Good { doubts: 0 },
            Trust::Paused => {}
        }
        None
    }

    /// By whomever, for whatever reason.
    pub(super) fn is_paused(&mut self) {
        self.becomes(|_| Trust::Paused);
    }

    /// Who resumes it opens it.
    pub(super) fn is_resumed(&mut self) {
        self.becomes(|trust| match trust {
            Trust::Paused => Trust::Good { doubts: 0 },
            other => other,
        });
    }

    /// Until when there is no room for a backlog; none: there is.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.as_ref()?.until
    }

    /// Whether there is room again is tried, if it is time.
    pub(super) fn wake(&mut self, now: Instant) {
        if let Some(limits) = &mut self.0 {
            limits.until = limits.until.filter(|&until| now < until);
        }
    }

    fn becomes(&mut self, change: impl FnOnce(Trust) -> Trust) {
        if let Some(limits) = &mut self.0 {
            limits.trust = change(limits.trust);
        }
    }
}

impl Limits {
    /// How many of these, none of which is new, may go together.
    fn fitting(&self, messages: &[Message]) -> usize {
        if self.trust == Trust::Lost {
            return 1;
        }
        let mut bytes = 0;
        let fits = |message: &&Message| {
            bytes += size(message);
            bytes <= self.safety.batch_bytes()
        };
        messages.iter().take_while(fits).count().max(1)
    }

    fn leave(&mut self, now: Instant, messages: &[Message]) -> Leave {
        if let Some(until) = self.until.filter(|&until| now < until) {
            return Leave::Later(until);
        }
        if self.trust == Trust::Lost && self.safety.canary() == 0 {
            return Leave::Confirmed(AT_ONCE.into());
        }
        // They were put together before it was known.
        if self.trust == Trust::Lost && messages.len() > 1 {
            return Leave::Later(now);
        }
        let bytes = messages.iter().map(size).sum();
        match self.window.reserve(now, bytes) {
            Room::Now => Leave::Now,
            Room::At(then) => {
                self.until = Some(then);
                Leave::Later(then)
            }
            Room::Never => Leave::Never(too_large(bytes, self.safety.batch_bytes())),
        }
    }
}

fn size(message: &Message) -> u64 {
    message.body.len() as u64
}

fn too_large(bytes: u64, most: u64) -> String {
    format!(
        "not sent: {bytes} bytes, over the {most} that its safety lets go at once of a backlog; raise batch_bytes, or make the \
         payload of the label smaller"
    )
}

#[cfg(test)]
mod tests;
