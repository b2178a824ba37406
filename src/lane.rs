//! Which lanes a slot owns. A lane says which replica pumps a row, and nothing else: no ordering.

use std::{fmt, str::FromStr};

/// The number of lanes, a constant: rows carry their lane, so lowering it would leave rows in lanes
/// that nobody reads. It is also the most replicas that can own something.
pub const LANES: u8 = 128;

/// What a replica is given: the lanes where `lane % count == index`.
///
/// ```
/// # use toa_outbox::Slot;
/// let slot: Slot = "1/3".parse().unwrap();
/// assert!(slot.owns(4));
/// assert!(!slot.owns(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    index: u8,
    count: u8,
}

impl Slot {
    /// The slot that owns every lane.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Slot `index` of `count`; none unless `index < count` and `1 <= count <= 128`.
    pub fn new(index: u8, count: u8) -> Option<Self> {
        (index < count && count <= LANES).then_some(Self { index, count })
    }

    /// Whether this slot owns `lane`.
    pub fn owns(self, lane: u8) -> bool {
        lane < LANES && lane % self.count == self.index
    }

    /// How many slots share the lanes.
    pub(crate) fn count(self) -> u8 {
        self.count
    }

    /// The lanes of this slot in ascending order; never empty.
    pub fn lanes(self) -> impl Iterator<Item = u8> {
        (self.index..LANES).step_by(self.count.into())
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// The text was not `i/n` with `i < n <= 128`.
#[derive(Debug, thiserror::Error)]
#[error("expected i/n with i < n and n from 1 to {LANES}, such as 0/2")]
pub struct NotASlot;

impl FromStr for Slot {
    type Err = NotASlot;

    fn from_str(text: &str) -> Result<Self, NotASlot> {
        let (index, count) = text.split_once('/').ok_or(NotASlot)?;
        let index = index.parse().map_err(|_| NotASlot)?;
        let count = count.parse().map_err(|_| NotASlot)?;
        Self::new(index, count).ok_or(NotASlot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_of_one_count_share_every_lane_exactly_once(count in 1..=LANES, lane in 0..LANES) {
            let owners = (0..count).filter(|&index| Slot::new(index, count).unwrap().owns(lane));
            prop_assert_eq!(owners.count(), 1);
        }

        #[test]
        fn shares_differ_by_at_most_one_lane(count in 1..=LANES) {
            let sizes = (0..count).map(|index| Slot::new(index, count).unwrap().lanes().count());
            let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
            prop_assert!(least >= 1 && most - least <= 1);
        }

        #[test]
        fn listing_and_asking_agree(count in 1..=LANES, index in 0..LANES) {
            prop_assume!(index < count);
            let slot = Slot::new(index, count).unwrap();
            let asked: Vec<u8> = (0..LANES).filter(|&lane| slot.owns(lane)).collect();
            prop_assert_eq!(slot.lanes().collect::<Vec<_>>(), asked);
        }

        #[test]
        fn text_reads_back(count in 1..=LANES, index in 0..LANES) {
            prop_assume!(index < count);
            let slot = Slot::new(index, count).unwrap();
            prop_assert_eq!(slot.to_string().parse::<Slot>().unwrap(), slot);
        }
    }

    #[test]
    fn what_is_not_a_slot_is_refused() {
        for text in [
            "", "1", "1/1", "2/1", "0/0", "0/129", "-1/2", "a/b", "0/1/2",
        ] {
            assert!(text.parse::<Slot>().is_err(), "{text}");
        }
    }
}
