//! In which order a sink is given what it is owed.

use std::time::Duration;

/// Whether order is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is not: all replicas deliver, each in its lanes.
    #[default]
    Lanes,
    /// It is that of the commits: one replica delivers.
    Ordered(Order),
}

/// How an ordered sink is given its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// The most rows of one.
    pub(crate) batch: usize,
    /// The least time from one that was not full to the next.
    pub(crate) every: Duration,
    /// Whether one that fails is halved until the row that fails is alone.
    pub(crate) halves: bool,
    /// Whether a message carries the whole event, not what the label makes of it.
    pub(crate) is_whole: bool,
}

impl Order {
    pub(crate) const USUAL: Self = Self {
        batch: 128,
        every: Duration::ZERO,
        halves: true,
        is_whole: false,
    };
    pub(crate) const AUDIT: Self = Self {
        batch: 500,
        every: Duration::from_secs(5),
        halves: false,
        is_whole: true,
    };
}

impl Mode {
    /// How an ordered one is given its batches; none for the other kind.
    pub(crate) fn order(self) -> Option<Order> {
        match self {
            Self::Lanes => None,
            Self::Ordered(order) => Some(order),
        }
    }
}
