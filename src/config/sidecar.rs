//! What only the program needs to know, not the library in somebody's process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::given::Given;
use crate::error::Result;

/// The settings of the program itself.
#[derive(Debug)]
pub(crate) struct Sidecar {
    /// Where health and metrics are shown; none: nowhere.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) log: Log,
    /// What is logged, as a filter of `tracing`: `info`, or `warn,toa_outbox=debug`.
    pub(crate) log_level: String,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    Text,
    Json,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            listen: None,
            log: Log::Text,
            log_level: "info".into(),
        }
    }
}

impl Sidecar {
    pub(super) fn set(&mut self, given: &Given) -> Result<()> {
        match given.key.name {
            "listen" => self.listen = Some(address(given)?),
            "log" => self.log = form(given)?,
            "log_level" => self.log_level = filter(given)?,
            // The file itself, which was read before.
            _ => {}
        }
        Ok(())
    }
}

impl Log {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// A port alone is one of this machine only: who wants to be reached from elsewhere has to say so.
fn address(given: &Given) -> Result<SocketAddr> {
    let text = given.value.trim();
    if let Ok(port) = text.parse() {
        return Ok((IpAddr::from(Ipv4Addr::LOCALHOST), port).into());
    }
    let local = text.strip_prefix("localhost:");
    local
        .map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"))
        .parse()
        .map_err(|_| {
            given.refuse("an address and a port, such as 127.0.0.1:9090 or [::]:9090, or a port")
        })
}

fn form(given: &Given) -> Result<Log> {
    match given.value.trim() {
        "text" => Ok(Log::Text),
        "json" => Ok(Log::Json),
        _ => Err(given.refuse("text or json")),
    }
}

/// `tracing` takes a misspelt level for the name of a module, and then logs all of that.
fn filter(given: &Given) -> Result<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |text: &str| LEVELS.contains(&text);
    let is_directive = |text: &str| match text.trim().rsplit_once('=') {
        Some((target, level)) => !target.is_empty() && is_level(level),
        None => is_level(text.trim()),
    };
    if given.value.split(',').all(is_directive) {
        Ok(given.value.trim().to_owned())
    } else {
        Err(given.refuse(
            "off, error, warn, info, debug or trace, also per module: warn,toa_outbox=debug",
        ))
    }
}
