//! A file of JSON lines.
//!
//! What was answered for is on the disk: each batch is one write and one `fsync`, and the directory is synced too when a file
//! is new in it. What a crash left of a batch is found when the file is opened: its whole lines stay, since nobody knows whether
//! they were answered for, and a piece of a line is cut off.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Message, Sink, Verdict, lines::lines};
use crate::{
    error::{Error, Result},
    label::BoxError,
};

/// How long another process may hold the file before it is refused.
const PATIENCE: Duration = Duration::from_secs(5);

/// From one attempt to the next.
const PACE: Duration = Duration::from_millis(100);

/// How much is read at once in looking for the end of the last whole line.
const CHUNK: u64 = 64 * 1024;

/// A [`Sink`] that appends each message to a file, as a line of JSON:
///
/// ```json
/// {"row":"0193…","label":"created","component":"tea.pots","entity":7,"time":"2026-01-02T03:04:05Z","body":{"_id":7}}
/// ```
///
/// `entity` and `time` are null where nobody knows them. A body that is not JSON is base64 text. A batch is answered for when
/// it is on the disk. After a crash there are whole lines only, and some of them may be there twice.
///
/// One process has the file at a time: give each replica a path of its own. Beside the file there is one that
/// ends in `.lock`, which says so and stays.
pub struct JsonLines {
    appending: Arc<Mutex<Appending>>,
}

struct Appending {
    path: PathBuf,
    file: File,
    /// How long the file is, in bytes.
    size: u64,
    /// Whether there may be more in it than that: a piece of what failed.
    is_torn: bool,
    rotation: Option<Rotation>,
    /// Held for as long as it is open.
    _lock: File,
}

#[derive(Clone, Copy)]
struct Rotation {
    bytes: u64,
    files: usize,
}

impl JsonLines {
    /// Opens the file, or makes it, in a directory that is there.
    ///
    /// # Errors
    ///
    /// [`Error::File`] if it cannot be opened, or another process has had it for five seconds.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let lock = lock(&path).await?;
        let opened = tokio::task::spawn_blocking({
            let path = path.clone();
            move || Appending::open(path, lock)
        });
        // It does not panic.
        let opened = opened.await.unwrap_or_else(|died| Err(died.into()));
        let appending = opened.map_err(|error| failed(&path, error))?;
        Ok(Self {
            appending: Arc::new(Mutex::new(appending)),
        })
    }

    /// Begins a new file before this one would have more than so many bytes, and keeps so many of the old ones, at least one:
    /// `path.1` is the latest. A batch is never split, so a file may be larger by as much as one that is too large alone.
    #[must_use]
    pub fn rotated(self, bytes: u64, files: usize) -> Self {
        let rotation = Rotation {
            bytes,
            files: files.max(1),
        };
        locked(&self.appending).rotation = Some(rotation);
        self
    }
}

impl Sink for JsonLines {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let lines = lines(batch)?;
        let appending = self.appending.clone();
        // Ended before it has answered, it goes on, and those lines are there twice in the end.
        tokio::task::spawn_blocking(move || locked(&appending).append(&lines)).await??;
        Ok(vec![Verdict::Accepted; batch.len()])
    }
}

/// What panicked under the lock left the file no worse than a crash would have.
fn locked(appending: &Mutex<Appending>) -> std::sync::MutexGuard<'_, Appending> {
    appending.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn lock(path: &Path) -> Result<File> {
    let open = || {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(beside(path, "lock"))
    };
    let lock = open().map_err(|error| failed(path, error))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::Error(error)) => return Err(failed(path, error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                let held = "another process has it; give each replica a file of its own";
                return Err(failed(path, io::Error::other(held)));
            }
            Err(TryLockError::WouldBlock) => tokio::time::sleep(PACE).await,
        }
    }
}

/// `path.suffix`, whatever the path ends in.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        source,
    }
}

impl Appending {
    fn open(path: PathBuf, lock: File) -> io::Result<Self> {
        let mut file = opened(&path)?;
        let size = mended(&mut file)?;
        Ok(Self {
            path,
            file,
            size,
            is_torn: false,
            rotation: None,
            _lock: lock,
        })
    }

    /// All of it, on the disk, or nothing.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.mend()?;
        let size = self.size + lines.len() as u64;
        if let Some(rotation) = self.rotation
            && self.size > 0
            && size > rotation.bytes
        {
            self.rotate(rotation.files)?;
        }
        let written = self.file.write_all(lines);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            // Not by halves; where that fails too, nothing is appended until it does not.
            self.is_torn = true;
            let _ = self.mend();
            return Err(error);
        }
        self.size += lines.len() as u64;
        Ok(())
    }

    /// Cuts off what failed, and was not answered for.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.size)?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Where it failed half-way before, or someone took the file away, there is nothing to be renamed: the old ones stay as they are then.
    fn rotate(&mut self, files: usize) -> io::Result<()> {
        let old = |number: usize| beside(&self.path, &number.to_string());
        if holds_lines(&self.path)? {
            for number in (1..files).rev() {
                renamed(&old(number), &old(number + 1))?;
            }
            renamed(&self.path, &old(1))?;
        }
        self.file = opened(&self.path)?;
        self.size = 0;
        Ok(())
    }
}

fn holds_lines(path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        metadata => Ok(metadata?.len() > 0),
    }
}

/// Whether it was there or not.
fn renamed(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The file, of which the directory knows for good.
fn opened(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).read(true).append(true).open(path)?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(file)
}

/// Cuts a piece of a line off the end; how long the file is then.
fn mended(file: &mut File) -> io::Result<u64> {
    let size = file.metadata()?.len();
    let mut end = size;
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        let mut chunk = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        (&*file).take(end - start).read_to_end(&mut chunk)?;
        if let Some(newline) = chunk.iter().rposition(|&byte| byte == b'\n') {
            end = start + newline as u64 + 1;
            break;
        }
        end = start;
    }
    if end < size {
        file.set_len(end)?;
        file.sync_data()?;
    }
    Ok(end)
}

#[cfg(test)]
mod tests;
