//! Hearing what is committed, within the process: from now on, as it comes, and nobody waits for who listens.
//!
//! All subscribers of an outbox share one change stream, which is open while there are any: for each such stream the
//! server reads its whole oplog. What they are told is kept for none of them.

use std::{sync::Arc, time::Duration};

use bson::Timestamp;
use mongodb::Database;
use tokio::sync::{Mutex, mpsc};

use crate::{
    error::{Error, Result},
    relay::Relay,
    report::Reports,
    routes::{RouteSet, Routes},
    row::{Event, RowId},
    store::{
        decode,
        feed::{Feed, Inserted, fence},
    },
};

/// The most that waits for a subscriber who is busy.
const MOST: usize = 1024;

/// From the end of the change stream to the next attempt to open one.
const PACE: Duration = Duration::from_secs(1);

/// What a subscriber hears; see [`Outbox::subscribe`](crate::Outbox::subscribe).
pub struct Subscription {
    heard: mpsc::Receiver<Heard>,
}

/// One thing heard.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Heard {
    /// What a label made of a row that was committed.
    Message(Live),
    /// So many messages came here while 1024 waited, and were dropped.
    Missed(u64),
    /// The change stream broke and was opened anew: nobody knows how much was committed in between.
    Gap,
}

/// A message as it is published, and the event it was made of.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Live {
    /// The id of the row; with the label it is the identity of the message.
    pub id: RowId,
    /// The name of the label.
    pub label: String,
    /// What happened.
    pub event: Arc<Event>,
    /// The payload, encoded as the component's messages are.
    pub body: Arc<[u8]>,
}

impl Subscription {
    /// What comes next, in the order of the commits; none once the outbox takes nothing more: it is being shut down, was
    /// dropped, or died. Cancel safe.
    pub async fn next(&mut self) -> Option<Heard> {
        self.heard.recv().await
    }
}

/// Where subscribers find who tells them, if somebody does already.
#[derive(Clone, Default)]
pub(super) struct Hub(Arc<Mutex<Option<mpsc::UnboundedSender<Listener>>>>);

/// The rows that are listened to.
pub(super) struct Source {
    pub(super) database: Database,
    pub(super) collection: String,
    pub(super) routes: Arc<Routes>,
}

impl Hub {
    /// Hears what is committed after this has returned, and nothing that was before it was called.
    pub(super) async fn join(
        &self,
        source: Source,
        labels: RouteSet,
        relay: &Relay,
    ) -> Result<Subscription> {
        let (to, heard) = mpsc::channel(MOST);
        let since = fence(&source.database).await?;
        let mut listener = Listener::new(labels, since, to);
        let mut inbox = self.0.lock().await;
        if let Some(inbox) = &*inbox {
            match inbox.send(listener) {
                Ok(()) => return Ok(Subscription { heard }),
                // Whoever told the others was stopped.
                Err(refused) => listener = refused.0,
            }
        }
        let feed = source.open().await?;
        let (sender, coming) = mpsc::unbounded_channel();
        *inbox = Some(sender);
        let teller = Teller {
            source,
            hub: self.clone(),
            coming,
            listeners: vec![listener],
            reports: Reports::default(),
        };
        relay.run_beside(teller.run(feed));
        Ok(Subscription { heard })
    }
}

impl Source {
    async fn open(&self) -> Result<Feed> {
        Feed::of_one(&self.database, &self.collection).await
    }
}

/// Reads the change stream and tells all who listen.
struct Teller {
    source: Source,
    hub: Hub,
    coming: mpsc::UnboundedReceiver<Listener>,
    listeners: Vec<Listener>,
    reports: Reports,
}

impl Teller {
    /// Until nobody listens any more.
    async fn run(mut self, mut feed: Feed) {
        loop {
            let fed = feed.next().await;
            if !self.has_listeners().await {
                return;
            }
            self.listeners.iter_mut().for_each(Listener::own_up);
            match fed {
                Ok(Some(inserted)) => self.tell(&inserted),
                Ok(None) => {}
                Err(error) => match self.open_anew(error).await {
                    Some(again) => feed = again,
                    None => return,
                },
            }
        }
    }

    /// Nobody can come while it is found that there is nobody, and whoever comes after that finds nobody to tell him.
    async fn has_listeners(&mut self) -> bool {
        self.take_in();
        if self.listeners.is_empty() {
            let hub = self.hub.clone();
            let mut inbox = hub.0.lock().await;
            self.take_in();
            if self.listeners.is_empty() {
                *inbox = None;
            }
        }
        !self.listeners.is_empty()
    }

    fn take_in(&mut self) {
        while let Ok(listener) = self.coming.try_recv() {
            self.listeners.push(listener);
        }
        self.listeners.retain(|listener| !listener.to.is_closed());
    }

