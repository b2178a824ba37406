//! The lengths the protocol lives by.

use std::time::Duration;

/// Everything follows from the beat; the fields are apart so that a test can bend one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Between two beats.
    pub beat: Duration,
    /// After which a request counts as unanswered. Three quarters of a beat: one lost beat is noticed and repeated
    /// before ownership lapses, and a store that takes a second for a majority is still fast enough.
    pub timeout: Duration,
    /// Two beats since the send of the last acknowledged one: start nothing.
    pub stop: Duration,
    /// Two and a half: whatever is still in flight is cut.
    pub cut: Duration,
    /// Three: others may evict. What lies between `cut` and `lease` is the margin for clocks of unequal speed.
    pub lease: Duration,
    /// After a request that failed, before the next.
    pub pause: Duration,
}

impl Timing {
    pub fn new(beat: Duration) -> Timing {
        Timing {
            beat,
            timeout: beat * 3 / 4,
            stop: beat * 2,
            cut: beat * 5 / 2,
            lease: beat * 3,
            pause: beat / 4,
        }
    }

    /// What the proof needs; asserted where the settings are read.
    pub fn holds(&self) -> bool {
        self.lease > self.cut
            && self.cut > self.stop
            && self.stop > self.beat
            && self.timeout <= self.beat
            && !self.beat.is_zero()
    }

    /// The least time between two beats that hints ask for. It grows with the group, so that a hundred members that
    /// acknowledge one after the other do not make each other write ten thousand times.
    pub(super) fn nudge(&self, members: usize) -> Duration {
        let members = u32::try_from(members).unwrap_or(u32::MAX).clamp(4, 128);
        self.beat * members / 256
    }
}
