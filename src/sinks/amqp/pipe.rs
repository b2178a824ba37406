//! A confirming channel that is opened anew when it ends.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use lapin::{
    BasicProperties, Channel, Confirmation, Connection,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The least time between two openings: a channel the broker keeps closing is not a loop.
const PACE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Pipe {
    current: Mutex<Option<Arc<Open>>>,
    /// When it was last opened; held while it is opened.
    opened: tokio::sync::Mutex<Option<Instant>>,
}

/// One opening of a pipe.
pub(super) struct Open {
    pub(super) channel: Channel,
    /// Held while a publication is given to the channel; see [`Open::publish`].
    order: Mutex<()>,
    /// Cancelled when nothing on it will be answered any more.
    pub(super) over: CancellationToken,
}

impl Open {
    /// Publishes and waits for the confirm.
    ///
    /// The client numbers a publication and queues its frames in two steps. Two threads that publish at
    /// once can therefore number in one order and queue in the other, and each gets the answer to the
    /// other's message: a nack taken for an ack, and a row lost. Both steps are in the first poll, so
    /// that one is made by one thread at a time.
    pub(super) async fn publish(
        &self,
        exchange: ShortString,
        options: BasicPublishOptions,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<Confirmation, lapin::Error> {
        let key = ShortString::default();
        let publication = self
            .channel
            .basic_publish(exchange, key, options, body, properties);
        let mut publication = pin!(publication);
        let queued = poll_fn(|cx| {
            let _one = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            Poll::Ready(publication.as_mut().poll(cx))
        });
        let confirm = match queued.await {
            Poll::Ready(published) => published?,
            Poll::Pending => publication.await?,
        };
        confirm.await
    }
}

impl Pipe {
    /// The open channel, opening it where there is none. Cancel safe.
    pub(super) async fn open(
        &self,
        connection: &Connection,
        dead: &CancellationToken,
    ) -> Result<Arc<Open>, lapin::Error> {
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let mut opened = self.opened.lock().await;
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        if let Some(last) = *opened {
            tokio::time::sleep_until(last + PACE).await;
        }
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let over = dead.child_token();
        let open = Arc::new(Open {
            channel,
            order: Mutex::default(),
            over,
        });
        *self.current() = Some(open.clone());
        *opened = Some(Instant::now());
        Ok(open)
    }

    /// Gives up an opening on which an answer stays away: everything on it counts as not sent.
    pub(super) fn retire(&self, open: &Arc<Open>) {
        let mut current = self.current();
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(now, open)) {
            *current = None;
        }
        open.over.cancel();
    }

    fn usable(&self) -> Option<Arc<Open>> {
        let current = self.current();
        let open = current.as_ref()?;
        open.channel.status().connected().then(|| open.clone())
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Open>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
