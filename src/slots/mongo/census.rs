//! Who shares the lanes at the moment, as far as one can tell who only reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::IntoFuture,
    sync::Arc,
    time::Duration,
};

use bson::{Bson, doc};
use futures::TryStreamExt;
use mongodb::{
    Collection, Database,
    options::{ReadConcern, ReadPreference, SelectionCriteria},
};

use super::spelling;
use crate::{
    error::{Error, Result},
    lane::LANES,
    slots::{
        COLLECTION, binding, prefix,
        protocol::{Document, Member as Spoken, Routes},
    },
};

/// Everything in the collection of the groups.
#[derive(Debug)]
pub(crate) struct Census {
    database: String,
    groups: BTreeMap<String, Seen>,
    /// By outbox collection, who may pump it.
    bindings: BTreeMap<String, String>,
}

/// A group as it is spelled, now and where it was looked at twice some time before.
#[derive(Debug)]
struct Seen {
    before: Option<Document>,
    now: Result<Document, String>,
}

/// The replicas that share lanes, as one outbox collection sees them: of their routes those to it, by the names its
/// rows know them by.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) members: Vec<Member>,
    /// Whether everybody has stood down for the present epoch, so that lanes are owned.
    pub(crate) is_settled: bool,
    /// Why the document says nothing to this version.
    pub(crate) foreign: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: String,
    /// Whether its beat moved while it was watched.
    pub(crate) is_alive: bool,
    /// Whether it has stood down for the present epoch.
    pub(crate) has_acknowledged: bool,
    /// Whether it serves anything, of this collection or of another.
    pub(crate) is_serving: bool,
    pub(crate) routes: BTreeSet<String>,
    /// Those it would own for some route once everybody has acknowledged.
    pub(crate) lanes: Vec<u8>,
}

type Spelled = BTreeMap<String, Result<Document, String>>;

impl Census {
    /// Looks twice, one and a half beats apart, where there is somebody to look at.
    pub(crate) async fn take(database: &Database, beat: Duration) -> Result<Self> {
        let slots = database.collection(COLLECTION);
        let (before, bindings) = look(&slots).await?;
        let is_empty = |group: &Result<Document, _>| {
            group.as_ref().is_ok_and(|group| group.members.is_empty())
        };
        if before.values().all(is_empty) {
            return Ok(Self::of(database, before.clone(), before, bindings));
        }
        tokio::time::sleep(beat * 3 / 2).await;
        let (now, bindings) = look(&slots).await?;
        Ok(Self::of(database, before, now, bindings))
    }

    /// Looks once: everybody who is there counts as alive.
    pub(crate) async fn glance(database: &Database) -> Result<Self> {
        let (now, bindings) = look(&database.collection(COLLECTION)).await?;
        Ok(Self::of(database, Spelled::new(), now, bindings))
    }

    fn of(
        database: &Database,
        mut before: Spelled,
        now: Spelled,
        bindings: BTreeMap<String, String>,
    ) -> Self {
        let groups = now.into_iter().map(|(id, now)| {
            let before = before.remove(&id).and_then(Result::ok);
            (id, Seen { before, now })
        });
        Self {
            database: database.name().to_owned(),
            groups: groups.collect(),
            bindings,
        }
    }

    /// Who may pump a collection: `group <id>`, `static slots of <n>`; none: nobody has yet.
    pub(crate) fn pumped_by(&self, collection: &str) -> Option<&str> {
        self.bindings.get(collection).map(String::as_str)
    }

    /// The group that pumps a collection, if there is one.
    pub(crate) fn group_of(&self, collection: &str) -> Option<Group> {
        let id = self.pumped_by(collection)?.strip_prefix("group ")?;
        let seen = self.groups.get(id)?;
        // The group of a whole database is shared by its components.
        let prefix = prefix(id == self.database, collection);
        Some(match &seen.now {
            Ok(now) => Group::of(seen.before.as_ref(), now, &prefix),
            Err(foreign) => Group::foreign(foreign),
        })
    }
}

impl Group {
    fn foreign(why: &str) -> Self {
        Self {
            foreign: Some(why.to_owned()),
            ..Self::default()
        }
    }

    fn of(before: Option<&Document>, now: &Document, prefix: &str) -> Self {
        let beat = |id: &str| Some(before?.member(id)?.beat);
        let members = now.members.iter().map(|member| Member {
            id: member.id.to_string(),
            is_alive: beat(&member.id) != Some(member.beat),
            has_acknowledged: member.seen.as_ref() == Some(&now.epoch),
            is_serving: !member.routes.is_empty(),
            routes: member
                .routes
                .iter()
                .filter_map(|route| Some(route.strip_prefix(prefix)?.to_owned()))
                .collect(),
            lanes: lanes(now, member, prefix),
        });
        Self {
            members: members.collect(),
            is_settled: now.settled(),
            foreign: None,
        }
    }

