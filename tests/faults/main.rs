//! The faults that systems of this kind have really had, each staged against real servers.

#[path = "../support/mod.rs"]
mod support;

mod init;
mod mark;
mod mongodb;
mod pump;
mod rig;
mod write;
