//! Whether a sink is paused: by its destination, or by an operator.

use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

/// The most characters of the id of a circuit.
const LONGEST: usize = 128;

/// What is known of it in this process. Everybody who delivers to the sink shares it.
pub(super) struct Halt(watch::Sender<State>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// The destination has asked for it, and nobody but this process knows.
    Asked(Circuit),
    Stands,
}

/// A pause that a destination asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Circuit {
    /// By which it is resumed.
    pub(crate) id: String,
    pub(crate) reason: String,
    /// When the destination thinks that it may be.
    pub(crate) advice: Option<Duration>,
}

impl Circuit {
    /// Under the id the destination gave, or one of ours where that cannot be used.
    pub(crate) fn new(id: Option<String>, reason: String, advice: Option<Duration>) -> Self {
        Self {
            id: id.filter(|id| is_usable(id)).unwrap_or_else(made_up),
            reason,
            advice,
        }
    }
}

/// One that is as good as any.
pub(crate) fn made_up() -> String {
    Uuid::now_v7().simple().to_string()
}

fn is_usable(id: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    (1..=LONGEST).contains(&id.len()) && id.chars().all(is_known)
}

impl Halt {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(State::Runs))
    }

    pub(super) fn runs(&self) -> bool {
        *self.0.borrow() == State::Runs
    }

    /// From now on, until someone who knows says that it runs again.
    pub(super) fn ask(&self, circuit: Circuit) {
        self.0.send_if_modified(|state| {
            let is_new = *state == State::Runs;
            if is_new {
                *state = State::Asked(circuit);
            }
            is_new
        });
    }

    /// What was asked for and is not written down yet.
    pub(super) fn asked(&self) -> Option<Circuit> {
        match &*self.0.borrow() {
            State::Asked(circuit) => Some(circuit.clone()),
            State::Runs | State::Stands => None,
        }
    }

    /// What is written down of it.
    pub(super) fn is(&self, paused: bool) {
        let state = match paused {
            true => State::Stands,
            false => State::Runs,
        };
        self.0
            .send_if_modified(|before| std::mem::replace(before, state.clone()) != state);
    }

    pub(super) fn watch(&self) -> Watching {
        Watching(self.0.subscribe())
    }
}

/// Tells of changes.
pub(super) struct Watching(watch::Receiver<State>);

impl Watching {
    /// Resolves when it changed since the last call. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until it runs. Cancel safe.
    pub(super) async fn runs(&mut self) {
        if self
            .0
            .wait_for(|state| *state == State::Runs)
            .await
            .is_err()
        {
            std::future::pending().await
        }
    }

    /// Waits until something is asked for. Cancel safe.
    pub(super) async fn asked(&mut self) {
        let is_asked = |state: &State| matches!(state, State::Asked(_));
        if self.0.wait_for(is_asked).await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circuit_has_the_id_it_was_given_or_one_of_ours() {
        let id = |given: &str| Circuit::new(Some(given.into()), String::new(), None).id;
        let long = "x".repeat(128);
        for usable in ["a", "A-b_9", &long] {
            assert_eq!(id(usable), usable);
        }
        for unusable in ["", "a b", "a/b", "ü", &format!("{long}x")] {
            assert!(id(unusable) != unusable && is_usable(&id(unusable)));
        }
    }

    #[test]
    fn what_is_asked_for_stays_until_it_is_written_down() {
        let halt = Halt::new();
        let circuit = Circuit::new(Some("a".into()), "gone".into(), None);
        halt.ask(circuit.clone());
        halt.ask(Circuit::new(Some("b".into()), "gone".into(), None));
        assert_eq!(halt.asked(), Some(circuit));
        assert!(!halt.runs());
        halt.is(true);
        assert!(halt.asked().is_none() && !halt.runs());
        halt.is(false);
        assert!(halt.runs());
    }
}
