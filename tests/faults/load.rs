//! What the tests of the broker put on it, and what they measure meanwhile.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bson::{Document, doc};
use toa_outbox::Outbox;
use tokio::{sync::OnceCell, task::JoinHandle};

use crate::{
    rig::{Rig, soak},
    support::{Cable, Rabbit},
};

/// The first in a normal run, the second in a long one.
pub fn dose<T>(normal: T, long: T) -> T {
    if soak() { long } else { normal }
}

/// Held by tests that measure time or memory, so that they do not measure each other.
pub async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    ALONE.lock().await
}

/// Whether this is a process that runs only this test, whose memory is therefore its own. If not, starts
/// one and sees it through.
pub fn is_alone(test: &str) -> bool {
    const ALONE: &str = "TEST_IS_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut run = std::process::Command::new(std::env::current_exe().unwrap());
    run.args([test, "--exact", "--nocapture"]).env(ALONE, "1");
    assert!(run.status().unwrap().success());
    false
}

/// A broker that tests may break, one after the other: whoever has it is the only one.
pub async fn breakable() -> tokio::sync::MutexGuard<'static, Rabbit> {
    static BREAKABLE: OnceCell<tokio::sync::Mutex<Rabbit>> = OnceCell::const_new();
    let start = || async { tokio::sync::Mutex::new(Rabbit::start().await) };
    BREAKABLE.get_or_init(start).await.lock().await
}

/// So many rows as a writer that died left them, due at once.
pub async fn seed(rig: &Rig, count: usize, state: impl Fn(usize) -> Document) {
    rig.seed(count as i64, |row, index| {
        let event = row.get_document_mut("event").unwrap();
        event.insert("state", state(index as usize));
    })
    .await;
}

/// Where a cable begins, as a URI.
pub fn through(cable: &Cable) -> String {
    format!("amqp://guest:guest@127.0.0.1:{}/%2f", cable.port())
}

/// A state of about this many bytes.
pub fn bulky(bytes: usize) -> Document {
    doc! { "pad": "x".repeat(bytes) }
}

/// Commits so many entities from several tasks; how long each commit took.
pub async fn commit(
    outbox: &Outbox,
    count: usize,
    state: impl Fn(usize) -> Document,
) -> Vec<Duration> {
    use futures::{StreamExt, stream};
    stream::iter((0..count).map(|number| (number, state(number))))
        .map(|(_, state)| async move {
            let begun = Instant::now();
            outbox.create(state, doc! {}).await.unwrap();
            begun.elapsed()
        })
        .buffer_unordered(8)
        .collect()
        .await
}

/// The median.
pub fn p50(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A task that beats on the runtime of the test, and the longest it was ever kept from it; beside it a
/// thread that does the same, and is only kept by the machine.
pub struct Pulse {
    runtime: Arc<AtomicU64>,
    machine: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

const BEAT: Duration = Duration::from_millis(10);

impl Pulse {
    pub fn start() -> Self {
        let (runtime, machine) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        // How late a beat comes is what is measured: time is the subject of both.
        let seen = Arc::downgrade(&machine);
        std::thread::spawn(move || {
            while let Some(seen) = seen.upgrade() {
                let begun = Instant::now();
                // How late a timer is: time is the subject, here and below.
                std::thread::sleep(BEAT);
                seen.fetch_max(late(begun), Relaxed);
            }
        });
        let seen = runtime.clone();
        let task = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                tokio::time::sleep(BEAT).await;
                seen.fetch_max(late(begun), Relaxed);
            }
        });
        Self {
            runtime,
            machine,
            task,
        }
    }

    /// Of the runtime, and of the machine alone.
    pub fn longest(&self) -> (Duration, Duration) {
        let millis = |pause: &AtomicU64| Duration::from_millis(pause.load(Relaxed));
        (millis(&self.runtime), millis(&self.machine))
    }
}

fn late(begun: Instant) -> u64 {
    begun.elapsed().saturating_sub(BEAT).as_millis() as u64
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.task.abort();
    }
}
