//! How the cable moves bytes.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::{Direction, State};

const CHUNK: usize = 16 * 1024;
/// In chunks; beyond it the sender feels that nobody reads.
const AHEAD: usize = 256;

/// One connection, until an end closes it or the cable is cut.
pub(super) async fn carry(
    mut client: TcpStream,
    target: u16,
    cuts: usize,
    state: watch::Receiver<State>,
) {
    let mut cut = state.clone();

    let server = tokio::select! {
        biased;
        _ = cut.wait_for(|state| state.cuts != cuts) => None,
        server = connect(target, state.clone()) => server.ok(),
    };
    let Some(mut server) = server else {
        return reset(&client);
    };
    let closed = tokio::select! {
        biased;
        _ = cut.wait_for(|state| state.cuts != cuts) => false,
        ended = exchange(&mut client, &mut server, state) => ended.is_ok(),
    };
    if !closed {
        reset(&client);
        reset(&server);
    }
}

async fn connect(target: u16, mut state: watch::Receiver<State>) -> io::Result<TcpStream> {
    // In the dark a client has an open connection that says nothing.
    light(&mut state).await?;
    TcpStream::connect(("127.0.0.1", target)).await
}

/// Both directions, until both have ended or one failed.
async fn exchange(
    client: &mut TcpStream,
    server: &mut TcpStream,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();

    let ended = tokio::try_join!(
        flow(from_client, to_server, Direction::ToServer, state.clone()),
        flow(from_server, to_client, Direction::ToClient, state.clone()),
    );
    // Nor does the news of an end pass in the dark.
    light(&mut state).await?;
    ended.map(drop)
}

/// One direction, until its sender closes it. Reading runs ahead of writing, so that a delay costs
/// no throughput.
async fn flow(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    let (queue, mut queued) = mpsc::channel(AHEAD);
    let seen = state.clone();

    let read = async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            if from.read_buf(&mut chunk).await? == 0 {
                return Ok(());
            }
            let due = Instant::now() + seen.borrow().delay;
            if queue.send((due, chunk)).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, chunk)) = queued.recv().await {
            sleep_until(due).await;
            pass(&to, &chunk, direction, &mut state).await?;
        }
        until(&mut state, |state| state.lets_through(direction)).await?;
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}

async fn pass(
    to: &WriteHalf<'_>,
    mut rest: &[u8],
    direction: Direction,
    state: &mut watch::Receiver<State>,
) -> io::Result<()> {
    while !rest.is_empty() {
        to.writable().await?;
        until(state, |state| state.lets_through(direction)).await?;
        let written = {
            // Nobody changes the state while it is borrowed: this is why nothing passes once `cut`
            // or `blackhole` has returned.
            let state = state.borrow();
            if state.lets_through(direction) {
                to.try_write(rest)
            } else {
                continue;
            }
        };
        match written {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn light(state: &mut watch::Receiver<State>) -> io::Result<()> {
    until(state, |state| !state.silent).await
}

/// Fails when the cable is dropped.
async fn until(
    state: &mut watch::Receiver<State>,
    condition: impl FnMut(&State) -> bool,
) -> io::Result<()> {
    let dropped = |_| io::ErrorKind::BrokenPipe.into();
    state.wait_for(condition).await.map(drop).map_err(dropped)
}

/// Makes the coming close abrupt, as when a machine is gone.
pub(super) fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
