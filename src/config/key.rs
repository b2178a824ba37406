//! The settings by name: how they are called in the environment, in the file and on the command line.

pub(super) const PREFIX: &str = "TOA_OUTBOX_";
/// Shared with other parts of Toa, hence its name.
const BEAT: &str = "TOA_ATOMICITY_INTERVAL";

/// A setting, wherever it is given: `log_level`, `TOA_OUTBOX_LOG_LEVEL`, `--log-level`.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(in crate::config) kind: Kind,
}

/// What the file has to hold; everywhere else all values are text.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) enum Kind {
    /// A connection string, with a password maybe: never shown.
    Uri,
    /// One or several.
    Uris,
    Text,
    Number,
    Switch,
    /// An address, or the number of a port.
    Address,
    /// A number, or a text with a unit.
    Amount,
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind }
}

pub(crate) static KEYS: [Key; 21] = [
    key("mongodb", Kind::Uri),
    key("mongodb_file", Kind::Text),
    key("database", Kind::Text),
    key("amqp", Kind::Uris),
    key("amqp_file", Kind::Text),
    key("amqp_ca", Kind::Text),
    key("amqp_cert", Kind::Text),
    key("amqp_key", Kind::Text),
    key("interval", Kind::Number),
    key("batch", Kind::Number),
    key("retention", Kind::Number),
    key("defer", Kind::Switch),
    key("inflight", Kind::Number),
    key("slot", Kind::Text),
    key("beat", Kind::Number),
    key("ensure", Kind::Switch),
    key("ceiling", Kind::Amount),
    key("listen", Kind::Address),
    key("log", Kind::Text),
    key("log_level", Kind::Text),
    key("config", Kind::Text),
];

impl Key {
    /// By its name in the file.
    #[cfg(feature = "sidecar")]
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// By its name in the environment.
    pub(crate) fn of_variable(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.variable() == name)
    }

    pub(super) fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Uri | Kind::Uris)
    }

    pub(crate) fn variable(&self) -> String {
        match self.name {
            "beat" => BEAT.to_owned(),
            name => format!("{PREFIX}{}", name.to_uppercase()),
        }
    }

    #[cfg(feature = "sidecar")]
    pub(crate) fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }
}

/// What to say of a name that does not exist, among those that do.
pub(in crate::config) fn stranger(what: &str, name: &str, known: &[String]) -> String {
    let distance = |known: &&String| strsim::damerau_levenshtein(known, name);
    match known.iter().min_by_key(distance) {
        Some(nearest) if distance(&nearest) <= 3 => {
            format!("there is no such {what}, did you mean {nearest}?")
        }
        _ => format!("there is no such {what}; there are {}", known.join(", ")),
    }
}
