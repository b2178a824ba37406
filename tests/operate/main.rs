//! The operator's tool: the real program against real servers.

#[path = "../support/mod.rs"]
mod support;

mod beside;
mod check;
mod dead;
mod help;
mod init;
mod look;
mod publish;
mod scan;
mod sinks;
mod stage;
mod tail;
mod till;
mod unread;
