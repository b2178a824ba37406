//! Settings: the only reader of the environment.
//!
//! A value that cannot be used is an error that names the setting, where it came from, what it was and
//! what is expected; never a silent fallback. A `TOA_OUTBOX_*` name that does not exist is one too.

use std::{collections::HashMap, fmt, path::PathBuf, time::Duration};

use crate::{
    error::{Error, Result},
    lane::Slot,
    slots::Timing,
};

const PREFIX: &str = "TOA_OUTBOX_";
const EVENTS: &str = "TOA_EVENTS_";
/// Shared with other parts of Toa, hence its name.
const BEAT: &str = "TOA_ATOMICITY_INTERVAL";

/// The longest that a span which only code can set may be.
const LONGEST_SPAN: Duration = Duration::from_secs(86_400);

/// Every setting of this crate. Start from [`Settings::default`] or [`Settings::from_env`] and change
/// fields.
///
/// ```
/// # use std::time::Duration;
/// use toa_outbox::Settings;
///
/// let settings = Settings { interval: Duration::from_secs(1), ..Settings::default() };
/// assert_eq!(settings.gap(), Duration::from_secs(3));
/// ```
#[derive(Clone)]
pub struct Settings {
    /// Where the rows are, a MongoDB connection string; for the command line, a library is handed a
    /// database. `TOA_OUTBOX_MONGODB`.
    pub mongodb: Option<String>,
    /// The database the rows are in; as above. `TOA_OUTBOX_DATABASE`.
    pub database: Option<String>,
    /// Where messages go: AMQP URIs, tried in turn. `TOA_OUTBOX_AMQP`, space-separated.
    pub amqp: Vec<String>,
    /// The certificates that sign the broker's, a PEM file, default those of the system.
    /// `TOA_OUTBOX_AMQP_CA`.
    pub amqp_ca: Option<PathBuf>,
    /// The certificate this client shows the broker, a PEM file with its chain. `TOA_OUTBOX_AMQP_CERT`.
    pub amqp_cert: Option<PathBuf>,
    /// Its private key, a PEM file. `TOA_OUTBOX_AMQP_KEY`.
    pub amqp_key: Option<PathBuf>,
    /// One cycle of the pump, at least 10 ms, default 5 s. [`gap`](Self::gap) follows from it.
    /// `TOA_OUTBOX_INTERVAL`, milliseconds.
    pub interval: Duration,
    /// Rows one read brings back, 1 to 10 000, default 200. `TOA_OUTBOX_BATCH`.
    pub batch: u32,
    /// How long a published row is kept, whole seconds, default a day; zero: for ever, without a TTL
    /// index. `TOA_OUTBOX_RETENTION`, seconds.
    pub retention: Duration,
    /// Whether only the pump delivers, default no: a committed row is published at once.
    /// `TOA_OUTBOX_DEFER`, 0 or 1.
    pub defer: bool,
    /// Publications in flight per sink, 1 to 100 000, default 1000. Ten times as many ids are
    /// remembered. `TOA_OUTBOX_INFLIGHT`.
    pub inflight: u32,
    /// The lanes this replica pumps, default what the replicas of the component agree on. Where one is
    /// given, all of them need one, of the same `n`, and no two the same. `TOA_OUTBOX_SLOT`, `i/n`.
    pub slot: Option<Slot>,
    /// Between two signs of life of a replica, 10 ms to a minute, default 2 s. After three without one the
    /// others take its lanes. `TOA_ATOMICITY_INTERVAL`, milliseconds.
    pub beat: Duration,
    /// Whether collection and indexes are created at start, default yes. `TOA_OUTBOX_ENSURE`, 0 or 1.
    pub ensure: bool,
    /// The labels of a component that something consumes, by the variable's name; absent: all that are
    /// declared. `TOA_EVENTS_<NAMESPACE>_<NAME>`, space-separated; `-` and `.` in names are `_` here.
    pub events: HashMap<String, Vec<String>>,
    /// How long a transaction is retried before its error is handed to the caller, default 120 s as the
    /// drivers have it. Not a time limit for the transaction's body.
    pub deadline: Duration,
    /// How long a confirm may stay away on a connection that is not blocked before its channel is
    /// rebuilt and the message counts as not sent, default 60 s.
    pub confirm_timeout: Duration,
    /// How long a shutdown waits for what is in flight, default 10 s.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mongodb: None,
            database: None,
            amqp: Vec::new(),
            amqp_ca: None,
            amqp_cert: None,
            amqp_key: None,
            interval: Duration::from_secs(5),
            batch: 200,
            retention: Duration::from_secs(86_400),
            defer: false,
            inflight: 1000,
            slot: None,
            beat: Duration::from_secs(2),
            ensure: true,
            events: HashMap::new(),
            deadline: Duration::from_secs(120),
            confirm_timeout: Duration::from_secs(60),
            grace: Duration::from_secs(10),
        }
    }
}

