//! The broker, before anything is sent and while something is.

use indicatif::ProgressBar;

use super::PATIENCE;
use crate::{
    Amqp, Settings,
    cli::failure::{Failure, say},
    sinks::amqp::{Broker, Survey},
};

/// The sink, once it is connected; why it is not, when it takes too long.
pub(super) async fn connected(settings: &Settings) -> Result<Amqp, Failure> {
    let sink = Amqp::start(settings)?;
    if tokio::time::timeout(PATIENCE, sink.up()).await.is_ok() {
        return Ok(sink);
    }
    let nodes = Survey::each(settings).await?;
    let reasons = nodes.into_iter().map(|(address, survey)| match survey {
        Ok(_) => format!("{address}: slow to answer, try again"),
        Err(reason) => format!("{address}: {reason}"),
    });
    let reasons: Vec<String> = reasons.collect();
    Err(Failure::Because(format!(
        "cannot connect to the broker; {}",
        reasons.join("; ")
    )))
}

/// Tells of a broker that takes nothing, for as long as there is something to send.
pub(super) async fn watch(sink: Option<&Amqp>, bar: &ProgressBar) {
    let Some(sink) = sink else {
        return std::future::pending().await;
    };
    let mut state = sink.state();
    loop {
        let trouble = match &*state.borrow_and_update() {
            Broker::Up => String::new(),
            Broker::Blocked { reason } => {
                format!("the broker blocks publications ({reason}): waiting")
            }
            Broker::Away { reason, .. } => format!("the broker is away ({reason}): waiting"),
        };
        if !trouble.is_empty() {
            bar.suspend(|| say(&trouble));
        }
        bar.set_message(trouble);
        if state.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
