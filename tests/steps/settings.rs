//! Who consumes, and with which settings a service runs.

use std::time::Duration;

use cucumber::{given, when};
use toa_outbox::Ceiling;

use super::world::{Audience, Broker, Tea};

#[given(regex = r"^only the label (\w+) is consumed$")]
fn consumed(w: &mut Tea, name: String) {
    let variable = format!("TOA_EVENTS_{}_POTS", w.namespace).to_uppercase();
    w.settings.events.insert(variable, vec![name]);
}

#[given("no label is consumed, and there is no broker")]
fn nothing_consumed(w: &mut Tea) {
    let variable = format!("TOA_EVENTS_{}_POTS", w.namespace).to_uppercase();
    w.settings.events.insert(variable, Vec::new());
    w.settings.amqp.clear();
    w.broker = Broker::None;
}

#[given("no broker is configured")]
fn no_broker(w: &mut Tea) {
    w.settings.amqp.clear();
    w.broker = Broker::None;
}

#[given("a consumer of each of them")]
fn everybody(w: &mut Tea) {
    w.audience = Audience::Everybody;
}

#[given(regex = r"^a consumer of (\w+)$")]
fn somebody(w: &mut Tea, name: String) {
    w.audience = Audience::Some(vec![name]);
}

#[when(regex = r"^a consumer of (\w+) comes$")]
async fn somebody_comes(w: &mut Tea, name: String) {
    w.audience = Audience::Some(vec![name]);
    w.listen().await;
}

#[given(regex = r"^an interval of (\d+) ms$")]
fn interval(w: &mut Tea, ms: u64) {
    w.settings.interval = Duration::from_millis(ms);
}

#[given(regex = r"^no more than (\d+) rows may wait$")]
fn ceiling(w: &mut Tea, rows: u64) {
    w.settings.ceiling = Some(Ceiling::Rows(rows));
}

/// Its next cycle comes long after the scenario.
#[given("a pump that runs only when told")]
fn told(w: &mut Tea) {
    w.settings.interval = Duration::from_secs(20);
    w.told = true;
}

#[given("only the pump delivers")]
fn deferred(w: &mut Tea) {
    w.settings.defer = true;
}

#[given(regex = r"^a batch of (\d+) rows$")]
fn batch(w: &mut Tea, rows: u32) {
    w.settings.batch = rows;
}

#[given(regex = r"^the service has the slot (\S+)$")]
fn share(w: &mut Tea, slot: String) {
    w.settings.slot = Some(slot.parse().unwrap());
}

#[given(regex = r"^a retention of (\d+) s$")]
fn retention(w: &mut Tea, seconds: u64) {
    w.settings.retention = Duration::from_secs(seconds);
}

#[given(regex = r"^a grace of (\d+) ms$")]
fn grace(w: &mut Tea, ms: u64) {
    w.settings.grace = Duration::from_millis(ms);
}

#[given(regex = r"^operations are given up after (\d+) ms$")]
fn deadline(w: &mut Tea, ms: u64) {
    w.settings.deadline = Duration::from_millis(ms);
}