/// Written by hand so that credentials in connection strings do not appear.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("mongodb", &self.mongodb.as_ref().map(|_| "…"))
            .field("database", &self.database)
            .field("amqp", &format_args!("{} nodes", self.amqp.len()))
            .field("amqp_ca", &self.amqp_ca)
            .field("amqp_cert", &self.amqp_cert)
            .field("amqp_key", &self.amqp_key)
            .field("interval", &self.interval)
            .field("batch", &self.batch)
            .field("retention", &self.retention)
            .field("defer", &self.defer)
            .field("inflight", &self.inflight)
            .field("slot", &self.slot)
            .field("beat", &self.beat)
            .field("ensure", &self.ensure)
            .field("events", &self.events)
            .field("deadline", &self.deadline)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("grace", &self.grace)
            .finish()
    }
}

impl Settings {
    /// The defaults, overridden by what the environment says.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for a value that cannot be used, and for a `TOA_OUTBOX_*` name that does not
    /// exist.
    pub fn from_env() -> Result<Self> {
        // What is not UTF-8 cannot be the name of one of ours.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((
                name.into_string().ok()?,
                value.to_string_lossy().into_owned(),
            ))
        };
        Self::from_vars(std::env::vars_os().filter_map(text))
    }

    fn from_vars(vars: impl Iterator<Item = (String, String)>) -> Result<Self> {
        let mut settings = Self::default();
        for (name, value) in vars {
            if let Some(key) = name.strip_prefix(PREFIX) {
                settings.set(key, &value)?;
            } else if name == BEAT {
                let millis = Reading {
                    name: &name,
                    value: &value,
                }
                .number()?;
                settings.beat = Duration::from_millis(millis);
                settings.check("environment")?;
            } else if name.starts_with(EVENTS) {
                let labels = value.split_whitespace().map(str::to_owned).collect();
                settings.events.insert(name, labels);
            }
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let name = format!("{PREFIX}{key}");
        let read = Reading { name: &name, value };
        match key {
            "MONGODB" => self.mongodb = Some(value.to_owned()),
            "DATABASE" => self.database = Some(value.to_owned()),
            "AMQP" => self.amqp = value.split_whitespace().map(str::to_owned).collect(),
            "AMQP_CA" => self.amqp_ca = Some(value.into()),
            "AMQP_CERT" => self.amqp_cert = Some(value.into()),
            "AMQP_KEY" => self.amqp_key = Some(value.into()),
            "INTERVAL" => self.interval = Duration::from_millis(read.number()?),
            "BATCH" => self.batch = read.number()?,
            "RETENTION" => self.retention = Duration::from_secs(read.number()?),
            "DEFER" => self.defer = read.switch()?,
            "INFLIGHT" => self.inflight = read.number()?,
            "SLOT" => {
                self.slot = Some(read.parsed("i/n with i < n and n from 1 to 128, such as 0/2")?)
            }
            "ENSURE" => self.ensure = read.switch()?,
            _ => return Err(read.unknown()),
        }
        self.check("environment")
    }

    /// Refuses what is out of bounds, whoever set it.
    pub(crate) fn check(&self, origin: &'static str) -> Result<()> {
        let bounds: [(&str, u128, u128, u128); 5] = [
            (
                "TOA_OUTBOX_INTERVAL",
                self.interval.as_millis(),
                10,
                3_600_000,
            ),
            ("TOA_OUTBOX_BATCH", self.batch.into(), 1, 10_000),
            ("TOA_OUTBOX_INFLIGHT", self.inflight.into(), 1, 100_000),
            (
                "TOA_OUTBOX_RETENTION",
                self.retention.as_secs().into(),
                0,
                i32::MAX as u128,
            ),
            (BEAT, self.beat.as_millis(), 10, 60_000),
        ];
        for (name, value, least, most) in bounds {
            if value < least || value > most {
                return Err(Error::Setting {
                    name: name.into(),
                    origin,
                    value: value.to_string(),
                    expected: format!("expected a whole number from {least} to {most}"),
                });
            }
        }
        self.check_spans(origin)
    }

    /// Those that only code can set.
    fn check_spans(&self, origin: &'static str) -> Result<()> {
        let refuse = |name: &str, span: Duration, expected: &str| {
            Err(Error::Setting {
                name: name.into(),
                origin,
                value: format!("{span:?}"),
                expected: expected.into(),
            })
        };
        let spans = [
            ("deadline", self.deadline),
            ("confirm_timeout", self.confirm_timeout),
            ("grace", self.grace),
        ];
        for (name, span) in spans {
            if span < Duration::from_millis(1) || span > LONGEST_SPAN {
                return refuse(name, span, "expected a millisecond to a day");
            }
        }
        if !Timing::new(self.beat).holds() {
            return refuse(
                BEAT,
                self.beat,
                "expected one that leaves time between stop, cut and lease",
            );
        }
        if self.retention.subsec_nanos() != 0 {
            return refuse("retention", self.retention, "expected whole seconds");
        }
        Ok(())
    }

    /// How long a row published by its own writer stays out of the pump's sight: three intervals, two
    /// cycles of separation across a handover and one of margin.
    pub fn gap(&self) -> Duration {
        self.interval * 3
    }
}

