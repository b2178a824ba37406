//! Whose batch is with the sink, whether it comes from the queue or from who keeps an order of his own: what may leave is found
//! out, counted and sent in one turn, so that a limit is that of all together.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{MutexGuard, PoisonError},
};

use tokio::time::Instant;

use super::{
    Shared,
    pacing::{Leave, Pacing},
};
use crate::sinks::{
    Message, Verdict,
    attempt::{Fault, attempt},
    halt::Circuit,
};

impl Shared {
    /// Gives these to the sink, once no other batch is with it, if they may leave then; unless it is cut, or has been since there
    /// were so many `cuts`.
    pub(super) async fn deliver(
        &self,
        messages: &[Message],
        cuts: u64,
    ) -> Result<Vec<Verdict>, Fault> {
        let mut cut = self.cuts.subscribe();
        let delivered = async {
            let _turn = self.turn.lock().await;
            // Whose turn it was may have taken long.
            if !messages.iter().all(|message| message.term.holds()) {
                return Err(Fault::Cut);
            }
            self.leave(messages)?;
            let delivered = attempt(&*self.sink, messages, self.timeout).await;
            match &delivered {
                Ok(verdicts) => self.taken(messages, verdicts),
                Err(Fault::Unreachable(_)) => self.pacing().is_away(messages),
                Err(_) => {}
            }
            delivered
        };
        tokio::select! {
            biased;
            _ = cut.wait_for(|&now| now != cuts) => Err(Fault::Cut),
            delivered = delivered => delivered,
        }
    }

    /// Whether these may leave now; if so, they have been counted.
    fn leave(&self, messages: &[Message]) -> Result<(), Fault> {
        let now = Instant::now();
        if !self.halt.runs() {
            return Err(Fault::Later(now));
        }
        let leave = self.pacing().leave(now, messages);
        match leave {
            Leave::Now => Ok(()),
            Leave::Later(then) => Err(Fault::Later(then)),
            Leave::Never(reason) => Err(Fault::Never(reason)),
            Leave::Confirmed(reason) => {
                self.pause(Circuit::new(None, reason, None));
                Err(Fault::Later(now))
            }
        }
    }

    /// Before anyone else has his turn, so that nothing follows a canary that an operator is to see.
    fn taken(&self, messages: &[Message], verdicts: &[Verdict]) {
        for (message, verdict) in messages.iter().zip(verdicts) {
            let reason = match verdict {
                Verdict::Accepted | Verdict::Duplicate => self.pacing().taken(message),
                _ => None,
            };
            if let Some(reason) = reason {
                self.pause(Circuit::new(None, reason, None));
            }
        }
    }

    /// How many of these go together, at least one.
    pub(super) fn fitting(&self, messages: &[Message]) -> usize {
        let most = self.pacing().together(messages);
        let at_once = || self.sink.at_once(&messages[..most]);
        // One that panics is asked for all of them, and is halved if it does not take them.
        let count = catch_unwind(AssertUnwindSafe(at_once)).unwrap_or(most);
        count.clamp(1, most)
    }

    /// Nothing that panics is called under the lock, so a poisoned one is as good as any.
    pub(super) fn pacing(&self) -> MutexGuard<'_, Pacing> {
        self.pacing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
