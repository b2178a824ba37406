//! The slot the operator named, for as long as the process runs.

use tokio::sync::watch;

use super::Ownership;
use crate::lane::Slot;

/// An assignment that never changes.
pub(crate) fn fixed(slot: Slot) -> Ownership {
    let (_, slot) = watch::channel(Some(slot));
    Ownership { slot }
}
