//! The life of one connection: what is published on it, and what becomes of that.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt;
use lapin::{Confirmation, ErrorKind, Event, message::BasicReturnMessage, types::ShortString};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Tuning,
    beacon::Beacon,
    envelope::Envelope,
    exchanges::Exchanges,
    link::Link,
    patience::Patience,
    pipe::{Open, Pipe},
    quarantine::{Quarantine, Suspect, Treatment, named_exchange},
    rounds::{self, Entry},
};
use crate::sinks::{Answer, Message, Pace};

/// How often a message is put on a channel again because others closed the last one under it.
const STRIKES: usize = 8;

/// Why a message counts as not sent whose confirm did not come in time.
const SILENCE: &str = "the confirm stayed away";

/// How long a connection that is being closed in good order may take to say so.
const FAREWELL: Duration = Duration::from_secs(1);

pub(super) struct Session {
    link: Link,
    tuning: Tuning,
    /// Cancelled when the connection is over, with everything on it.
    dead: CancellationToken,
    main: Pipe,
    mandatory: Pipe,
    apart: Pipe,
    exchanges: Exchanges,
    quarantine: Arc<Mutex<Quarantine>>,
    /// Held while a suspect is tried.
    probing: tokio::sync::Mutex<()>,
    rounds: mpsc::UnboundedSender<Entry>,
    round: rounds::Inbox,
    patience: Patience,
    beacon: Arc<Beacon>,
}

/// What became of one publication.
pub(super) enum Outcome {
    Acked(Option<BasicReturnMessage>),
    Nacked(Option<BasicReturnMessage>),
    /// Acked, and its own message came back.
    Returned,
    /// The broker closed the channel, and said why.
    Closed(String),
    /// The channel was not there any more, or it became suspect while it waited for one; it was not sent.
    Unsent,
    /// Nothing more will be heard on this connection.
    Dead,
    /// No channel could be opened for it in time.
    Unopened,
    /// The confirm stayed away for too long.
    Silent,
    /// It may not leave from here any more; it was not sent.
    Late,
}

impl Session {
    pub(super) fn new(
        link: Link,
        tuning: Tuning,
        quarantine: Arc<Mutex<Quarantine>>,
        beacon: Arc<Beacon>,
    ) -> Self {
        let (rounds, round) = mpsc::unbounded_channel();
        Self {
            link,
            tuning,
            dead: CancellationToken::new(),
            main: Pipe::default(),
            mandatory: Pipe::default(),
            apart: Pipe::default(),
            exchanges: Exchanges::default(),
            quarantine,
            probing: tokio::sync::Mutex::default(),
            rounds,
            round: tokio::sync::Mutex::new(round),
            patience: Patience::new(tuning.confirm_timeout),
            beacon,
        }
    }

