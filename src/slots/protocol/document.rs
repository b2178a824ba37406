//! The one document a group shares, and what can be read off it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::lane::{LANES, Slot};

/// The version of this text. Every write filters on it, so a document of another version is never touched.
pub const PROTOCOL: u32 = 1;

/// A name nobody else ever gives: the id of a member, or the nonce of an epoch.
pub type Name = Arc<str>;

/// One label to one sink, `<sink>/<label>`.
pub type Route = Arc<str>;

/// The routes a member serves.
pub type Routes = Arc<BTreeSet<Route>>;

/// Which list of members is meant. The number only ever grows within one document; the nonce is its writer's, so
/// that two documents (one dropped, one created after it) do not share an epoch because they count alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    pub number: u64,
    pub nonce: Name,
}

impl Epoch {
    pub fn after(&self, nonce: Name) -> Epoch {
        Epoch {
            number: self.number + 1,
            nonce,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub id: Name,
    /// Counts up while the member lives; the value means nothing, only that it moves.
    pub beat: u64,
    /// The epoch for which the member has stood down from all others. Absent in one that created the document and
    /// has not yet waited; that is not the same as an old one.
    pub seen: Option<Epoch>,
    pub routes: Routes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Document {
    pub protocol: u32,
    pub epoch: Epoch,
    pub members: Vec<Member>,
}

impl Document {
    pub fn member(&self, id: &str) -> Option<&Member> {
        self.members.iter().find(|member| &*member.id == id)
    }

    /// Every member has stood down for this epoch.
    pub fn settled(&self) -> bool {
        self.members
            .iter()
            .all(|member| member.seen.as_ref() == Some(&self.epoch))
    }

    /// The same members in the same order with the same routes: the same slots.
    pub fn same_roster(&self, other: &Document) -> bool {
        self.members.len() == other.members.len()
            && self
                .members
                .iter()
                .zip(&other.members)
                .all(|(a, b)| a.id == b.id && a.routes == b.routes)
    }

    /// The slots of `id`, of those routes it has one of.
    pub fn slots(&self, id: &str, routes: &Routes) -> Vec<(Route, Slot)> {
        routes
            .iter()
            .filter_map(|route| Some((route.clone(), self.slot(id, route)?)))
            .collect()
    }

    /// The slot of `id` among the first 128 members that serve `route`, in array order; none for whoever does not
    /// serve it or comes later.
    pub fn slot(&self, id: &str, route: &Route) -> Option<Slot> {
        let serving = || {
            self.members
                .iter()
                .filter(|member| member.routes.contains(route))
                .take(LANES.into())
        };
        let i = serving().position(|member| &*member.id == id)?;
        Slot::new(u8::try_from(i).ok()?, u8::try_from(serving().count()).ok()?)
    }
}

/// Names without chance: the process has a name of its own (the host draws it anew at every start), and counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Names {
    process: Name,
    given: u64,
}

impl Names {
    pub fn new(process: &str) -> Names {
        Names {
            process: process.into(),
            given: 0,
        }
    }

    pub fn fresh(&mut self) -> Name {
        self.given += 1;
        format!("{}.{}", self.process, self.given).into()
    }
}
