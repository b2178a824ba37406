//! Messages that may be returned go in rounds: publish many, wait for every confirm, then judge.
//!
//! The client attaches the oldest waiting return to whichever confirm completes next, so neither the
//! confirm that carries a return nor one that carries none says anything about its own message. But the
//! broker sends a return before the confirm of the same message, and each confirm takes one waiting
//! return with it. So when no confirm of a channel is outstanding, every return is attached to some
//! confirm of it, and can be matched by its own message id and exchange. Where a round ends before all of
//! its confirms have come, returns may be lost with the rest, and an ack says nothing any more.

use std::{collections::HashSet, sync::Arc};

use futures::future::join_all;
use lapin::message::BasicReturnMessage;
use tokio::sync::{mpsc, oneshot};

use super::{
    envelope::Envelope,
    pipe::Pipe,
    session::{Outcome, Session},
};

/// The most messages of a round: enough to keep the broker busy, few enough that the first does not
/// wait long for the last.
const ROUND: usize = 256;

/// A message that waits for a round.
pub(super) struct Entry {
    pub(super) envelope: Arc<Envelope>,
    pub(super) answer: oneshot::Sender<Outcome>,
}

pub(super) type Inbox = tokio::sync::Mutex<mpsc::UnboundedReceiver<Entry>>;

/// Runs rounds until the session ends.
pub(super) async fn run(session: &Session, pipe: &Pipe, inbox: &Inbox) {
    let mut inbox = inbox.lock().await;
    let mut round = Vec::with_capacity(ROUND);
    while inbox.recv_many(&mut round, ROUND).await > 0 {
        once(session, pipe, &mut round).await;
    }
}

async fn once(session: &Session, pipe: &Pipe, round: &mut Vec<Entry>) {
    let publications = round
        .iter()
        .map(|entry| session.publish(pipe, &entry.envelope));
    let outcomes = join_all(publications).await;
    let returned: HashSet<_> = outcomes.iter().filter_map(returned).collect();
    let verdicts: Vec<bool> = round
        .iter()
        .map(|entry| returned.contains(&entry.envelope.identity()))
        .collect();
    drop(returned);
    let is_whole = outcomes.iter().all(leaves_nothing_open);
    for ((entry, outcome), is_returned) in round.drain(..).zip(outcomes).zip(verdicts) {
        // Nobody waits any more where the answer is refused.
        let _ = entry.answer.send(judged(outcome, is_returned, is_whole));
    }
}

/// Its confirm has come, or there will be none because it was never sent.
fn leaves_nothing_open(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Acked(_) | Outcome::Nacked(_) | Outcome::Late
    )
}

fn judged(outcome: Outcome, is_returned: bool, is_whole: bool) -> Outcome {
    match outcome {
        Outcome::Acked(_) if is_returned => Outcome::Returned,
        Outcome::Acked(_) if !is_whole => Outcome::Dead,
        other => other,
    }
}

/// The identity of the message a confirm brought back, which need not be its own.
fn returned(outcome: &Outcome) -> Option<(&str, &str)> {
    match outcome {
        Outcome::Acked(Some(message)) | Outcome::Nacked(Some(message)) => identity(message),
        _ => None,
    }
}

fn identity(message: &BasicReturnMessage) -> Option<(&str, &str)> {
    let id = message.delivery.properties.message_id().as_ref()?;
    Some((id.as_str(), message.delivery.exchange.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_counts_only_where_every_confirm_of_the_round_has_come() {
        let acked = || Outcome::Acked(None);
        assert!(matches!(judged(acked(), false, true), Outcome::Acked(_)));
        assert!(matches!(judged(acked(), true, true), Outcome::Returned));
        assert!(matches!(judged(acked(), true, false), Outcome::Returned));
        assert!(matches!(judged(acked(), false, false), Outcome::Dead));
        let nothing_open = [acked(), Outcome::Nacked(None), Outcome::Late];
        assert!(nothing_open.iter().all(leaves_nothing_open));
        let open = [Outcome::Silent, Outcome::Dead, Outcome::Unsent];
        assert!(!open.iter().any(leaves_nothing_open));
    }
}
