//! Who stands still. Everything here is receipt times on this machine's own clock.

use std::collections::BTreeMap;
use std::time::Duration;

use super::document::{Document, Member, Name};
use crate::clock::Moment;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Watch {
    /// When the last acknowledged reply came.
    last: Option<Moment>,
    others: BTreeMap<Name, Still>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Still {
    beat: u64,
    /// Receipt of the first reply that showed this beat.
    since: Moment,
}

impl Watch {
    /// Takes in a reply just received. After a gap longer than `patience` every lease starts anew: what kept us from
    /// the store may have kept the others from it too.
    pub fn note(&mut self, now: Moment, me: &str, document: &Document, patience: Duration) {
        if self.last.is_some_and(|last| now.since(last) > patience) {
            self.others.clear();
        }
        self.last = Some(now);
        let before = std::mem::take(&mut self.others);
        for member in document.members.iter().filter(|member| &*member.id != me) {
            let since = match before.get(&member.id) {
                Some(still) if still.beat == member.beat => still.since,
                _ => now,
            };
            self.others.insert(
                member.id.clone(),
                Still {
                    beat: member.beat,
                    since,
                },
            );
        }
    }

    /// The first member, in array order, that `document` still shows with a beat which is a lease old.
    pub fn expired<'a>(
        &self,
        now: Moment,
        document: &'a Document,
        lease: Duration,
    ) -> Option<&'a Member> {
        document.members.iter().find(|member| {
            self.others
                .get(&member.id)
                .is_some_and(|still| still.beat == member.beat && now.since(still.since) >= lease)
        })
    }

    /// When the next lease runs out, if nothing moves.
    pub fn next(&self, lease: Duration) -> Option<Moment> {
        self.others.values().map(|still| still.since + lease).min()
    }
}