    /// A row that cannot be read, and a label that cannot be rendered, are reported by who publishes them.
    fn tell(&mut self, inserted: &Inserted) {
        let Some(Ok(row)) = inserted.row().map(decode) else {
            return;
        };
        let routes = &self.source.routes;
        let done = routes.done(row.outstanding.as_deref());
        let event = Arc::new(row.event);
        for (index, rendering) in routes.all.iter().enumerate() {
            let wants = |listener: &&mut Listener| listener.wants(index, inserted.at());
            let mut listeners = self.listeners.iter_mut().filter(wants).peekable();
            if done.contains(index) || listeners.peek().is_none() {
                continue;
            }
            let Ok(Some(body)) = rendering.label.render(&event, routes.encoding) else {
                continue;
            };
            let live = Live {
                id: row.id.clone(),
                label: rendering.label.name().to_owned(),
                event: event.clone(),
                body: body.into(),
            };
            listeners.for_each(|listener| listener.tell(&live));
        }
    }

    /// None once nobody listens any more.
    async fn open_anew(&mut self, mut error: Error) -> Option<Feed> {
        loop {
            let collection = &self.source.collection;
            self.reports.first(&error.to_string(), |times| {
                tracing::warn!(%error, collection, times, "subscribers hear nothing until the change stream is open again");
            });
            tokio::time::sleep(PACE).await;
            let opened = self.source.open().await;
            // Those too who came while it was closed.
            if !self.has_listeners().await {
                return None;
            }
            match opened {
                Ok(feed) => {
                    self.listeners
                        .iter_mut()
                        .for_each(|listener| listener.gap = true);
                    return Some(feed);
                }
                Err(again) => error = again,
            }
        }
    }
}

/// A subscriber, as seen from who tells him.
struct Listener {
    labels: RouteSet,
    /// What was committed by then he does not hear.
    since: Timestamp,
    to: mpsc::Sender<Heard>,
    /// What he is still to be told that he was not told.
    missed: u64,
    gap: bool,
}

impl Listener {
    fn new(labels: RouteSet, since: Timestamp, to: mpsc::Sender<Heard>) -> Self {
        Self {
            labels,
            since,
            to,
            missed: 0,
            gap: false,
        }
    }

    fn wants(&self, label: usize, committed: Option<Timestamp>) -> bool {
        self.labels.contains(label) && committed.is_none_or(|at| at > self.since)
    }

    /// Never waits: what finds no place is counted, and so is what comes before that was said.
    fn tell(&mut self, live: &Live) {
        self.own_up();
        let has_place = self.missed == 0 && !self.gap;
        let told = has_place && self.to.try_send(Heard::Message(live.clone())).is_ok();
        self.missed += u64::from(!told);
    }

    /// Says what was missed, once there is a place for that.
    fn own_up(&mut self) {
        if self.missed > 0 && self.to.try_send(Heard::Missed(self.missed)).is_ok() {
            self.missed = 0;
        }
        if self.gap && self.missed == 0 {
            self.gap = self.to.try_send(Heard::Gap).is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn live(number: i32) -> Live {
        Live {
            id: RowId::Text(number.to_string()),
            label: "created".into(),
            event: Arc::new(Event::created(doc! { "_id": number })),
            body: Arc::from([]),
        }
    }

    fn listener(places: usize) -> (Listener, mpsc::Receiver<Heard>) {
        let (to, heard) = mpsc::channel(places);
        let since = Timestamp {
            time: 0,
            increment: 0,
        };
        (Listener::new(RouteSet::default(), since, to), heard)
    }

    #[test]
    fn what_was_missed_is_told_before_what_comes_after_it() {
        let (mut listener, mut heard) = listener(2);
        (0..5).for_each(|number| listener.tell(&live(number)));
        let mut next = || heard.try_recv().ok();
        assert_eq!(next(), Some(Heard::Message(live(0))));
        assert_eq!(next(), Some(Heard::Message(live(1))));
        listener.tell(&live(5));
        assert_eq!(next(), Some(Heard::Missed(3)));
        assert_eq!(next(), Some(Heard::Message(live(5))));
        assert_eq!(next(), None);
    }

    #[test]
    fn what_comes_while_there_is_no_place_to_own_up_is_missed_too() {
        let (mut listener, mut heard) = listener(1);
        (0..3).for_each(|number| listener.tell(&live(number)));
        assert_eq!(heard.try_recv(), Ok(Heard::Message(live(0))));
        // Its own admission takes the only place.
        listener.tell(&live(3));
        assert_eq!(heard.try_recv(), Ok(Heard::Missed(2)));
        listener.own_up();
        assert_eq!(heard.try_recv(), Ok(Heard::Missed(1)));
    }

    #[test]
    fn a_gap_comes_after_what_was_missed_before_it() {
        let (mut listener, mut heard) = listener(3);
        listener.missed = 7;
        listener.gap = true;
        listener.tell(&live(1));
        let told = std::iter::from_fn(|| heard.try_recv().ok()).collect::<Vec<_>>();
        assert_eq!(
            told,
            [Heard::Missed(7), Heard::Gap, Heard::Message(live(1))]
        );
    }
}
