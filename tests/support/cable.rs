//! A TCP proxy: the cable between a client and a server.

mod wire;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::watch;

use wire::{carry, reset};

/// What the cable does to bytes.
#[derive(Clone, Copy, Default)]
struct State {
    /// New connections are closed at once.
    severed: bool,
    /// How often it was cut; a connection ends when this is not what it was at its beginning.
    cuts: usize,
    silent: bool,
    hold_back: bool,
    delay: Duration,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToServer,
    ToClient,
}

impl State {
    fn lets_through(&self, direction: Direction) -> bool {
        let held = self.hold_back && direction == Direction::ToClient;
        !self.severed && !self.silent && !held
    }
}

/// Carries connections from a port of its own to a server's, until told otherwise.
///
/// It lives on its own thread, so a busy or paused test runtime does not disturb it. Dropping it
/// closes everything.
pub struct Cable {
    port: u16,
    state: Option<watch::Sender<State>>,
    open: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Cable {
    /// A cable to a port of 127.0.0.1, where a server need not be yet.
    pub async fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the cable");
        listener.set_nonblocking(true).expect("not blocking");
        let port = listener.local_addr().expect("its address").port();

        let (state, watched) = watch::channel(State::default());
        let open = Arc::new(AtomicUsize::new(0));
        let counted = open.clone();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(accept(listener, target, watched, counted));
        });

        Self {
            port,
            state: Some(state),
            open,
            thread: Some(thread),
        }
    }

    /// Where clients connect, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections there are.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Resets all connections, and new ones as soon as they come. Nothing passes once this has
    /// returned.
    pub fn cut(&self) {
        self.set(|state| {
            state.severed = true;
            state.cuts += 1;
        });
        // They are on another thread: wait until both ends have been told.
        while self.open() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes it an ordinary cable again, after anything done to it. What was held back arrives.
    pub fn mend(&self) {
        self.set(|state| {
            *state = State {
                cuts: state.cuts,
                ..State::default()
            }
        });
    }

    /// Lets nothing through while connections, new ones too, stay open. Nothing passes once this
    /// has returned.
    pub fn blackhole(&self) {
        self.set(|state| state.silent = true);
    }

    /// Makes every byte arrive so much later, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.set(|state| state.delay = delay);
    }

    /// Lets requests through and keeps the answers: what a client sends has an effect it does not
    /// learn of.
    pub fn swallow_back(&self) {
        self.set(|state| state.hold_back = true);
    }

    /// Ends [`swallow_back`](Self::swallow_back); the answers arrive.
    pub fn release(&self) {
        self.set(|state| state.hold_back = false);
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        self.state
            .as_ref()
            .expect("until dropped")
            .send_modify(change);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.state = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Until the cable is dropped.
async fn accept(
    listener: TcpListener,
    target: u16,
    mut state: watch::Receiver<State>,
    open: Arc<AtomicUsize>,
) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("the cable's port");

    loop {
        let client = tokio::select! {
            accepted = listener.accept() => accepted,
            dropped = dropped(&mut state) => return dropped,
        };
        let Ok((client, _)) = client else { continue };
        let born = *state.borrow();
        if born.severed {
            reset(&client);
            continue;
        }
        open.fetch_add(1, Ordering::SeqCst);
        let connection = carry(client, target, born.cuts, state.clone());
        let open = open.clone();
        tokio::spawn(async move {
            connection.await;
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

async fn dropped(state: &mut watch::Receiver<State>) {
    while state.changed().await.is_ok() {}
}
