//! The routes of a component: what a row owes, and what of it is done.

use std::sync::Arc;

use bson::Bson;

use crate::{
    clock::Term,
    error::{Error, Result},
    label::{Encoding, Label},
    metrics::Meters,
    row::Row,
    sinks::{AMQP, Message, Route},
};

/// The most routes of one component: what a row owes is kept as the bits of a word.
const MOST: usize = u128::BITS as usize;

/// Every route of a component, by sink, and the labels of each in declared order.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) encoding: Encoding,
    pub(crate) all: Vec<Rendering>,
}

/// One label to one sink.
#[derive(Debug)]
pub(crate) struct Rendering {
    /// `<sink>/<label>`, as it stands in a row's `outstanding`.
    pub(crate) name: String,
    pub(crate) sink: Arc<str>,
    pub(crate) label: Label,
    pub(crate) route: Arc<Route>,
    /// It is not owed what was made before, in milliseconds since the epoch.
    from: Option<i64>,
}

impl Rendering {
    pub(crate) fn new(sink: &Arc<str>, label: &Label, route: Route) -> Self {
        Self {
            name: format!("{sink}/{}", label.name()),
            sink: sink.clone(),
            label: label.clone(),
            route: Arc::new(route),
            from: None,
        }
    }

    /// Whether it was not there yet when the row was made.
    pub(crate) fn skips(&self, row: &Row) -> bool {
        let made = || row.id.time().unwrap_or(row.pending);
        self.from.is_some_and(|from| made() < from)
    }

    /// The name of a label's route to the broker.
    pub(crate) fn to_amqp(label: &str) -> String {
        format!("{AMQP}/{label}")
    }

    /// The message of this route for `row`, to leave within `term`.
    pub(crate) fn message(&self, row: &Row, body: Vec<u8>, term: &Term) -> Message {
        let made = row.id.time().unwrap_or(row.pending);
        let entity = match &*self.sink {
            // An AMQP message has no place for it.
            AMQP => None,
            _ => row.event.state.get("_id").cloned(),
        };
        Message {
            row: row.id.to_string(),
            entity: entity.unwrap_or(Bson::Null),
            time: u64::try_from(made / 1000).ok(),
            body,
            route: self.route.clone(),
            attempt: 1,
            is_replay: false,
            is_live: true,
            position: None,
            term: term.clone(),
        }
    }
}

/// A set of a component's routes, a bit each in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RouteSet(u128);

impl RouteSet {
    /// Whatever there may be.
    pub(crate) fn every() -> Self {
        Self(u128::MAX)
    }

    pub(crate) fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub(crate) fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    /// Whether every route of `other` is in it.
    pub(crate) fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Routes {
    /// The routes a row no longer owes according to what it says itself.
    pub(crate) fn done(&self, outstanding: Option<&[String]>) -> RouteSet {
        let mut done = RouteSet::default();
        if let Some(owed) = outstanding {
            for (index, rendering) in self.all.iter().enumerate() {
                if !owed.contains(&rendering.name) {
                    done.insert(index);
                }
            }
        }
        done
    }

    /// Whether a row has anything to do with those in `routes`: not if all it owes is owed to others, such as
    /// a label that is no longer declared. One that owes nothing at all is to be marked.
    pub(crate) fn concern(&self, routes: RouteSet, outstanding: Option<&[String]>) -> bool {
        outstanding.is_none_or(|owed| owed.is_empty() || !self.done(Some(owed)).covers(routes))
    }

    /// The same, unless there are too many.
    pub(crate) fn bounded(self, component: String) -> Result<Self> {
        match self.all.len() {
            0..=MOST => Ok(self),
            count => Err(Error::Component {
                component,
                problem: format!(
                    "{count} labels to sinks, each counted once a sink; at most {MOST}"
                ),
            }),
        }
    }

    /// Whether none of these was there yet when the row was made.
    pub(crate) fn skips(&self, these: RouteSet, row: &Row) -> bool {
        let mut all = self.all.iter().enumerate();
        all.all(|(index, route)| !these.contains(index) || route.skips(row))
    }

    /// Has those to a sink begin at this time, in milliseconds since the epoch.
    pub(crate) fn begin(&mut self, sink: &str, from: i64) {
        let to_it = self.all.iter_mut().filter(|route| &*route.sink == sink);
        to_it.for_each(|route| route.from = Some(from));
    }

    /// All of them.
    pub(crate) fn whole(&self) -> RouteSet {
        self.that(|_| true)
    }

    /// Those to one sink.
    pub(crate) fn to(&self, sink: &str) -> RouteSet {
        self.that(|route| &*route.sink == sink)
    }

    /// Those that are as `expected`.
    pub(crate) fn that(&self, expected: impl Fn(&Rendering) -> bool) -> RouteSet {
        let mut set = RouteSet::default();
        for (index, route) in self.all.iter().enumerate() {
            if expected(route) {
                set.insert(index);
            }
        }
        set
    }

    /// `<namespace>.<name>`; nothing where there is no route.
    pub(crate) fn component(&self) -> &str {
        let first = self.all.first();
        first.map_or("", |first| &first.route.component)
    }

    /// Handles for what becomes of the messages to one sink, the labels numbered as the routes are.
    pub(crate) fn meters(&self, sink: &str) -> Meters {
        let of_sink = |route: &Rendering| *route.sink == *sink;
        let labels = self.all.iter();
        let labels = labels.map(|route| of_sink(route).then(|| route.label.name()));
        Meters::new(self.component(), sink, labels)
    }

    /// The names of the routes in `done`.
    pub(crate) fn names(&self, done: RouteSet) -> Vec<&str> {
        let named = self.all.iter().enumerate();
        named
            .filter(|(index, _)| done.contains(*index))
            .map(|(_, rendering)| rendering.name.as_str())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Component;

    fn system() -> Routes {
        let pots = Component::new("tea", "pots").labels(Label::system());
        pots.routes(None).unwrap()
    }

    #[test]
    fn a_row_owes_what_it_says_it_owes() {
        let routes = system();
        let owed = ["amqp/updated".to_owned(), "elsewhere/updated".to_owned()];
        let done = routes.done(Some(&owed));
        assert_eq!(routes.names(done), ["amqp/created", "amqp/deleted"]);
        assert_ne!(done, routes.whole());
        assert!(routes.done(None).is_empty());
    }

    #[test]
    fn a_row_that_owes_to_others_only_is_left_alone() {
        let routes = system();
        let others = ["elsewhere/updated".to_owned()];
        let some = ["amqp/updated".to_owned(), "elsewhere/updated".to_owned()];
        let all = routes.whole();
        assert!(!routes.concern(all, Some(&others)));
        assert!(routes.concern(all, Some(&some)) && routes.concern(all, Some(&[])));
        assert!(routes.concern(all, None));
        let mut created = RouteSet::default();
        created.insert(0);
        assert!(
            !routes.concern(created, Some(&some)),
            "owed to another owner"
        );
    }
}
