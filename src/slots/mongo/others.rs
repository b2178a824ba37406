//! What the other members can do.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::slots::protocol::{Document, Name, Route, Routes};

/// The routes of the other members, those too that one of them does not serve for the moment.
#[derive(Default)]
pub(super) struct Others(BTreeMap<Name, Routes>);

impl Others {
    /// Takes in who is there by now.
    pub(super) fn learn(&mut self, known: &Document, me: &str) {
        let others = || known.members.iter().filter(|member| *member.id != *me);
        self.0
            .retain(|id, _| others().any(|member| member.id == *id));
        for member in others().filter(|member| !member.routes.is_empty()) {
            self.0.insert(member.id.clone(), member.routes.clone());
        }
    }

    /// Those that `own` does not have. In a rolling deployment some members know a label more: rows are owed to it as
    /// soon as one of them is there, and for as long.
    pub(super) fn strange(&self, own: &Routes) -> Arc<[Route]> {
        let all = self.0.values().flat_map(|routes| routes.iter());
        let strange: BTreeSet<&Route> = all.filter(|route| !own.contains(*route)).collect();
        strange.into_iter().cloned().collect()
    }
}

/// Whether a member that can do nothing for a sink, of these `routes`, leaves its lanes to others; none: as it is. It does
/// where another can. Where none can, the first member takes them back, so that two that gave them up to each other do
/// not take turns.
pub(super) fn leaves_lanes(known: &Document, me: &str, routes: &BTreeSet<Route>) -> Option<bool> {
    let mut others = known.members.iter().filter(|member| *member.id != *me);
    if others.any(|other| !other.routes.is_disjoint(routes)) {
        return Some(true);
    }
    let is_first = known.members.first().is_some_and(|first| *first.id == *me);
    is_first.then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::protocol::{Epoch, Member, PROTOCOL};

    fn group(members: &[(&str, &[&str])]) -> Document {
        let member = |(id, routes): &(&str, &[&str])| Member {
            id: (*id).into(),
            beat: 0,
            seen: None,
            routes: Arc::new(routes.iter().map(|&route| route.into()).collect()),
        };
        Document {
            protocol: PROTOCOL,
            epoch: Epoch {
                number: 1,
                nonce: "x".into(),
            },
            members: members.iter().map(member).collect(),
        }
    }

    #[test]
    fn rows_are_owed_to_what_a_member_serves_and_for_as_long_as_it_is_there() {
        let own: Routes = Arc::new(["created".into()].into());
        let mut others = Others::default();
        others.learn(
            &group(&[("a", &["created"]), ("b", &["created", "sync"])]),
            "a",
        );
        assert_eq!(*others.strange(&own), ["sync".into()]);
        others.learn(&group(&[("a", &["created"]), ("b", &[])]), "a");
        assert_eq!(
            *others.strange(&own),
            ["sync".into()],
            "it will serve it again"
        );
        others.learn(&group(&[("a", &["created"])]), "a");
        assert!(others.strange(&own).is_empty());
    }

    #[test]
    fn of_two_that_cannot_work_the_first_keeps_the_lanes() {
        let leaves = |group, me| leaves_lanes(group, me, &["r".into()].into());
        let both = group(&[("a", &["r"]), ("b", &["r"])]);
        assert_eq!(leaves(&both, "a"), Some(true));
        assert_eq!(leaves(&both, "b"), Some(true));
        let neither = group(&[("a", &[]), ("b", &[])]);
        assert_eq!(leaves(&neither, "a"), Some(false));
        assert_eq!(leaves(&neither, "b"), None);
        let first = group(&[("a", &["r"]), ("b", &[])]);
        assert_eq!(leaves(&first, "a"), Some(false));
        assert_eq!(leaves(&first, "b"), Some(true));
        let other = group(&[("a", &["r"]), ("b", &["of another sink"])]);
        assert_eq!(leaves(&other, "a"), Some(false));
    }
}
