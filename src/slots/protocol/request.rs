//! What the protocol asks of the store: one document, one conditional update at a time.
//!
//! Every write filters on the group's `_id` and on `protocol: PROTOCOL`, has majority write concern, and returns the
//! document as it is *after* the write. None upserts; `Create` is an insert. A write of a new epoch sets
//! `epoch = { number: number + 1, nonce }`, where `nonce` is the one in the request.

use super::document::{Document, Epoch, Name, Routes};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// A read with majority concern. It proves nothing; it says whether to create, to join or to stand by.
    Look,
    /// Insert `{ protocol, epoch: { number: 1, nonce }, members: [{ id, beat: 0, routes }] }`: no `seen`.
    /// A duplicate key is `Unmatched`.
    Create {
        id: Name,
        routes: Routes,
        nonce: Name,
    },
    /// Filter `members.id ≠ id`. Append `{ id, beat: 0, seen, routes }`; a new epoch, and `seen` is that epoch.
    Join {
        id: Name,
        routes: Routes,
        nonce: Name,
    },
    /// Filter on member `id`. `$inc` its `beat` by one.
    Beat { id: Name },
    /// Filter on member `id` and on `epoch`, number and nonce. Set its `seen` to exactly this `epoch`.
    Ack { id: Name, epoch: Epoch },
    /// Filter on member `id` and on `epoch`. Set its `routes`; a new epoch. Its `seen` stays as it is.
    Renew {
        id: Name,
        epoch: Epoch,
        routes: Routes,
        nonce: Name,
    },
    /// Filter on `epoch` and on member `id` with exactly this `beat`. Remove it; a new epoch.
    Evict {
        id: Name,
        beat: u64,
        epoch: Epoch,
        nonce: Name,
    },
    /// Filter on member `id`. Remove it; a new epoch.
    Leave { id: Name, nonce: Name },
}

/// What came of a request. Whatever is not certain is `Failed`: a time-out, a lost connection, a write-concern
/// error even though the server showed a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// To a write: it was applied, a majority has it, and this is the document after it.
    Written(Document),
    /// To a write: the filter matched nothing, or the insert met a document.
    Unmatched,
    /// To `Look`: this is there.
    Shown(Document),
    /// To `Look`: a document of another version is there.
    Foreign(u32),
    /// To `Look`: nothing is there.
    Missing,
    /// No reply that could be trusted. The write may have been applied, or may yet be.
    Failed,
}
