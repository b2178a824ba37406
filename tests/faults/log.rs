//! Every line that is logged, by us and by what we use, as a user's subscriber would see it.

use std::{
    fmt::{self, Write},
    sync::{Mutex, OnceLock},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

/// Where a test begins to read the log.
pub struct Log {
    from: usize,
}

impl Log {
    /// From now on.
    pub fn read() -> Self {
        Self {
            from: lines().lock().unwrap().len(),
        }
    }

    /// The lines of this crate that contain `key`, in order, since the reading began.
    pub fn ours(&self, key: &str) -> Vec<String> {
        self.filter(|line| line.contains(" toa_outbox") && line.contains(key))
    }

    /// The lines of anyone.
    pub fn all(&self, key: &str) -> Vec<String> {
        self.filter(|line| line.contains(key))
    }

    fn filter(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let lines = lines().lock().unwrap();
        lines[self.from..]
            .iter()
            .filter(|line| wanted(line))
            .cloned()
            .collect()
    }
}

fn lines() -> &'static Mutex<Vec<String>> {
    static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    LINES.get_or_init(|| {
        tracing::subscriber::set_global_default(Recorder).expect("nobody else records");
        Mutex::default()
    })
}

/// Debug and up, which is what an operator can be expected to switch on.
struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let crates = ["toa_outbox", "lapin", "amq"];
        let ours = crates
            .iter()
            .any(|name| metadata.target().starts_with(name));
        metadata.is_event() && ours && *metadata.level() <= LevelFilter::DEBUG
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line(format!("{} {}", metadata.level(), metadata.target()));
        event.record(&mut line);
        lines().lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The beginning of a line: the client logs whole messages.
struct Line(String);

const LONGEST: usize = 600;

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // It fails when the line is full.
        let _ = write!(self, " {}={value:?}", field.name());
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}
