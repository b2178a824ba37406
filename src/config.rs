//! Settings: the only reader of the environment and of the file `toa-outbox.toml`.
//!
//! Defaults, the file, the environment and the command line are layers; the later one wins, and a value that
//! another one overrides has to be right all the same.
//!
//! A value that cannot be used is an error that names the setting, where it came from, what it was and
//! what is expected; never a silent fallback. A `TOA_OUTBOX_*` name that does not exist is one too.

#[cfg(feature = "sidecar")]
mod component;
mod environment;
#[cfg(feature = "sidecar")]
mod file;
mod given;
mod key;
#[cfg(feature = "sidecar")]
mod layers;
mod secret;
#[cfg(feature = "sidecar")]
mod sidecar;
#[cfg(feature = "sidecar")]
pub(crate) mod sinks;
mod uri;

use std::{collections::HashMap, fmt, ops::RangeInclusive, path::PathBuf, time::Duration};

use crate::{
    ceiling::{self, Ceiling},
    error::{Error, Result},
    lane::Slot,
    slots::Timing,
};
use environment::Environment;
use given::Given;

#[cfg(feature = "sidecar")]
pub(crate) use self::{
    component::Source,
    given::Given as Flag,
    key::{KEYS, Key},
    layers::{Origins, layers},
    sidecar::Log,
    uri::masked,
};