    /// Lives until the connection ends, and says why it did.
    pub(super) async fn run(&self, stop: &CancellationToken) -> String {
        let mut events = std::pin::pin!(self.link.connection().events_listener());
        if self.link.connection().status().blocked() {
            self.block("since before anyone listened");
        }
        // Not every end of a connection is an event.
        let mut look = tokio::time::interval(Duration::from_secs(1));
        let mut rounds = std::pin::pin!(rounds::run(self, &self.mandatory, &self.round));
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    self.farewell().await;
                    return "asked to stop".into();
                }
                () = self.dead.cancelled() => return "cut".into(),
                () = &mut rounds => return "no more rounds".into(),
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => self.block(&reason),
                    Some(Event::ConnectionUnblocked) => self.unblock(),
                    Some(Event::Error(error)) if !self.is_open() => return error.to_string(),
                    Some(_) => {}
                    None => return "the client ended".into(),
                },
                _ = look.tick() => if !self.is_open() {
                    return "the connection is closed".into();
                },
            }
        }
    }

    fn is_open(&self) -> bool {
        self.link.connection().status().connected()
    }

    /// Ends the connection with everything on it, at once. Whatever was not confirmed counts as not
    /// sent, and can no longer leave.
    pub(super) fn cut(&self) {
        self.link.cut();
        self.dead.cancel();
    }

    async fn farewell(&self) {
        let closed = self.link.connection().close(200, "bye".into());
        // Past the time, or with an error, it is cut all the same.
        let _ = tokio::time::timeout(FAREWELL, closed).await;
    }

    fn block(&self, reason: &str) {
        tracing::warn!(
            address = self.link.address(),
            reason,
            "the broker blocks the connection; publications wait"
        );
        self.patience.flows(false);
        self.beacon.blocked(reason);
    }

    fn unblock(&self) {
        tracing::info!(
            address = self.link.address(),
            "the broker takes publications again"
        );
        self.patience.flows(true);
        self.beacon.up();
    }

    /// Publishes one message, apart if it is suspect.
    pub(super) async fn deliver(&self, message: Message) -> Answer {
        // Zero: there is no limit. None is less than the protocol's least, 4096.
        let frame = match self.link.connection().configuration().frame_max() {
            0 => usize::MAX,
            bytes => bytes.max(4096) as usize,
        };
        let envelope = match Envelope::new(message, frame) {
            Ok(envelope) => Arc::new(envelope),
            Err(reason) => return Answer::owed(Pace::Growing, reason),
        };
        if let Err(answer) = self.declared(&envelope.exchange).await {
            return answer;
        }
        for _ in 0..STRIKES {
            if self.treatment(&envelope) != Treatment::Innocent {
                return self.probe(&envelope).await;
            }
            match self.send(&envelope).await {
                Outcome::Closed(reason) => self.suspect(&envelope, &reason),
                Outcome::Unsent => {}
                outcome => return self.conclude(outcome),
            }
        }
        Answer::owed(
            Pace::NextCycle,
            "the channel was closed under it again and again",
        )
    }

    async fn send(&self, envelope: &Arc<Envelope>) -> Outcome {
        if !envelope.options.mandatory {
            return self.publish(&self.main, envelope).await;
        }
        let (answer, outcome) = oneshot::channel();
        let envelope = envelope.clone();
        if self.rounds.send(Entry { envelope, answer }).is_err() {
            return Outcome::Dead;
        }
        tokio::select! {
            outcome = outcome => outcome.unwrap_or(Outcome::Dead),
            () = self.dead.cancelled() => Outcome::Dead,
        }
    }

    fn conclude(&self, outcome: Outcome) -> Answer {
        let (pace, reason) = match outcome {
            Outcome::Acked(_) => return Answer::Taken,
            Outcome::Nacked(_) => (Pace::Growing, "a queue refused it (nack)".into()),
            Outcome::Returned => (Pace::Growing, "no queue takes it (returned)".into()),
            Outcome::Closed(reason) => (Pace::NextCycle, reason),
            Outcome::Unsent => (Pace::AtOnce, "the channel was closed".into()),
            Outcome::Dead => (
                Pace::AtOnce,
                "the connection was lost before the confirm".into(),
            ),
            Outcome::Unopened => (Pace::NextCycle, "opening a channel: no answer".into()),
            Outcome::Silent => (Pace::NextCycle, SILENCE.into()),
            // Whose it is now is for the next cycle to say.
            Outcome::Late => (
                Pace::AtOnce,
                "its lane is not this replica's any more".into(),
            ),
        };
        Answer::Owed { reason, pace }
    }

    /// Remembers who may have closed the channel `envelope` was on.
    fn suspect(&self, envelope: &Envelope, reason: &str) {
        let [exchange, alone] = &envelope.suspects;
        match named_exchange(reason) {
            Some(name) if name == envelope.exchange.as_str() => {
                self.quarantine().suspect(exchange.clone(), Instant::now());
            }
            Some(_) => {}
            None => self.quarantine().suspect(alone.clone(), Instant::now()),
        }
    }

    fn treatment(&self, envelope: &Envelope) -> Treatment {
        let quarantine = self.quarantine();
        if quarantine.is_empty() {
            return Treatment::Innocent;
        }
        quarantine.treatment(&envelope.suspects, self.tuning.interval / 2, Instant::now())
    }

    /// Tries one suspect alone.
    async fn probe(&self, envelope: &Arc<Envelope>) -> Answer {
        let _alone = self.probing.lock().await;
        let suspect = match self.treatment(envelope) {
            Treatment::Innocent => None,
            Treatment::Probe(suspect) => Some(suspect),
            Treatment::Wait(suspect, reason) => {
                return Answer::owed(pace(&suspect), reason);
            }
        };
        match (self.publish(&self.apart, envelope).await, suspect) {
            (Outcome::Closed(reason), Some(suspect)) => {
                let mut quarantine = self.quarantine();
                quarantine.convict(&suspect, reason.clone(), Instant::now());
                Answer::owed(pace(&suspect), reason)
            }
            (Outcome::Silent, Some(suspect)) => {
                let mut quarantine = self.quarantine();
                quarantine.convict(&suspect, SILENCE.into(), Instant::now());
                self.conclude(Outcome::Silent)
            }
            (outcome, suspect) => {
                if let (Outcome::Acked(_) | Outcome::Nacked(_), Some(suspect)) = (&outcome, suspect)
                {
                    self.quarantine().clear(&suspect);
                }
                // Alone on its channel, what comes back is the message itself, suspect or not any more.
                let is_returned = matches!(outcome, Outcome::Acked(Some(_)));
                self.conclude(if is_returned {
                    Outcome::Returned
                } else {
                    outcome
                })
            }
        }
    }

    /// Gives one message to the channel of a pipe and waits for what becomes of it.
    pub(super) async fn publish(&self, pipe: &Pipe, envelope: &Envelope) -> Outcome {
        let opened = tokio::select! {
            opened = pipe.open(self.link.connection(), &self.dead) => opened,
            () = self.dead.cancelled() => return Outcome::Dead,
            () = self.patience.ends() => return Outcome::Unopened,
        };
        let open = match opened {
            Ok(open) => open,
            Err(error) => return self.failed(&error),
        };
        // While it waited for the channel, another of its exchange may have been found to close it.
        let is_common = !std::ptr::eq(pipe, &self.apart);
        if is_common && self.treatment(envelope) != Treatment::Innocent {
            return Outcome::Unsent;
        }
        if !envelope.term.holds() {
            return Outcome::Late;
        }
        let handed = Instant::now();
        tokio::select! {
            outcome = confirmed(&open, envelope) => match outcome {
                Ok(Confirmation::Nack(returned)) => Outcome::Nacked(returned),
                Ok(Confirmation::Ack(returned)) => {
                    self.patience.answered();
                    self.beacon.meters.taken(handed.elapsed());
                    Outcome::Acked(returned)
                }
                // Confirms are selected on every channel of a pipe.
                Ok(Confirmation::NotRequested) => Outcome::Silent,
                Err(error) => self.failed(&error),
            },
            () = open.over.cancelled() => Outcome::Dead,
            () = self.patience.ends() => self.silence(pipe, &open, envelope),
        }
    }

    fn failed(&self, error: &lapin::Error) -> Outcome {
        match error.kind() {
            ErrorKind::ProtocolError(error)
                if matches!(error.kind(), lapin::protocol::AMQPErrorKind::Soft(_)) =>
            {
                Outcome::Closed(error.get_message().to_string())
            }
            ErrorKind::InvalidChannelState(..) if self.is_open() => Outcome::Unsent,
            _ => Outcome::Dead,
        }
    }

    /// A confirm stayed away: it may be the exchange, one of whose queues cannot answer.
    fn silence(&self, pipe: &Pipe, open: &Arc<Open>, envelope: &Envelope) -> Outcome {
        let [exchange, _] = &envelope.suspects;
        self.quarantine().suspect(exchange.clone(), Instant::now());
        if !open.over.is_cancelled() {
            self.patience.silent();
            tracing::warn!(
                address = self.link.address(),
                "a confirm stayed away too long, its channel is rebuilt"
            );
            pipe.retire(open);
        }
        Outcome::Silent
    }

    /// Declares the exchange if this connection has not yet; one attempt a cycle.
    async fn declared(&self, name: &ShortString) -> Result<(), Answer> {
        let pause = self.tuning.interval / 2;
        let declared = self.exchanges.declare(self.link.connection(), name, pause);
        tokio::select! {
            declared = declared => declared.map_err(|reason| match self.is_open() {
                true => Answer::owed(Pace::NextCycle, reason),
                false => self.conclude(Outcome::Dead),
            }),
            () = self.dead.cancelled() => Err(self.conclude(Outcome::Dead)),
            () = self.patience.ends() => {
                let reason = format!("declaring exchange {name}: no answer");
                Err(Answer::owed(Pace::NextCycle, reason))
            }
        }
    }

    fn quarantine(&self) -> MutexGuard<'_, Quarantine> {
        self.quarantine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// An exchange that is missing is looked for every cycle; a message nobody can take, ever more seldom.
fn pace(suspect: &Suspect) -> Pace {
    match suspect {
        Suspect::Exchange(_) => Pace::NextCycle,
        Suspect::Message(..) => Pace::Growing,
    }
}

async fn confirmed(open: &Open, envelope: &Envelope) -> Result<Confirmation, lapin::Error> {
    let (exchange, properties) = (envelope.exchange.clone(), envelope.properties.clone());
    open.publish(exchange, envelope.options, &envelope.body, properties)
        .await
}