    /// The members that own a lane, each for a route of its own: they may know different ones.
    pub(crate) fn owners(&self, lane: u8) -> impl Iterator<Item = &Member> {
        let members = self.members.iter().filter(|_| self.is_settled);
        members.filter(move |member| member.lanes.contains(&lane))
    }

    /// Every route that some member serves.
    pub(crate) fn routes(&self) -> BTreeSet<&str> {
        let routes = self.members.iter().flat_map(|member| &member.routes);
        routes.map(String::as_str).collect()
    }

    /// Those of them that are not among `own`: rows are owed to them too.
    pub(crate) fn strange(&self, own: &[&str]) -> Vec<String> {
        let strange = self.routes().into_iter();
        let strange = strange.filter(|route| !own.contains(route));
        strange.map(str::to_owned).collect()
    }

    pub(crate) fn alive(&self) -> usize {
        self.members.iter().filter(|member| member.is_alive).count()
    }
}

fn lanes(group: &Document, member: &Spoken, prefix: &str) -> Vec<u8> {
    let routes = member.routes.iter();
    let routes = routes.filter(|route| route.starts_with(prefix)).cloned();
    let routes: Routes = Arc::new(routes.collect());
    let slots = group.slots(&member.id, &routes);
    let owned = |lane: &u8| slots.iter().any(|(_, slot)| slot.owns(*lane));
    (0..LANES).filter(owned).collect()
}

async fn look(slots: &Collection<bson::Document>) -> Result<(Spelled, BTreeMap<String, String>)> {
    let asked = async {
        let found = slots
            .find(doc! {})
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .into_future();
        found.await?.try_collect::<Vec<_>>().await
    };
    let found = asked
        .await
        .map_err(|error| Error::store("reading who pumps", slots.namespace().to_string(), error))?;
    let (mut groups, mut bindings) = (Spelled::new(), BTreeMap::new());
    for document in &found {
        match document.get("_id") {
            Some(Bson::String(id)) => {
                groups.insert(id.clone(), spelling::read(document));
            }
            _ => bindings.extend(binding::read(document)),
        }
    }
    Ok((groups, bindings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::protocol::{Epoch, PROTOCOL};

    fn epoch(number: u64) -> Epoch {
        Epoch {
            number,
            nonce: "x".into(),
        }
    }

    fn member(id: &str, beat: u64, seen: u64, routes: &[&str]) -> Spoken {
        Spoken {
            id: id.into(),
            beat,
            seen: Some(epoch(seen)),
            routes: Arc::new(routes.iter().map(|&route| route.into()).collect()),
        }
    }

    fn group(members: &[(&str, u64, u64)]) -> Document {
        let member =
            |&(id, beat, seen): &(&str, u64, u64)| member(id, beat, seen, &["amqp/created"]);
        Document {
            protocol: PROTOCOL,
            epoch: epoch(2),
            members: members.iter().map(member).collect(),
        }
    }

    #[test]
    fn a_beat_that_stands_still_is_that_of_a_dead_member() {
        let before = group(&[("a", 5, 2), ("b", 5, 2)]);
        let now = group(&[("a", 6, 2), ("b", 5, 2), ("c", 0, 2)]);
        let group = Group::of(Some(&before), &now, "");
        let alive: Vec<bool> = group.members.iter().map(|member| member.is_alive).collect();
        assert_eq!(alive, [true, false, true]);
        let owners: Vec<&str> = group.owners(1).map(|owner| owner.id.as_str()).collect();
        assert_eq!(owners, ["b"]);
    }

    #[test]
    fn nobody_owns_a_lane_while_somebody_has_not_let_go() {
        let group = Group::of(None, &group(&[("a", 5, 2), ("b", 5, 1)]), "");
        assert!(!group.is_settled && group.owners(0).next().is_none());
        assert_eq!(group.members[0].lanes.len(), 64);
    }

    #[test]
    fn a_collection_sees_of_a_shared_group_what_is_its_own() {
        let (pots, cups) = (
            "tea_pots_outbox/amqp/created",
            "tea_cups_outbox/amqp/boiled",
        );
        let mut shared = group(&[]);
        shared.members = vec![member("a", 5, 2, &[pots]), member("b", 5, 2, &[pots, cups])];
        let of = |collection| Group::of(None, &shared, &prefix(true, collection));
        let lanes = |group: &Group| -> Vec<usize> {
            let members = group.members.iter();
            members.map(|member| member.lanes.len()).collect()
        };
        let (pots, cups) = (of("tea_pots_outbox"), of("tea_cups_outbox"));
        assert_eq!(pots.routes(), ["amqp/created"].into());
        assert_eq!(lanes(&pots), [64, 64]);
        assert_eq!(cups.strange(&["amqp/created"]), ["amqp/boiled"]);
        assert_eq!(lanes(&cups), [0, 128]);
        assert!(cups.members[0].is_serving);
        assert_eq!(lanes(&of("tea_outbox")), [0, 0]);
    }
}
