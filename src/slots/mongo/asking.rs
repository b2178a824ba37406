//! Requests on their way, and what becomes of them.

use bson::Document;
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream::FuturesUnordered,
};
use mongodb::Collection;

use super::{
    says::Says,
    spelling::{self, NoReply},
};
use crate::{
    clock::Moment,
    slots::protocol::{Outcome, Request, Timing},
};

pub(super) struct Asking {
    slots: Collection<Document>,
    group: String,
    timing: Timing,
    says: Says,
    /// Those that the protocol waits for no longer end soon after.
    flights: FuturesUnordered<BoxFuture<'static, (u64, Result<Outcome, NoReply>)>>,
    /// When the last reply came that counts.
    answered: Moment,
    /// Before this, nothing is sent.
    silent: Moment,
}

impl Asking {
    pub(super) fn new(
        slots: Collection<Document>,
        group: &str,
        timing: Timing,
        says: Says,
    ) -> Self {
        let now = Moment::now();
        Self {
            slots,
            group: group.to_owned(),
            timing,
            says,
            flights: FuturesUnordered::new(),
            answered: now,
            silent: now,
        }
    }

    /// From here on, silence counts.
    pub(super) fn begin(&mut self) {
        self.answered = Moment::now();
    }

    pub(super) fn send(&mut self, number: u64, request: Request) {
        if Moment::now() < self.silent {
            let lost = (number, Err(NoReply::Failed("silent".into())));
            return self.flights.push(ready(lost).boxed());
        }
        let timeout = self.timing.timeout;
        let command = spelling::command(self.slots.name(), &self.group, &request, timeout);
        let (slots, says) = (self.slots.clone(), self.says.clone());
        let asked = async move {
            let database = slots.client().database(&slots.namespace().db);
            let answer = tokio::time::timeout(timeout, database.run_command(command)).await;
            let outcome = match answer {
                Ok(Ok(reply)) => spelling::outcome(&request, &reply),
                Ok(Err(error)) => Err(NoReply::Failed(error.to_string())),
                Err(_) => Err(NoReply::Failed(format!("no answer within {timeout:?}"))),
            };
            says.asked(&request, &outcome);
            (number, outcome)
        };
        self.flights.push(asked.boxed());
    }

    /// What came of a request; none while none is on its way. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<(u64, Outcome)> {
        let (number, answer) = self.flights.next().await?;
        Some((number, self.heard(answer)))
    }

    /// Whoever writes and gets no acknowledgement for it is alive in the eyes of the others and owns nothing: nobody
    /// would have its lanes. After a lease of that it falls silent, for long enough to be evicted.
    fn heard(&mut self, answer: Result<Outcome, NoReply>) -> Outcome {
        let now = Moment::now();
        match answer {
            Ok(outcome) => {
                self.answered = now;
                outcome
            }
            Err(no_reply) => {
                let applied = matches!(no_reply, NoReply::Unacknowledged(_));
                if applied && now.since(self.answered) > self.timing.lease {
                    self.silent = now + self.timing.lease + self.timing.beat;
                    self.says.falls_silent();
                }
                Outcome::Failed
            }
        }
    }
}
