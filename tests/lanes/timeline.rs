//! Who owned which lanes, from when to when, by the clock all processes of one machine share.

use std::{collections::HashMap, time::Duration};

use serde_json::Value;
use toa_outbox::{LANES, Slot};

/// A reading of the clock the library measures ownership by, in nanoseconds.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// A clock jumped ahead, and only its own process saw it.
pub struct Nap {
    /// By the clock all share, right after the jump.
    pub at: u64,
    pub length: u64,
}

/// Sets what was told by a clock that jumped back to the one all share. What was to come within the jump came with it.
pub fn set_back(told: &mut [Value], naps: &[Nap]) {
    let shared = |reading: u64| {
        let mut ahead = 0;
        for nap in naps {
            match reading - ahead {
                before if before < nap.at => return before,
                within if within < nap.at + nap.length => return nap.at,
                _ => ahead += nap.length,
            }
        }
        reading - ahead
    };
    for line in told {
        for moment in ["now", "until"] {
            if let Some(reading) = line[moment].as_u64() {
                line[moment] = shared(reading).into();
            }
        }
    }
}

/// One owner of some lanes for one route.
#[derive(Clone, Debug)]
pub struct Span {
    pub who: String,
    pub route: String,
    pub slot: Slot,
    pub from: u64,
    /// Until when it could start something.
    pub until: u64,
    /// When it had let go, or by its own deadline everything was cut, or its process was gone.
    pub to: u64,
}

impl Span {
    pub fn owns(&self, lane: u8, at: u64) -> bool {
        self.from <= at && at < self.until && self.slot.owns(lane)
    }

    fn meets(&self, other: &Self) -> bool {
        self.from < other.to
            && other.from < self.to
            && self.route == other.route
            && (0..LANES).any(|lane| self.slot.owns(lane) && other.slot.owns(lane))
    }
}

/// What a process told of its lanes, as spans. `routes` are those it serves, `gone` when it ended.
pub fn spans(told: &[Value], routes: &[String], beat: Duration, gone: Option<u64>) -> Vec<Span> {
    let gone = gone.unwrap_or(u64::MAX);
    let mut spans: Vec<Span> = Vec::new();
    // Those that their owner has not let go of.
    let mut open: HashMap<&str, Vec<usize>> = HashMap::new();
    for line in told {
        let (Some(who), Some(now)) = (line["me"].as_str(), line["now"].as_u64()) else {
            continue;
        };
        let open = open.entry(who).or_default();
        match line["message"].as_str().unwrap_or_default() {
            "owns lanes" => {
                for (route, slot) in read(line["slots"].as_str().unwrap(), routes) {
                    open.push(spans.len());
                    let (who, from, until, to) = (who.to_owned(), now, u64::MAX, now);
                    spans.push(Span {
                        who,
                        route,
                        slot,
                        from,
                        until,
                        to,
                    });
                }
            }
            // By its own clock everything is cut then; told anew with each sign of life.
            "holds its lanes" => {
                let cut = line["until"].as_u64().unwrap();
                open.iter().for_each(|&at| spans[at].to = cut);
            }
            "let go of its lanes" => {
                for at in open.drain(..) {
                    spans[at].to = spans[at].to.min(now);
                }
            }
            said if said.starts_with("owns nothing") => {
                open.iter()
                    .for_each(|&at| spans[at].until = spans[at].until.min(now));
            }
            _ => {}
        }
    }
    for span in &mut spans {
        // Half a beat is between the last start and the cut.
        span.until = span
            .until
            .min(span.to.saturating_sub(nanos(beat) / 2))
            .min(gone);
        span.to = span.to.min(gone);
    }
    spans
}

/// `1/3`, of all routes, or a list of slots, each with its routes.
fn read(slots: &str, routes: &[String]) -> Vec<(String, Slot)> {
    if let Ok(slot) = slots.parse() {
        return routes.iter().map(|route| (route.clone(), slot)).collect();
    }
    let slots: std::collections::BTreeMap<String, Vec<String>> =
        serde_json::from_str(slots).unwrap();
    let each = slots.into_iter().flat_map(|(slot, routes)| {
        let slot: Slot = slot.parse().unwrap();
        routes.into_iter().map(move |route| (route, slot))
    });
    each.collect()
}

/// Panics where a route and lane had two owners at one time.
pub fn assert_one_owner(spans: &[Span]) {
    let mut spans: Vec<&Span> = spans.iter().filter(|span| span.from < span.to).collect();
    spans.sort_by_key(|span| span.from);
    for (index, span) in spans.iter().enumerate() {
        let later = spans[index + 1..]
            .iter()
            .take_while(|other| other.from < span.to);
        for other in later.filter(|other| other.who != span.who) {
            assert!(!span.meets(other), "two owners:\n{span:?}\n{other:?}");
        }
    }
}

/// Whether every lane of `route` has an owner at that time.
pub fn is_whole(spans: &[Span], route: &str, at: u64) -> bool {
    let owned = |lane| {
        let mut of_route = spans.iter().filter(|span| span.route == route);
        of_route.any(|span| span.owns(lane, at))
    };
    (0..LANES).all(owned)
}
