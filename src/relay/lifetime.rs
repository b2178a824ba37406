//! From the start of the loops to the end of the last one, in good order.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{ledger::Left, line::Lines};
use crate::clock::at;

/// How long leaving may take, at the least: when the grace is used up.
const FAREWELL: Duration = Duration::from_secs(1);

pub(crate) struct Lifetime {
    /// The loops that send and mark; they end by themselves after `stop`, once they have drained.
    pub(crate) work: JoinSet<()>,
    /// More of those, while it runs.
    pub(crate) more: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>,
    /// What keeps the seat among the replicas; it ends after `leave`.
    pub(crate) place: JoinSet<()>,
    pub(crate) stop: CancellationToken,
    /// Cancelled when a loop died.
    pub(crate) dead: CancellationToken,
    /// Cancelled when the work has ended.
    pub(crate) over: CancellationToken,
    pub(crate) leave: CancellationToken,
    pub(crate) lines: Lines,
    /// How long after `stop` the work may go on.
    pub(crate) grace: Duration,
}

impl Lifetime {
    /// Runs until everything has ended, and says what was left.
    pub(crate) async fn run(mut self) -> Left {
        let mut until = None;
        let left = match self.worked(&mut until).await {
            true => self.lines.left(),
            false => self.cut_short().await,
        };
        self.over.cancel();
        self.leave(until).await;
        tracing::info!(
            in_flight = left.in_flight,
            unmarked = left.unmarked,
            unsent = left.unsent,
            "stopped; what is left stays in the outbox"
        );
        left
    }

    /// Waits for the end of the work; whether it came before its time was up, which begins when it is told to stop.
    async fn worked(&mut self, until: &mut Option<Instant>) -> bool {
        loop {
            tokio::select! {
                // First, or the end of all before them could be taken for the end.
                biased;
                Some(task) = self.more.recv() => drop(self.work.spawn(task)),
                ended = self.work.join_next() => match ended {
                    Some(result) => died(result, [&self.stop, &self.dead]),
                    None => return true,
                },
                // Without the other the group would wait for this member for ever.
                Some(result) = self.place.join_next() => died(result, [&self.stop, &self.dead]),
                () = self.stop.cancelled(), if until.is_none() => {
                    *until = Some(Instant::now() + self.grace);
                }
                () = at(*until) => return false,
            }
        }
    }

    async fn cut_short(&mut self) -> Left {
        // Counted before the loops are ended: they forget what is in flight.
        let left = self.lines.left();
        // What is in flight must not leave after everyone was told that it may not have.
        self.lines.cut(|ledger| ledger.left().in_flight);
        self.work.shutdown().await;
        left
    }

    /// Only now, when nothing is sent or marked here any more, may others have the lanes.
    async fn leave(&mut self, until: Option<Instant>) {
        self.leave.cancel();
        let least = Instant::now() + FAREWELL;
        let until = until.map_or(least, |until| until.max(least));
        let left = timeout_at(until, async {
            while let Some(result) = self.place.join_next().await {
                died(result, [&self.stop, &self.dead]);
            }
        });
        if left.await.is_err() {
            tracing::warn!(
                "could not leave the group in time; its lanes are taken over when the lease has run out"
            );
            self.place.shutdown().await;
        }
    }
}

/// A task that died has all others stop, in good order: nothing is done by halves.
fn died(ended: Result<(), JoinError>, all: [&CancellationToken; 2]) {
    if let Err(error) = ended {
        tracing::error!(
            %error,
            "a loop of the relay died: nothing is pumped or published here any more, rows are left to other \
             replicas; restart this one"
        );
        all.into_iter().for_each(CancellationToken::cancel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loop_that_dies_ends_the_others() {
        let (stop, dead) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let other = stop.clone();
        tasks.spawn(async move { other.cancelled().await });
        tasks.spawn(async { panic!("a defect") });
        let all = async {
            while let Some(result) = tasks.join_next().await {
                died(result, [&stop, &dead]);
            }
        };
        tokio::time::timeout(Duration::from_secs(10), all)
            .await
            .unwrap();
        assert!(stop.is_cancelled() && dead.is_cancelled());
    }
}
