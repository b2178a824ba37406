//! Labels: the names under which an event is published, when, and with what content.

#[cfg(feature = "sidecar")]
pub(crate) mod cel;
mod encoding;
pub(crate) mod pattern;

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

use bson::{Bson, Document, doc};

use crate::row::Event;

pub use encoding::Encoding;

/// What a user's closure may fail with.
pub type BoxError = Box<dyn StdError + Send + Sync>;

type Condition = dyn Fn(&Event) -> Result<bool, BoxError> + Send + Sync;
type Payload = dyn Fn(&Event) -> Result<Bson, BoxError> + Send + Sync;

/// A name under which an event is published, with the condition on which it is and the payload it
/// carries.
///
/// Conditions and payloads see the event as it is stored, whether it is published at once or days
/// later by another process, so they must not depend on anything else. They run between publications,
/// so they must be quick. One that fails or panics keeps
/// its own route outstanding, is reported, and is tried again every cycle; the row's other labels go
/// out.
///
/// ```
/// use toa_outbox::Label;
///
/// let boiled = Label::new("boiled")
///     .when(|event| Ok(event.state.get_i32("temperature")? >= 100))
///     .payload(|event| Ok(event.state.get_object_id("_id")?.into()));
/// # assert_eq!(boiled.name(), "boiled");
/// ```
#[derive(Clone)]
pub struct Label {
    name: Cow<'static, str>,
    condition: Arc<Condition>,
    payload: Option<Arc<Payload>>,
}

impl Label {
    /// A label of the caller's own: every event, carrying the new state, until told otherwise.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: name.into(),
            condition: Arc::new(|_| Ok(true)),
            payload: None,
        }
    }

    /// `created`: the entity did not exist before.
    pub fn created() -> Self {
        Self::new("created").when(|event| Ok(event.origin.is_none()))
    }

    /// `updated`: the entity existed before and still does.
    pub fn updated() -> Self {
        Self::new("updated").when(|event| Ok(event.origin.is_some() && !is_deleted(&event.state)))
    }

    /// `deleted`: the new state has `_deleted` set.
    pub fn deleted() -> Self {
        Self::new("deleted").when(|event| Ok(is_deleted(&event.state)))
    }

    /// `sync`: every change.
    pub fn sync() -> Self {
        Self::new("sync")
    }

    /// `created`, `updated` and `deleted`, of which exactly one fits an event of an entity whose
    /// creation is not its deletion.
    pub fn system() -> [Self; 3] {
        [Self::created(), Self::updated(), Self::deleted()]
    }

    /// Publishes only the events for which `condition` holds.
    pub fn when(
        mut self,
        condition: impl Fn(&Event) -> Result<bool, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.condition = Arc::new(condition);
        self
    }

    /// Carries what `payload` returns instead of the new state.
    pub fn payload(
        mut self,
        payload: impl Fn(&Event) -> Result<Bson, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.payload = Some(Arc::new(payload));
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The body of the message this label makes of `event`; none when the condition does not hold.
    pub(crate) fn render(
        &self,
        event: &Event,
        encoding: Encoding,
    ) -> Result<Option<Vec<u8>>, Unrendered> {
        self.rendered(event, || match &self.payload {
            Some(payload) => encoding.encode(&payload(event)?),
            None => encoding.encode_document(&event.state),
        })
    }

    /// The same with the whole event for a body, whatever the payload.
    pub(crate) fn render_whole(
        &self,
        event: &Event,
        encoding: Encoding,
    ) -> Result<Option<Vec<u8>>, Unrendered> {
        self.rendered(event, || {
            encoding.encode_document(&doc! {
                "origin": event.origin.clone(),
                "state": event.state.clone(),
                "trailers": event.trailers.clone(),
                "input": event.input.clone(),
            })
        })
    }

    fn rendered(
        &self,
        event: &Event,
        body: impl Fn() -> Result<Vec<u8>, BoxError>,
    ) -> Result<Option<Vec<u8>>, Unrendered> {
        let attempt = || match (self.condition)(event)? {
            true => body().map(Some),
            false => Ok(None),
        };
        // A closure that panics is given nothing it could leave half-changed.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt))
            .unwrap_or_else(|panic| Err(panic_text(&*panic).into()))
            .map_err(Unrendered)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Label").field(&self.name).finish()
    }
}

/// A label could not be rendered; what its closure or the encoder said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unrendered(BoxError);

fn is_deleted(state: &Document) -> bool {
    !matches!(
        state.get("_deleted"),
        None | Some(Bson::Null | Bson::Boolean(false))
    )
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(label: &Label, event: &Event) -> bool {
        label.render(event, Encoding::Json).unwrap().is_some()
    }

    #[test]
    fn exactly_one_of_the_system_labels_fits() {
        let events = [
            ("created", Event::created(doc! { "a": 1 })),
            ("updated", Event::changed(doc! {}, doc! { "a": 1 })),
            (
                "updated",
                Event::changed(doc! {}, doc! { "_deleted": null }),
            ),
            (
                "deleted",
                Event::changed(doc! {}, doc! { "_deleted": 1_i64 }),
            ),
        ];
        for (name, event) in events {
            let fitting: Vec<_> = Label::system()
                .into_iter()
                .filter(|label| fits(label, &event))
                .map(|label| label.name().to_owned())
                .collect();
            assert_eq!(fitting, [name], "{event:?}");
        }
    }

    #[test]
    fn sync_fits_every_change() {
        assert!(fits(&Label::sync(), &Event::created(doc! {})));
        assert!(fits(
            &Label::sync(),
            &Event::changed(doc! {}, doc! { "_deleted": 1 })
        ));
    }

    #[test]
    fn a_closure_that_fails_or_panics_is_an_error_with_its_text() {
        let failing = Label::new("failing").payload(|_| Err("no kettle".into()));
        let panicking = Label::new("panicking").when(|_| panic!("no tea"));
        for (label, text) in [(failing, "no kettle"), (panicking, "panicked: no tea")] {
            let error = label
                .render(&Event::created(doc! {}), Encoding::Json)
                .unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }
}
