//! What is written of an event beside itself.

use std::time::SystemTime;

use mongodb::ClientSession;

use super::{Outbox, Written};
use crate::{
    canonical,
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
    /// [interval](crate::Settings::interval) later while all is well. Past, it is of no meaning. A sink to which the order of the
    /// commits is kept is given it in that order, and does not wait.
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
            _admission: None,
        }
    }
}

/// Whatever the order of fields, in which writers differ. A number of another type is another value.
fn is_same(one: &Event, other: &Event) -> bool {
    match (canonical::event(one), canonical::event(other)) {
        (Ok(one), Ok(other)) => one == other,
        // What BSON cannot hold is not stored.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bson::doc;

    use super::*;

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
