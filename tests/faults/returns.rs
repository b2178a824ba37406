//! CASES 26 and 28: what a broker returns or refuses stays, and nothing else does.

use std::{collections::HashSet, time::Duration};

use bson::{Document, doc};
use toa_outbox::{Amqp, Label, Outbox};

use crate::{
    admin::Admin,
    load::{commit, dose, seed},
    log::Log,
    rig::{PATIENCE, Rig},
    support::eventually,
};

/// Makes the component have a label for each of these, told by the state's `to`.
fn address(rig: &mut Rig, labels: &[&'static str]) {
    let label = |&name: &&'static str| {
        Label::new(name).when(move |event| Ok(event.state.get_str("to")? == name))
    };
    rig.component = rig
        .bare()
        .labels(labels.iter().map(label).collect::<Vec<_>>());
}

fn to(label: &str) -> Document {
    doc! { "to": label }
}

/// What was set apart with a deleted exchange is judged like anything else when it is back.
#[tokio::test]
async fn a_message_that_was_set_apart_and_is_returned_stays() {
    let mut rig = Rig::shared().await;
    address(&mut rig, &["home"]);
    rig.component = rig.component.clone().mandatory(true);
    let admin = Admin::of(&rig.settings.amqp[0]).await;
    let home = rig.exchange("home");
    let log = Log::read();

    let first = rig.consume("home").await;
    let pots = rig.open().await;
    commit(&pots, 1, |_| to("home")).await;
    first.wait_for(1, PATIENCE).await;
    rig.settled().await;
    drop(first);

    admin.delete(&home).await;
    commit(&pots, 300, |_| to("home")).await;
    eventually(PATIENCE, "the exchange is missed", async || {
        !log.ours(&format!("no exchange '{home}'")).is_empty()
    })
    .await;
    admin.declare(&home).await;
    eventually(PATIENCE, "a message is returned", async || {
        !log.ours("(returned)").is_empty()
    })
    .await;
    // A pass tries whatever is not on its way already.
    for _ in 0..3 {
        pots.pass().await.unwrap();
    }
    assert_eq!(rig.count(doc! { "published": true }).await, 1);
    let home = rig.consume("home").await;
    rig.settled().await;
    assert_eq!(home.distinct(), 300);
    pots.shutdown().await;
}

/// Two outboxes on one connection publish from different threads; each row has its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn outboxes_that_share_a_connection_do_not_share_answers() {
    let rig = Rig::shared().await;
    let mut refused = Rig::shared().await;
    refused.component = refused.bare().labels([Label::created()]);
    let sink = Amqp::start(&rig.settings).unwrap();
    let admin = Admin::of(&rig.settings.amqp[0]).await;
    let full = admin.full_queue(&refused.exchange("created"), 10).await;
    let taken = rig.consume("created").await;

    let open = async |rig: &Rig| {
        let (component, settings) = (rig.component.clone(), rig.settings.clone());
        Outbox::open_with(&rig.database, component, settings, &sink)
            .await
            .unwrap()
    };
    let (pots, others) = (open(&rig).await, open(&refused).await);
    let rows = dose(4000, 50_000);
    let state = |number: usize| doc! { "number": number as i64 };
    tokio::join!(seed(&rig, rows, state), seed(&refused, rows, state));
    pots.nudge();
    others.nudge();
    taken.wait_for(rows, PATIENCE).await;
    rig.settled().await;

    let sent = refused.count(doc! { "published": true }).await;
    assert_eq!(sent, u64::from(admin.depth(&full).await));
    pots.shutdown().await;
    others.shutdown().await;
}