/// One variable being read.
struct Reading<'a> {
    name: &'a str,
    value: &'a str,
}

impl Reading<'_> {
    fn parsed<T: std::str::FromStr>(&self, expected: &str) -> Result<T> {
        self.value.trim().parse().map_err(|_| self.refuse(expected))
    }

    fn number<T: std::str::FromStr>(&self) -> Result<T> {
        self.parsed("a whole number, not negative and not too large")
    }

    fn switch(&self) -> Result<bool> {
        match self.value.trim() {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.refuse("0 or 1")),
        }
    }

    fn refuse(&self, expected: &str) -> Error {
        Error::Setting {
            name: self.name.to_owned(),
            origin: "environment",
            value: self.value.to_owned(),
            expected: format!("expected {expected}"),
        }
    }

    fn unknown(&self) -> Error {
        let key = self.name.strip_prefix(PREFIX).unwrap_or(self.name);
        let nearest = NAMES
            .into_iter()
            .min_by_key(|name| strsim::damerau_levenshtein(name, key));
        let expected = match nearest {
            Some(name) if strsim::damerau_levenshtein(name, key) <= 3 => {
                format!("there is no such setting, did you mean {PREFIX}{name}?")
            }
            _ => format!("there is no such setting; there are {}", NAMES.join(", ")),
        };
        Error::Setting {
            name: self.name.to_owned(),
            origin: "environment",
            value: "…".into(),
            expected,
        }
    }
}

