//! Lines of JSON on standard output, for another program to read.

use std::{
    io::{self, Write},
    sync::Arc,
};

use tokio::sync::Mutex;

use super::{Message, Sink, Unreachable, Verdict, lines::lines};
use crate::label::BoxError;

/// A [`Sink`] that writes each message to standard output, as a line of JSON of the form that [`JsonLines`](crate::JsonLines) has.
///
/// A batch is written and flushed at once, so there are whole lines for as long as someone reads; what he has read, nobody knows.
/// Whoever does not read any more has the sink fail, and everything stays owed: nobody is to blame, so no attempt is counted.
/// Whoever does not read on holds up the sink and nothing else; but a process waits for what it is writing before it ends.
///
/// There is one standard output: nothing else should be written to it, such as a log.
#[derive(Clone, Debug, Default)]
pub struct Stdout {
    /// Held while something is written: an attempt that was given up may be at it still.
    writing: Arc<Mutex<()>>,
}

impl Stdout {
    /// To that of this process.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Sink for Stdout {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let lines = lines(batch)?;
        let Ok(writing) = self.writing.clone().try_lock_owned() else {
            return Err(failed("nobody has read yet what was written before").into());
        };
        let written = tokio::task::spawn_blocking(move || {
            let _writing = writing;
            write(&lines)
        });
        written.await?.map_err(failed)?;
        Ok(vec![Verdict::Accepted; batch.len()])
    }
}

fn write(lines: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(lines)?;
    stdout.flush()
}

fn failed(error: impl std::fmt::Display) -> Unreachable {
    Unreachable::new(format!(
        "writing to standard output: {error}; whatever reads it has to go on, or this process to be started anew with \
         someone who reads"
    ))
}