/// What the settings may be, in the units of their variables.
const INTERVAL: RangeInclusive<u64> = 10..=3_600_000;
const BATCH: RangeInclusive<u32> = 1..=10_000;
const INFLIGHT: RangeInclusive<u32> = 1..=100_000;
const RETENTION: RangeInclusive<u64> = 0..=i32::MAX as u64;
const BEAT: RangeInclusive<u64> = 10..=60_000;

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
    /// database. `TOA_OUTBOX_MONGODB`, or the path of a file that holds it: `TOA_OUTBOX_MONGODB_FILE`.
    pub mongodb: Option<String>,
    /// The database the rows are in; as above. `TOA_OUTBOX_DATABASE`.
    pub database: Option<String>,
    /// Where messages go: AMQP URIs, tried in turn. `TOA_OUTBOX_AMQP`, space-separated, or the path of a
    /// file that holds them: `TOA_OUTBOX_AMQP_FILE`.
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
    /// How much the outbox holds before [`append`](crate::Outbox::append), and all else that writes a row, is refused with
    /// [`Error::Ceiling`], default no limit. `TOA_OUTBOX_CEILING`: rows (`100000`), or bytes (`64MiB`, `KiB`, `GiB`).
    ///
    /// Counted are rows that are not published, rows given up on that are kept as copies, and the new one. A refusal
    /// touches nothing of what is there, and writing goes on some tenths of a second after the backlog has fallen, two seconds where it is of a hundred thousand rows. A count
    /// that fails refuses nothing; it is reported. Of no meaning where no rows are written: on a standalone server, and
    /// for a component of which nothing is consumed.
    ///
    /// Each replica counts by itself, while it writes: once a second, once it has added a sixteenth of the room it
    /// saw, and before it refuses. So `n` replicas hold more than the ceiling by `n` sixteenths of it at most, if all have counted at a
    /// time when there was nothing; by `n` thousandths, a row each at least, where all of them go on writing. Beyond that come
    /// only rows whose transactions others had not committed when it was counted. A replica's own rows count from the moment they are
    /// written, those of a transaction that was rolled back too, up to the next count.
    ///
    /// To count a hundred thousand rows takes the server some 150 ms. A replica has it do so for a tenth of the time at most, and beyond that
    /// once for each thousandth of the ceiling that it writes with hardly any room left, which those rows wait for.
    ///
    /// In bytes, up to a thousand rows are measured exactly. More are estimated by the average of a thousand, those of the lowest
    /// lanes, which are given at random: where the sizes of rows have the standard deviation `s`, that is wrong by more than
    /// `s / 16` a row once in twenty times.
    pub ceiling: Option<Ceiling>,
    /// The labels of a component that something consumes, by the variable's name; absent: all that are
    /// declared. `TOA_EVENTS_<NAMESPACE>_<NAME>`, space-separated; `-` and `.` in names are `_` here.
    pub events: HashMap<String, Vec<String>>,
    /// How long a transaction is retried before its error is handed to the caller, default 120 s as the
    /// drivers have it. Not a time limit for the transaction's body.
    pub deadline: Duration,
    /// How long a confirm may stay away on a connection that is not blocked before its channel is
    /// rebuilt and the message counts as not sent, default 60 s.
    pub confirm_timeout: Duration,
    /// How long a [`Sink`](crate::Sink) may take for a batch, or a [handler](crate::Builder::consume) for a message, before it counts
    /// as failed, default 30 s.
    pub sink_timeout: Duration,
    /// How long no replica may have had a [consumer](crate::Builder::consume), or a label, before rows owe it nothing more;
    /// longer than a rolling deploy takes and than clocks differ, at least a second, default 15 min.
    pub consumer_grace: Duration,
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
            ceiling: None,
            events: HashMap::new(),
            deadline: Duration::from_secs(120),
            confirm_timeout: Duration::from_secs(60),
            sink_timeout: Duration::from_secs(30),
            consumer_grace: Duration::from_secs(15 * 60),
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
            .field("ceiling", &self.ceiling)
            .field("events", &self.events)
            .field("deadline", &self.deadline)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("sink_timeout", &self.sink_timeout)
            .field("consumer_grace", &self.consumer_grace)
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
        Self::of(environment::own()?)
    }

    fn of(environment: Environment) -> Result<Self> {
        let events = environment.events;
        let mut settings = Self {
            events,
            ..Self::default()
        };
        environment
            .given
            .iter()
            .try_for_each(|given| settings.set(given).map(|_| ()))?;
        Ok(settings)
    }

    /// Takes a value of one of the fields; false if it is none of theirs, but the program's.
    fn set(&mut self, given: &Given) -> Result<bool> {
        match given.key.name {
            "mongodb" => self.mongodb = Some(given.text()?),
            "database" => self.database = Some(given.text()?),
            "amqp" => self.amqp = given.words()?,
            "amqp_ca" => self.amqp_ca = Some(given.path()?),
            "amqp_cert" => self.amqp_cert = Some(given.path()?),
            "amqp_key" => self.amqp_key = Some(given.path()?),
            "interval" => self.interval = Duration::from_millis(given.number(INTERVAL)?),
            "batch" => self.batch = given.number(BATCH)?,
            "retention" => self.retention = Duration::from_secs(given.number(RETENTION)?),
            "defer" => self.defer = given.switch()?,
            "inflight" => self.inflight = given.number(INFLIGHT)?,
            "slot" => {
                self.slot = Some(given.parsed("i/n with i < n and n from 1 to 128, such as 0/2")?);
            }
            "beat" => self.beat = Duration::from_millis(given.number(BEAT)?),
            "ensure" => self.ensure = given.switch()?,
            "ceiling" => self.ceiling = Some(given.parsed(ceiling::EXPECTED)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses what is out of bounds, whoever set it.
    pub(crate) fn check(&self, origin: &'static str) -> Result<()> {
        let bounds = [
            ("interval", self.interval.as_millis(), INTERVAL),
            ("batch", self.batch.into(), wide(BATCH)),
            ("inflight", self.inflight.into(), wide(INFLIGHT)),
            ("retention", self.retention.as_secs().into(), RETENTION),
            ("beat", self.beat.as_millis(), BEAT),
        ];
        for (name, value, bounds) in bounds {
            if !u64::try_from(value).is_ok_and(|value| bounds.contains(&value)) {
                let (least, most) = bounds.into_inner();
                return Err(Error::Setting {
                    name: name.into(),
                    origin: origin.into(),
                    value: value.to_string(),
                    expected: format!("expected a whole number from {least} to {most}"),
                });
            }
        }
        if let Some(ceiling) = self.ceiling.filter(|ceiling| !ceiling.is_usable()) {
            return Err(Error::Setting {
                name: "ceiling".into(),
                origin: origin.into(),
                value: ceiling.to_string(),
                expected: format!("expected {}", ceiling::EXPECTED),
            });
        }
        self.check_spans(origin)
    }

    /// Those that only code can set.
    fn check_spans(&self, origin: &'static str) -> Result<()> {
        let refuse = |name: &str, span: Duration, expected: &str| {
            Err(Error::Setting {
                name: name.into(),
                origin: origin.into(),
                value: format!("{span:?}"),
                expected: expected.into(),
            })
        };
        let spans = [
            ("deadline", self.deadline),
            ("confirm_timeout", self.confirm_timeout),
            ("sink_timeout", self.sink_timeout),
            ("consumer_grace", self.consumer_grace),
            ("grace", self.grace),
        ];
        for (name, span) in spans {
            if span < Duration::from_millis(1) || span > LONGEST_SPAN {
                return refuse(name, span, "expected a millisecond to a day");
            }
        }
        if !Timing::new(self.beat).holds() {
            return refuse(
                "beat",
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

fn wide(bounds: RangeInclusive<u32>) -> RangeInclusive<u64> {
    (*bounds.start()).into()..=(*bounds.end()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Result<Settings> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        Settings::of(environment::read(vars.iter().map(owned))?)
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
            ("TOA_OUTBOX_CEILING", "64MiB"),
            ("TOA_EVENTS_TEA_POTS", " created  boiled "),
            ("TOA_EVENTS_TEA_CUPS", ""),
        ])
        .unwrap();
        assert_eq!(settings.gap(), Duration::from_millis(300));
        assert_eq!(settings.amqp, ["amqp://a", "amqp://b"]);
        assert_eq!(settings.slot, Slot::new(1, 2));
        assert_eq!(settings.beat, Duration::from_millis(500));
        assert!(settings.defer);
        assert_eq!(settings.ceiling, Some(Ceiling::Bytes(64 << 20)));
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
            ("TOA_OUTBOX_DATABASE", ""),
            ("TOA_OUTBOX_BATCH", "0"),
            ("TOA_OUTBOX_BATCH", "-1"),
            ("TOA_OUTBOX_RETENTION", "1.5"),
            ("TOA_OUTBOX_RETENTION", "99999999999"),
            ("TOA_OUTBOX_DEFER", "yes"),
            ("TOA_OUTBOX_SLOT", "2/2"),
            ("TOA_OUTBOX_INFLIGHT", "1e3"),
            ("TOA_OUTBOX_CEILING", "0"),
            ("TOA_OUTBOX_CEILING", "64MB"),
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
        refuses(|settings| settings.ceiling = Some(Ceiling::Bytes(0)));
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
