//! A confirming channel that is opened anew when it ends.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lapin::{Channel, Connection, options::ConfirmSelectOptions};
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
    /// Cancelled when nothing on it will be answered any more.
    pub(super) over: CancellationToken,
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
        let open = Arc::new(Open { channel, over });
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
