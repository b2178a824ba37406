//! Any sink, as those see it who hand over messages.

use std::time::Duration;

use tokio::sync::watch;

use super::{
    AMQP, Answer, Batched, Cap, Kind, Message, Policy,
    amqp::{self, Amqp},
    batched::Open,
};

/// A handle to a sink. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Outlet {
    Amqp(Amqp),
    Batched(Batched),
}

impl Outlet {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Amqp(_) => AMQP,
            Self::Batched(batched) => batched.name(),
        }
    }

    /// Whether it takes messages at the moment.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::Amqp(amqp) => amqp.is_up(),
            Self::Batched(batched) => batched.is_up(),
        }
    }

    /// Whether it takes messages that are not new, too.
    pub(crate) fn takes_backlog(&self) -> bool {
        match self {
            Self::Amqp(amqp) => amqp.is_up(),
            Self::Batched(batched) => batched.takes_backlog(),
        }
    }

    /// Waits until it takes messages. Cancel safe.
    pub(crate) async fn up(&self) {
        match self {
            Self::Amqp(amqp) => amqp.up().await,
            Self::Batched(batched) => batched.up().await,
        }
    }

    /// Whether this replica can do anything for it, so that it keeps its lanes from no other. Of a sink of the application's
    /// own it is not known whether it fares better elsewhere, and lanes that change hands hold up all sinks.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Self::Amqp(amqp) => amqp.is_up(),
            Self::Batched(_) => true,
        }
    }

    /// Tells each time it takes all messages again.
    pub(crate) fn returns(&self) -> Returns {
        match self {
            Self::Amqp(amqp) => Returns::Amqp(amqp.returns()),
            Self::Batched(batched) => Returns::Batched(batched.open()),
        }
    }

    pub(crate) fn cap(&self) -> &Cap {
        match self {
            Self::Amqp(amqp) => amqp.cap(),
            Self::Batched(batched) => batched.cap(),
        }
    }

    /// What becomes of what it does not take.
    pub(crate) fn policy(&self) -> Policy {
        match self {
            Self::Amqp(_) => Policy::flat(),
            Self::Batched(batched) => batched.terms().policy.clone(),
        }
    }

    /// How it is registered; none: the broker, which others tell of while they live.
    pub(crate) fn kind(&self) -> Option<Kind> {
        match self {
            Self::Amqp(_) => None,
            Self::Batched(batched) => Some(batched.terms().kind),
        }
    }

    /// Whether it is not given what was made then, in milliseconds since the epoch: before it began.
    pub(crate) fn skips(&self, made: i64) -> bool {
        match self {
            Self::Amqp(_) => false,
            Self::Batched(batched) => batched.terms().from.is_some_and(|from| made < from),
        }
    }

    /// How long one attempt may take, as far as that is bounded.
    pub(crate) fn timeout(&self) -> Duration {
        match self {
            Self::Amqp(_) => Duration::ZERO,
            Self::Batched(batched) => batched.timeout(),
        }
    }

    /// Delivers one message, and answers once its fate is known. Dropped, the message may still leave.
    pub(crate) async fn deliver(&self, message: Message) -> Answer {
        match self {
            Self::Amqp(amqp) => amqp.deliver(message).await,
            Self::Batched(batched) => batched.deliver(message).await,
        }
    }

    /// Ends what is under way, so that nothing given to it can leave any more.
    pub(crate) fn cut(&self) {
        match self {
            Self::Amqp(amqp) => amqp.cut(),
            Self::Batched(batched) => batched.cut(),
        }
    }
}

/// See [`Outlet::returns`].
pub(crate) enum Returns {
    Amqp(amqp::Returns),
    Batched(watch::Receiver<Open>),
}

impl Returns {
    /// Resolves when the sink came up since the last call. Cancel safe.
    pub(crate) async fn next(&mut self) {
        let open = match self {
            Self::Amqp(returns) => return returns.next().await,
            Self::Batched(open) => open,
        };
        while open.changed().await.is_ok() {
            if *open.borrow_and_update() == Open::All {
                return;
            }
        }
        std::future::pending().await
    }
}
