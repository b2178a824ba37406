//! The sidecar as a process, next to writers that know nothing of it, with real servers.

#[path = "../support/mod.rs"]
mod support;

mod altered;
mod appear;
mod five;
mod follow;
mod many;
mod ordered;
mod process;
mod ready;
mod rights;
mod rolling;
mod share;
mod sinks;
mod stop;
mod storm;
mod town;
mod trouble;