const NAMES: [&str; 13] = [
    "MONGODB",
    "DATABASE",
    "AMQP",
    "AMQP_CA",
    "AMQP_CERT",
    "AMQP_KEY",
    "INTERVAL",
    "BATCH",
    "RETENTION",
    "DEFER",
    "INFLIGHT",
    "SLOT",
    "ENSURE",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Result<Settings> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        Settings::from_vars(vars.iter().map(owned))
    }

    fn refusal(name: &str, value: &str) -> String {
        settings(&[(name, value)]).unwrap_err().to_string()
    }

    #[test]
    fn what_is_set_is_used() {
        let settings = settings(&[
            ("PATH", "/bin"),
            ("TOA_OUTBOX_INTERVAL", "100"),
            ("TOA_OUTBOX_AMQP", "amqp://a  amqp://b"),
            ("TOA_OUTBOX_SLOT", "1/2"),
            ("TOA_OUTBOX_DEFER", "1"),
            ("TOA_ATOMICITY_INTERVAL", "500"),
            ("TOA_EVENTS_TEA_POTS", " created  boiled "),
            ("TOA_EVENTS_TEA_CUPS", ""),
        ])
        .unwrap();
        assert_eq!(settings.gap(), Duration::from_millis(300));
        assert_eq!(settings.amqp, ["amqp://a", "amqp://b"]);
        assert_eq!(settings.slot, Slot::new(1, 2));
        assert_eq!(settings.beat, Duration::from_millis(500));
        assert!(settings.defer);
        assert_eq!(
            settings.events["TOA_EVENTS_TEA_POTS"],
            ["created", "boiled"]
        );
        assert!(settings.events["TOA_EVENTS_TEA_CUPS"].is_empty());
    }

    #[test]
    fn what_cannot_be_used_names_itself() {
        for (name, value) in [
            ("TOA_OUTBOX_INTERVAL", "5s"),
            ("TOA_OUTBOX_INTERVAL", "0"),
            ("TOA_OUTBOX_INTERVAL", ""),
            ("TOA_OUTBOX_BATCH", "0"),
            ("TOA_OUTBOX_BATCH", "-1"),
            ("TOA_OUTBOX_RETENTION", "1.5"),
            ("TOA_OUTBOX_RETENTION", "99999999999"),
            ("TOA_OUTBOX_DEFER", "yes"),
            ("TOA_OUTBOX_SLOT", "2/2"),
            ("TOA_OUTBOX_INFLIGHT", "1e3"),
            ("TOA_ATOMICITY_INTERVAL", "5"),
            ("TOA_ATOMICITY_INTERVAL", "2s"),
        ] {
            let text = refusal(name, value);
            assert!(
                text.contains(name) && text.contains("environment"),
                "{text}"
            );
            assert!(text.contains(&format!("{value:?}")), "{text}");
            assert!(text.contains("expected"), "{text}");
        }
    }

    #[test]
    fn spans_that_cannot_be_used_are_refused_in_code_too() {
        let refuses = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            assert!(settings.check("builder").is_err(), "{settings:?}");
        };
        refuses(|settings| settings.deadline = Duration::MAX);
        refuses(|settings| settings.confirm_timeout = Duration::ZERO);
        refuses(|settings| settings.grace = Duration::MAX);
        refuses(|settings| settings.retention = Duration::from_millis(500));
        assert!(Settings::default().check("builder").is_ok());
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let text = refusal("TOA_OUTBOX_INTERVALL", "100");
        assert!(text.contains("did you mean TOA_OUTBOX_INTERVAL?"), "{text}");
        assert!(refusal("TOA_OUTBOX_XYZZY_PLUGH", "secret").contains("RETENTION"));
        assert!(!refusal("TOA_OUTBOX_XYZZY_PLUGH", "secret").contains("secret"));
    }

    #[test]
    fn what_is_shown_holds_no_credentials() {
        let settings = settings(&[
            ("TOA_OUTBOX_MONGODB", "mongodb://me:secret@db"),
            ("TOA_OUTBOX_AMQP", "amqp://me:secret@mq"),
        ]);
        assert!(!format!("{:?}", settings.unwrap()).contains("secret"));
    }
}
