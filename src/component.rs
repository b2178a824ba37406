//! What the user declares of a component, and the routes that follow from it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    error::{Error, Result},
    label::{Encoding, Label, pattern},
    redact::Redact,
    routes::{Rendering, Routes},
    sinks::{AMQP, Route},
};

/// The most labels of one component.
const MOST_LABELS: usize = 64;

/// One entity collection and the events that are published of it.
///
/// ```
/// use toa_outbox::{Component, Label};
///
/// let pots = Component::new("tea", "pots").labels(Label::system());
/// ```
#[derive(Clone, Debug)]
pub struct Component {
    namespace: String,
    name: String,
    collection: Option<String>,
    outbox: Option<String>,
    exchange: String,
    labels: Vec<Label>,
    encoding: Encoding,
    mandatory: bool,
    headers: BTreeMap<String, String>,
    integrity: bool,
    redact: Vec<Redact>,
}

impl Component {
    /// A component `<namespace>.<name>` without labels: nothing of it is published until
    /// [`labels`](Self::labels) says what. Its entities are in the collection `<namespace>_<name>`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            collection: None,
            outbox: None,
            exchange: "{namespace}.{name}.{label}".into(),
            labels: Vec::new(),
            encoding: Encoding::default(),
            mandatory: false,
            headers: BTreeMap::new(),
            integrity: false,
            redact: Vec::new(),
        }
    }

    /// The collection its entities are in. Default `<namespace>_<name>`.
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.collection = Some(name.into());
        self
    }

    /// The collection its rows are in. Default `<collection>_outbox`.
    pub fn outbox(mut self, name: impl Into<String>) -> Self {
        self.outbox = Some(name.into());
        self
    }

    /// Adds labels; at most 64 in all, each name once.
    pub fn labels(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        self.labels.extend(labels);
        self
    }

    /// How message bodies are encoded. Default [`Encoding::Json`].
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// The name of a label's exchange, with `{namespace}`, `{name}` and `{label}` filled in. Default
    /// `{namespace}.{name}.{label}`.
    pub fn exchange(mut self, template: impl Into<String>) -> Self {
        self.exchange = template.into();
        self
    }

    /// Whether a message that no queue takes counts as not sent, and waits. Default no: a fanout
    /// without a queue accepts.
    pub fn mandatory(mut self, mandatory: bool) -> Self {
        self.mandatory = mandatory;
        self
    }

    /// Adds a header to every message.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Whether rows are written with a digest of their event, default no. A row whose event was changed since, by whoever, is not sent, nor does it delay another: it is
    /// reported by its id, as one that cannot be read.
    ///
    /// A digest that a row has is checked by whoever reads it, also where this says no. A row that has none is sent all the
    /// same: it was written before, by a replica of an earlier version maybe. In the file of the program, which writes no
    /// rows, `integrity = true` says that it is not sent; so that comes last, once all that write have it and what they wrote before is
    /// published.
    ///
    /// It shows mistakes, not malice: whoever may write the row can write its digest.
    ///
    /// # The digest
    ///
    /// In the row's field `digest`, as binary of subtype 0, stand the 32 bytes of the SHA-256 of the event's canonical form. That is the
    /// [BSON](https://bsonspec.org) of the document `{ input, origin, state, trailers }`, in which
    ///
    /// - all four are there, null where there is nothing, and nothing else is that may stand in the row's `event`;
    /// - the keys of every document, at every depth, in arrays and in the scope of code too, are in ascending order of their UTF-8 bytes, and
    ///   each is there once;
    /// - arrays keep their order;
    /// - no value is converted: an int32, an int64, a double and a decimal of the same number are four values, 0.0 and -0.0 are
    ///   two.
    ///
    /// So a writer in another language sorts the keys, encodes with the BSON library it has, and hashes. It has to hash the types that
    /// are stored: a number that its driver stores as an int32 is none of another type.
    ///
    /// The digest of `{ input: "in", origin: null, state: { _id: 1, material: "clay" }, trailers: null }`, where 1 is an int32, is
    /// `192300bca9ac2e0ba0cd0ff75caf0f31eff733a58524c3f3f701cdb05f8d9800`.
    pub fn integrity(mut self, integrity: bool) -> Self {
        self.integrity = integrity;
        self
    }

    /// Adds what of an event is dropped, or replaced by a digest, before its row is written: whatever is then published of it,
    /// at once or later, goes without, and so do conditions and payloads of labels. The entity is stored as it is, and
    /// the entity helpers return it so.
    ///
    /// ```
    /// use toa_outbox::{Component, Redact};
    ///
    /// let orders = Component::new("tea", "orders").redact([
    ///     Redact::dropped("state.card"),
    ///     Redact::digested("state.email").key("a secret of at least 16 bytes"),
    /// ]);
    /// ```
    ///
    /// A path that cannot be used is an [`Error::Component`] when the outbox is opened.
    pub fn redact(mut self, parts: impl IntoIterator<Item = Redact>) -> Self {
        self.redact.extend(parts);
        self
    }

    pub(crate) fn has_integrity(&self) -> bool {
        self.integrity
    }

    pub(crate) fn redacted(&self) -> &[Redact] {
        &self.redact
    }

    /// What the rows in `collection` are of, where nobody has declared it: `tea_pots_outbox` are those of
    /// `tea.pots`, `pots_outbox` in a database `tea` too. None if it is no outbox collection.
    pub(crate) fn of_rows(database: &str, collection: &str) -> Option<Self> {
        let entities = collection.strip_suffix("_outbox")?;
        let (namespace, name) = match entities.split_once('_') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                (namespace, name)
            }
            _ => (database, entities),
        };
        (!name.is_empty()).then(|| {
            Self::new(namespace, name)
                .collection(entities)
                .outbox(collection)
                .labels(Label::system())
        })
    }

    /// What is declared, and what follows from it.
    pub(crate) fn shown(&self) -> serde_json::Value {
        serde_json::json!({
            "namespace": self.namespace,
            "name": self.name,
            "collection": self.entities(),
            "outbox": self.rows(),
            "encoding": self.encoding.name(),
            "exchange": self.exchange,
            "mandatory": self.mandatory,
            "headers": self.headers,
            "integrity": self.integrity,
            "labels": self.labels.iter().map(Label::name).collect::<Vec<_>>(),
        })
    }

    /// `<namespace>.<name>`.
    pub(crate) fn id(&self) -> String {
        format!("{}.{}", self.namespace, self.name)
    }

    /// The environment variable that lists which of the labels something consumes.
    pub(crate) fn variable(&self) -> String {
        let id = format!("TOA_EVENTS_{}_{}", self.namespace, self.name);
        id.to_uppercase().replace(['-', '.'], "_")
    }

    pub(crate) fn entities(&self) -> String {
        let default = || format!("{}_{}", self.namespace, self.name);
        self.collection.clone().unwrap_or_else(default)
    }

    pub(crate) fn rows(&self) -> String {
        let default = || format!("{}_outbox", self.entities());
        self.outbox.clone().unwrap_or_else(default)
    }

    /// Checks the declaration and works out the routes to the broker of the labels in `consumed`; none: of all.
    pub(crate) fn routes(&self, consumed: Option<&[String]>) -> Result<Routes> {
        self.check(consumed)?;
        let wanted = |label: &&Label| {
            consumed.is_none_or(|names| names.iter().any(|name| name == label.name()))
        };
        let labels = self.labels.iter().filter(wanted);
        Ok(Routes {
            encoding: self.encoding,
            all: self.to(&AMQP.into(), labels),
        })
    }

    /// The routes to a sink of the labels that fit one of its patterns, which are those of [`Outbox::subscribe`].
    /// What is consumed is what the broker's consumers say; a sink says it itself.
    ///
    /// [`Outbox::subscribe`]: crate::Outbox::subscribe
    pub(crate) fn routes_to(&self, sink: &Arc<str>, patterns: &[String]) -> Result<Vec<Rendering>> {
        let entities = self.entities();
        let name = |label: &Label| format!("{entities}.{}", label.name());
        let is_wanted = |label: &Label, pattern: &String| pattern::fits(pattern, &name(label));
        let fits_none =
            |pattern: &&String| !self.labels.iter().any(|label| is_wanted(label, pattern));
        if let Some(pattern) = patterns.iter().find(fits_none) {
            let names: Vec<String> = self.labels.iter().map(name).collect();
            return Err(Error::Setting {
                name: "patterns".into(),
                origin: format!("sink {sink:?}").into(),
                value: pattern.clone(),
                expected: format!("expected one that fits a label that is declared, of {names:?}"),
            });
        }
        Ok(self.wanted_by(sink, patterns))
    }

    /// As [`routes_to`](Self::routes_to), where a pattern may fit labels of other components alone.
    pub(crate) fn wanted_by(&self, sink: &Arc<str>, patterns: &[String]) -> Vec<Rendering> {
        let entities = self.entities();
        let is_wanted = |label: &&Label| {
            let name = format!("{entities}.{}", label.name());
            patterns.iter().any(|pattern| pattern::fits(pattern, &name))
        };
        self.to(sink, self.labels.iter().filter(is_wanted))
    }

    fn to<'a>(&self, sink: &Arc<str>, labels: impl Iterator<Item = &'a Label>) -> Vec<Rendering> {
        labels
            .map(|label| Rendering::new(sink, label, self.route(label)))
            .collect()
    }

    fn route(&self, label: &Label) -> Route {
        let exchange = self
            .exchange
            .replace("{namespace}", &self.namespace)
            .replace("{name}", &self.name)
            .replace("{label}", label.name());
        Route {
            component: self.id(),
            label: label.name().to_owned(),
            exchange,
            content_type: self.encoding.content_type(),
            mandatory: self.mandatory,
            headers: self.headers.clone(),
        }
    }

    fn check(&self, consumed: Option<&[String]>) -> Result<()> {
        let wrong = |problem: String| {
            let component = self.id();
            Err(Error::Component { component, problem })
        };
        if self.namespace.is_empty() || self.name.is_empty() {
            return wrong("namespace and name must not be empty".into());
        }
        for name in [self.entities(), self.rows()] {
            if let Some(problem) = unusable_collection(&name) {
                return wrong(format!("{name:?} cannot be a collection: {problem}"));
            }
        }
        if self.rows() == self.entities() {
            return wrong("rows and entities must be in different collections".into());
        }
        if let Some(problem) = unusable_template(&self.exchange) {
            return wrong(format!("exchange {:?}: {problem}", self.exchange));
        }
        if self.labels.len() > MOST_LABELS {
            return wrong(format!(
                "{} labels, at most {MOST_LABELS}",
                self.labels.len()
            ));
        }
        if let Some((path, problem)) = Redact::problem(&self.redact) {
            return wrong(format!("{path:?} cannot be redacted: {problem}"));
        }
        let mut seen = std::collections::HashSet::new();
        for label in &self.labels {
            if label.name().is_empty() || label.name().contains(char::is_whitespace) {
                return wrong(format!("label {:?} must be a word", label.name()));
            }
            if !seen.insert(label.name()) {
                return wrong(format!("label {:?} is declared twice", label.name()));
            }
        }
        match consumed.and_then(|names| names.iter().find(|name| !seen.contains(name.as_str()))) {
            Some(stranger) => wrong(format!(
                "{} lists {stranger:?}, which is not declared; declared are {:?}",
                self.variable(),
                self.labels.iter().map(Label::name).collect::<Vec<_>>()
            )),
            None => Ok(()),
        }
    }
}

