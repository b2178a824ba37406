//! How a call of `publish` is interrupted.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Asked once, it takes up nothing more. Asked twice, or after some time, it waits for nothing that is on its way.
/// What has left is marked in both cases.
#[derive(Clone, Default)]
pub(super) struct Stop {
    pub(super) asked: CancellationToken,
    pub(super) cut: CancellationToken,
}

impl Stop {
    /// Passes Ctrl-C on; resolves when it comes once more after that.
    pub(super) async fn listen(&self, grace: Duration) {
        interrupted().await;
        self.asked.cancel();
        let _ = tokio::time::timeout(grace, interrupted()).await;
        self.cut.cancel();
        interrupted().await;
    }
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a way to be told, it is ended the hard way.
        std::future::pending().await
    }
}
