//! One call of a sink of the application's own, whatever it does.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::time::Instant;

use super::{Erased, Message, Unreachable, Verdict};

/// Why a batch, or the part of it that was tried, was not delivered.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The sink, or one of the messages.
    Failed(String),
    /// The destination will take none of them; perhaps for the company of one.
    Rejected(String),
    /// Nobody, the destination was not there.
    Unreachable(String),
    /// Nobody: it was told to end.
    Cut,
    /// Nobody: it may not leave before then.
    Later(Instant),
    /// Nobody: it may never leave, for this reason.
    Never(String),
}

/// Gives these messages to the sink, and what it answers for each. Dropped, they count as not delivered.
pub(super) async fn attempt(
    sink: &dyn Erased,
    messages: &[Message],
    timeout: Duration,
) -> Result<Vec<Verdict>, Fault> {
    let delivery = AssertUnwindSafe(async { sink.deliver(messages).await }).catch_unwind();
    let verdicts = match tokio::time::timeout(timeout, delivery).await {
        Ok(Ok(Ok(verdicts))) => verdicts,
        Ok(Ok(Err(error))) if error.is::<Unreachable>() => {
            return Err(Fault::Unreachable(error.to_string()));
        }
        Ok(Ok(Err(error))) => return Err(Fault::Failed(error.to_string())),
        Ok(Err(_)) => return Err(Fault::Failed("it panicked".into())),
        Err(_) => return Err(Fault::Failed(format!("no answer within {timeout:?}"))),
    };
    if verdicts.len() != messages.len() {
        let (answers, messages) = (verdicts.len(), messages.len());
        let wrong = format!("it gave {answers} answers for {messages} messages");
        return Err(Fault::Failed(wrong));
    }
    whole(verdicts)
}

/// The verdicts, unless all of several messages were rejected: then why the first was. That all are to be tried again is said
/// of the destination: to try them in parts would only ask it more often.
fn whole(verdicts: Vec<Verdict>) -> Result<Vec<Verdict>, Fault> {
    let is_rejected = |verdict: &Verdict| matches!(verdict, Verdict::Rejected(_));
    match verdicts.as_slice() {
        [Verdict::Rejected(reason), others @ ..]
            if !others.is_empty() && others.iter().all(is_rejected) =>
        {
            Err(Fault::Rejected(reason.clone()))
        }
        _ => Ok(verdicts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_is_rejected_as_a_whole_the_first_reason_is_kept() {
        let no = |reason: &str| Verdict::Rejected(reason.into());
        let fault = whole(vec![no("too large"), no("odd")]);
        assert!(matches!(fault, Err(Fault::Rejected(reason)) if reason == "too large"));
        for answered in [vec![no("odd")], vec![no("odd"), Verdict::Accepted]] {
            assert!(matches!(whole(answered.clone()), Ok(verdicts) if verdicts == answered));
        }
    }
}
