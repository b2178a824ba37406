//! The faults that systems of this kind have really had, each staged against real servers.

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod culprit;
mod load;
mod log;
mod returns;
mod rig;
mod write;
