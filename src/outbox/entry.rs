//! What is written of an event beside itself.

use std::time::SystemTime;

use bson::Bson;
use mongodb::ClientSession;

use super::{Outbox, Written};
use crate::{
    error::{Error, Result},
    row::{Event, Row, RowId, now},
    store::decode,
};

/// An event to be written, and how. An [`Event`] alone is written under an id of its own and published at once.
#[derive(Clone, Debug)]
pub struct Entry {
    pub(super) event: Event,
    pub(super) id: Option<RowId>,
    pub(super) not_before: Option<SystemTime>,
}

impl From<Event> for Entry {
    fn from(event: Event) -> Self {
        Self {
            event,
            id: None,
            not_before: None,
        }
    }
}

impl Entry {
    /// The same as the event alone, until told otherwise.
    pub fn new(event: Event) -> Self {
        event.into()
    }

    /// Under this id, which says that it is the same event: where the row is there already, and holds the same event
    /// whatever the order of its fields, nothing is written. For as long as the row is kept; see
    /// [`Settings::retention`](crate::Settings::retention).
    pub fn id(self, id: RowId) -> Self {
        Self {
            id: Some(id),
            ..self
        }
    }

    /// To be published at this time and not before, by whoever pumps its lane then. At most an
    /// [interval](crate::Settings::interval) later while all is well. Past, it is of no meaning.
    pub fn not_before(self, time: SystemTime) -> Self {
        Self {
            not_before: Some(time),
            ..self
        }
    }

    /// When it is due, in milliseconds since the epoch, where that is still to come.
    pub(super) fn later(&self) -> Option<i64> {
        let since = self
            .not_before?
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()?;
        // A later time than that does not come.
        let due = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        (due > now()).then_some(due)
    }
}

impl Outbox {
    /// What is there already of a row whose id the caller has chosen. Looked for first, since inserting it a second time
    /// would abort the caller's transaction.
    pub(super) async fn repeated(
        &self,
        session: &mut ClientSession,
        id: &RowId,
        event: &Event,
    ) -> Result<Option<Written>> {
        let store = &self.inner.store;
        let Some(stored) = store.stored(session, id).await? else {
            return Ok(None);
        };
        match decode(&stored) {
            Ok(row) if is_same(&row.event, event) => Ok(Some(Written::before(row))),
            _ => Err(Error::IdTaken {
                id: id.to_string(),
                collection: store.name(),
            }),
        }
    }
}

impl Written {
    /// By an earlier call, which sees to its publication.
    fn before(row: Row) -> Self {
        Self {
            row,
            claims: Vec::new(),
        }
    }
}

fn is_same(one: &Event, other: &Event) -> bool {
    let bson = |event: &Event| {
        let origin = event.origin.clone().map_or(Bson::Null, Bson::from);
        let state = event.state.clone().into();
        [origin, state, event.trailers.clone(), event.input.clone()]
    };
    bson(one)
        .iter()
        .zip(&bson(other))
        .all(|(one, other)| is_alike(one, other))
}

/// Whatever the order of fields, in which writers differ. A number of another type is another value.
fn is_alike(one: &Bson, other: &Bson) -> bool {
    match (one, other) {
        (Bson::Document(one), Bson::Document(other)) => {
            let has = |(name, value): (&String, &Bson)| {
                other.get(name).is_some_and(|found| is_alike(value, found))
            };
            one.len() == other.len() && one.iter().all(has)
        }
        (Bson::Array(one), Bson::Array(other)) => {
            let mut pairs = one.iter().zip(other);
            one.len() == other.len() && pairs.all(|(one, other)| is_alike(one, other))
        }
        // One that is not a number is the same as itself.
        (Bson::Double(one), Bson::Double(other)) => one.to_bits() == other.to_bits(),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bson::doc;

    use super::*;

    #[test]
    fn an_event_is_the_same_whatever_the_order_of_its_fields() {
        let one = Event::created(
            doc! { "a": 1, "b": { "c": f64::NAN, "d": [1, doc! { "e": 1, "f": 2 }] } },
        );
        let other = Event::created(
            doc! { "b": { "d": [1, doc! { "f": 2, "e": 1 }], "c": f64::NAN }, "a": 1 },
        );
        assert!(is_same(&one, &other));
    }

    #[test]
    fn and_another_where_anything_differs() {
        let event = || Event::created(doc! { "a": 1, "b": [1, 2] });
        for other in [
            Event::created(doc! { "a": 1 }),
            Event::created(doc! { "a": 1, "b": [1, 2], "c": 1 }),
            Event::created(doc! { "a": 1, "b": [2, 1] }),
            Event::created(doc! { "a": 1, "b": [1] }),
            Event::created(doc! { "a": 1_i64, "b": [1, 2] }),
            event().input(1),
            event().trailers(doc! {}),
            Event::changed(doc! {}, doc! { "a": 1, "b": [1, 2] }),
        ] {
            assert!(!is_same(&event(), &other), "{other:?}");
            assert!(!is_same(&other, &event()), "{other:?}");
        }
    }

    #[test]
    fn only_a_time_to_come_delays() {
        let entry = || Entry::new(Event::created(doc! {}));
        let (minute, time) = (Duration::from_secs(60), SystemTime::now());
        assert_eq!(entry().later(), None);
        assert_eq!(entry().not_before(time - minute).later(), None);
        assert_eq!(
            entry().not_before(SystemTime::UNIX_EPOCH - minute).later(),
            None
        );
        let later = entry().not_before(time + minute).later().unwrap();
        assert!((59_000..=60_000).contains(&(later - now())), "{later}");
    }
}