/// Whether something in braces is left as it is, and would become part of a name.
fn unusable_template(template: &str) -> Option<&'static str> {
    let rest = ["{namespace}", "{name}", "{label}"]
        .iter()
        .fold(template.to_owned(), |rest, part| rest.replace(part, ""));
    if template.is_empty() {
        Some("it is empty")
    } else if rest.contains(['{', '}']) {
        Some("expected no braces but {namespace}, {name} and {label}")
    } else if rest.starts_with("amq.") {
        Some("names that start with amq. belong to the broker")
    } else {
        None
    }
}

/// The server's rules for collection names, as far as they make a name unusable here.
/// <https://www.mongodb.com/docs/manual/reference/limits/#naming-restrictions>
fn unusable_collection(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it is empty")
    } else if name.contains(['$', '\0']) {
        Some("it contains $ or a null character")
    } else if name.starts_with("system.") {
        Some("it starts with system.")
    } else if name.starts_with('.') || name.ends_with('.') {
        Some("it starts or ends with a dot")
    } else if name.len() > 200 {
        Some("it is longer than 200 bytes")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "sidecar")]
    #[test]
    fn an_outbox_collection_tells_whose_it_is() {
        let id = |collection| Component::of_rows("tea", collection).map(|pots| pots.id());
        assert_eq!(id("tea_pots_outbox").as_deref(), Some("tea.pots"));
        assert_eq!(id("tea_big_pots_outbox").as_deref(), Some("tea.big_pots"));
        assert_eq!(id("pots_outbox").as_deref(), Some("tea.pots"));
        assert_eq!(id("tea_pots"), None);
        assert_eq!(id("_outbox"), None);
    }

    fn pots() -> Component {
        Component::new("tea", "pots").labels(Label::system())
    }

    fn problem(component: &Component, consumed: Option<&[String]>) -> String {
        component.routes(consumed).unwrap_err().to_string()
    }

    #[test]
    fn names_follow_from_the_component() {
        let routes = pots().routes(None).unwrap();
        assert_eq!(pots().rows(), "tea_pots_outbox");
        assert_eq!(routes.all[0].route.exchange, "tea.pots.created");
        assert_eq!(routes.all[0].name, "amqp/created");
        assert_eq!(
            Component::new("my-tea", "old.pots").variable(),
            "TOA_EVENTS_MY_TEA_OLD_POTS"
        );
    }

    #[test]
    fn only_what_is_consumed_is_a_route() {
        let only = ["deleted".to_owned()];
        let routes = pots().routes(Some(&only)).unwrap();
        assert_eq!(routes.names(routes.done(Some(&[]))), ["amqp/deleted"]);
        assert!(pots().routes(Some(&[])).unwrap().all.is_empty());
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let stranger = ["boild".to_owned()];
        assert!(problem(&pots(), Some(&stranger)).contains("\"boild\""));
        assert!(problem(&pots().labels([Label::created()]), None).contains("twice"));
        assert!(problem(&pots().outbox("tea_pots"), None).contains("different"));
        for name in ["", "a$b", "system.x", ".a", "a."] {
            assert!(
                problem(&pots().outbox(name), None).contains("collection"),
                "{name}"
            );
        }
        for template in ["", "{namespace}.{lable}", "amq.{name}"] {
            let text = problem(&pots().exchange(template), None);
            assert!(text.contains("exchange"), "{text}");
        }
        let text = problem(&pots().redact([Redact::dropped("email")]), None);
        assert!(text.contains("\"email\""), "{text}");
        let many = (0..65).map(|n| Label::new(format!("label-{n}")));
        assert!(problem(&Component::new("a", "b").labels(many), None).contains("65"));
    }
}
