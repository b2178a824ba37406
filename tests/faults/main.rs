//! The faults that systems of this kind have really had, each staged against real servers.

#[path = "../support/mod.rs"]
mod support;

mod altered;
mod broker;
mod ceiling;
mod culprit;
mod deliveries;
#[cfg(feature = "sidecar")]
mod init;
mod link;
mod load;
mod log;
mod mark;
#[cfg(feature = "sidecar")]
mod metrics;
mod mongodb;
mod ordered;
mod pump;
mod replay;
mod returns;
mod rig;
mod sinks;
mod tls;
mod write;
