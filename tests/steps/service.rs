//! Services come and go, and so do the servers they need.

use std::time::Duration;

use cucumber::{given, then, when};
use futures::future::{join_all, try_join_all};
use toa_outbox::Left;
use tokio::sync::OnceCell;

use super::world::{Broker, Tea};
use crate::support::Mongo;

#[given("the service runs")]
#[when("the service starts")]
async fn starts(w: &mut Tea) {
    w.service().await;
}

#[when("the service starts in vain")]
async fn starts_in_vain(w: &mut Tea) {
    let result = w.open().await;
    w.done(result, "in vain");
}

#[when("the service starts again")]
async fn starts_again(w: &mut Tea) {
    w.services.clear();
    w.start().await;
}

#[when(regex = r"^the service starts again with a retention of (\d+) s$")]
async fn starts_again_with(w: &mut Tea, seconds: u64) {
    w.settings.retention = Duration::from_secs(seconds);
    starts_again(w).await;
}

#[given("two services that share the lanes")]
async fn two(w: &mut Tea) {
    for slot in ["0/2", "1/2"] {
        w.settings.slot = Some(slot.parse().unwrap());
        w.start().await;
    }
}

#[when(regex = r"^a service with the slot (\S+) starts$")]
async fn another(w: &mut Tea, slot: String) {
    w.settings.slot = Some(slot.parse().unwrap());
    w.start().await;
}

#[when(regex = r"^(\d+) services start at once$")]
async fn at_once(w: &mut Tea, count: usize) {
    w.listen().await;
    w.services = try_join_all((0..count).map(|_| w.open())).await.unwrap();
}

#[given("replicas that agree on their lanes")]
fn agreed(w: &mut Tea) {
    w.settings.slot = None;
    w.settings.beat = Duration::from_millis(500);
}

#[given(regex = r"^(\d+) s between their signs of life$")]
fn beat(w: &mut Tea, seconds: u64) {
    w.settings.beat = Duration::from_secs(seconds);
}

#[when("one of them is shut down")]
async fn one_shut_down(w: &mut Tea) {
    assert_eq!(w.services.remove(0).shutdown().await, Left::default());
}

#[when("the service is dropped")]
fn dropped(w: &mut Tea) {
    w.services.clear();
}

#[when("the pump runs")]
async fn pump(w: &mut Tea) {
    w.pump().await;
}

#[when("the pump is nudged")]
async fn nudged(w: &mut Tea) {
    w.service().await.nudge();
}

#[then(regex = r"^the pump has found, published and marked (\d+) rows$")]
fn passed(w: &mut Tea, rows: u64) {
    let pass = w.pass.expect("a cycle");
    assert_eq!(
        (pass.found, pass.published, pass.marked, pass.unsent),
        (rows, rows, rows, 0)
    );
}

#[then(regex = r"^the pump has found (\d+) rows? to publish and (\d+) that nobody can$")]
fn passed_over(w: &mut Tea, found: u64, malformed: u64) {
    let pass = w.pass.expect("a cycle");
    assert_eq!((pass.found, pass.malformed), (found, malformed));
}

#[when("the service is shut down")]
async fn shut_down(w: &mut Tea) {
    let services = std::mem::take(&mut w.services);
    let left = join_all(services.iter().map(|service| service.shutdown())).await;
    w.services = services;
    w.left = left.into_iter().next();
}

#[then("nothing was left")]
fn nothing_left(w: &mut Tea) {
    assert_eq!(w.left, Some(Left::default()));
}

#[then("a shutdown leaves nothing")]
async fn leaves_nothing(w: &mut Tea) {
    shut_down(w).await;
    nothing_left(w);
}

#[then(regex = r"^it was left that (\d+) rows? had not been sent$")]
fn unsent(w: &mut Tea, rows: usize) {
    let left = w.left.expect("a shutdown");
    assert_eq!((left.unsent, left.in_flight, left.unmarked), (rows, 0, 0));
}

#[then(regex = r"^it was left that (\d+) rows? may or may not have been sent$")]
fn in_flight(w: &mut Tea, rows: usize) {
    let left = w.left.expect("a shutdown");
    assert_eq!((left.in_flight, left.unsent, left.unmarked), (rows, 0, 0));
}

#[given("the broker is away")]
fn away(w: &mut Tea) {
    w.cable.cut();
    w.broker = Broker::Away;
}

/// Connections stay open and nothing passes.
#[given("the broker has gone quiet")]
#[when("the broker has gone quiet")]
fn quiet(w: &mut Tea) {
    w.cable.blackhole();
    w.broker = Broker::Away;
}

#[when("the broker is back")]
fn back(w: &mut Tea) {
    w.cable.mend();
    w.broker = Broker::There;
}

#[given("a standalone MongoDB")]
async fn standalone(w: &mut Tea) {
    static STANDALONE: OnceCell<Mongo> = OnceCell::const_new();
    let uri = STANDALONE.get_or_init(Mongo::standalone).await.uri();
    w.move_to(uri).await;
}
