//! How the file has a sink treated: in which order, from where on, and what becomes of what it does not take.

use super::{safety, word};
use crate::{Policy, SinkOptions, config::file::Section, error::Result};

/// Which the file may name, and what they are taken for where it does not.
const ORDERS: [&str; 3] = ["lanes", "ordered", "audit"];
const POLICIES: [&str; 3] = ["backoff", "webhook", "flat"];
/// The first is that of lanes, the second that of the other orders.
const STARTS: [&str; 3] = ["backlog", "origin", "now"];

/// The same in the words of the file, each as it is where the file does not say.
pub(crate) struct Treatment {
    pub(crate) order: &'static str,
    pub(crate) policy: &'static str,
    pub(crate) start: &'static str,
}

/// The keys that say it, besides what [`safety`] reads.
pub(super) const KEYS: [&str; 4] = ["order", "policy", "attempts", "start"];

pub(super) fn treatment(section: &Section<'_>) -> Result<(Treatment, SinkOptions)> {
    let order = word(section, "order", &ORDERS)?.unwrap_or(ORDERS[0]);
    let options = match order {
        "ordered" => SinkOptions::ordered(),
        "audit" => SinkOptions::audit(),
        _ => SinkOptions::new(),
    };
    let (policy, options) = match order {
        "audit" => (nothing_is_given_up(section)?, options),
        _ => policy(section, options)?,
    };
    let options = match safety(section)? {
        Some(safety) => options.safety(safety),
        None => options,
    };
    let start = start(section, order, policy)?;
    let treatment = Treatment {
        order,
        policy,
        start,
    };
    Ok(match start {
        "now" => (treatment, options.from_now()),
        _ => (treatment, options),
    })
}

fn policy(section: &Section<'_>, options: SinkOptions) -> Result<(&'static str, SinkOptions)> {
    let name = word(section, "policy", &POLICIES)?.unwrap_or(POLICIES[0]);
    let policy = match name {
        "webhook" => Policy::webhook(),
        "flat" => Policy::flat(),
        // With as many attempts as is usual for the order.
        _ => options.policy.clone(),
    };
    let policy = match section.number("attempts")? {
        Some(attempts) if !policy.gives_up() => {
            let expected =
                "expected none: policy = \"flat\" gives nothing up, however often it fails";
            return Err(section.fault("attempts", &attempts.to_string(), expected.into()));
        }
        Some(attempts) => policy.attempts(u32::try_from(attempts).unwrap_or(u32::MAX)),
        None => policy,
    };
    Ok((name, options.policy(policy)))
}

/// A record that is to be complete leaves nothing to choose.
fn nothing_is_given_up(section: &Section<'_>) -> Result<&'static str> {
    let flat = "flat";
    let policy = word(section, "policy", &POLICIES)?.filter(|policy| *policy != flat);
    if let Some(policy) = policy {
        let expected = "expected flat, or none at all: with order = \"audit\" nothing is ever given up; order = \"ordered\" may";
        return Err(section.fault("policy", policy, expected.into()));
    }
    match section.number("attempts")? {
        None => Ok(flat),
        Some(attempts) => {
            let expected = "expected none: with order = \"audit\" nothing is ever given up; order = \"ordered\" may";
            Err(section.fault("attempts", &attempts.to_string(), expected.into()))
        }
    }
}

/// A webhook begins now unless it is told otherwise; but what is to be in order is to be complete.
fn start(section: &Section<'_>, order: &str, policy: &str) -> Result<&'static str> {
    let start = word(section, "start", &STARTS)?;
    let expected = match (order == ORDERS[0], start) {
        (true, Some("origin")) => {
            "expected backlog, which is all that is unpublished, or now: an order begins at the origin, and with order = \"lanes\" \
             there is none"
        }
        (false, Some("backlog")) => {
            "expected origin, which is all that is still in the outbox, or now: with order = \"ordered\" or \"audit\" what was \
             published before comes too"
        }
        (_, Some(start)) => return Ok(start),
        (true, None) if policy == "webhook" => return Ok("now"),
        (true, None) => return Ok("backlog"),
        (false, None) => return Ok("origin"),
    };
    Err(section.fault("start", start.unwrap_or_default(), expected.into()))
}
