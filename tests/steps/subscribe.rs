//! Who listens within the process.

use cucumber::{then, when};
use toa_outbox::{Heard, Live};

use super::{
    json,
    world::{PATIENCE, Tea},
};

impl Tea {
    /// What the subscription of that number hears next.
    async fn hear(&mut self, number: usize) -> Option<Heard> {
        let next = self.subscriptions[number].next();
        let heard = tokio::time::timeout(PATIENCE, next).await;
        heard.expect("something is heard")
    }

    async fn hear_message(&mut self, number: usize) -> Live {
        match self.hear(number).await {
            Some(Heard::Message(live)) => live,
            other => panic!("{other:?}"),
        }
    }
}

#[when(regex = r#"^a subscription to "(\S+)" begins( in vain)?$"#)]
async fn begins(w: &mut Tea, pattern: String, vain: String) {
    let service = w.service().await;
    let result = service.subscribe(&w.local(&pattern)).await;
    let begun = w.done(result, &vain);
    w.subscriptions.extend(begun);
}

#[when("the last subscription ends")]
fn ends(w: &mut Tea) {
    w.subscriptions.pop();
}

#[when("the database is dropped")]
async fn dropped(w: &mut Tea) {
    w.database.drop().await.unwrap();
}

#[then(regex = r#"^it hears "(\w+)" of the pot "(\w+)"$"#)]
async fn hears(w: &mut Tea, label: String, pot: String) {
    let live = w.hear_message(0).await;
    assert_eq!(live.label, label);
    assert_eq!(live.event.state.get_str("_id").unwrap(), pot);
    let body = std::str::from_utf8(&live.body).unwrap();
    assert_eq!(json::value(body)["_id"], pot.as_str());
}

#[then("it hears a message of another writer")]
async fn hears_stranger(w: &mut Tea) {
    let live = w.hear_message(0).await;
    assert_eq!(live.event.state.get_str("_id").unwrap(), "pot-0");
}

#[then(regex = r"^the other subscription hears of (\d+) messages$")]
async fn other_hears(w: &mut Tea, count: u64) {
    let mut heard = 0;
    while heard < count {
        heard += match w.hear(1).await {
            Some(Heard::Message(_)) => 1,
            Some(Heard::Missed(missed)) => missed,
            other => panic!("{other:?}"),
        };
    }
}

#[then(regex = r"^it hears (\d+) messages, and that it missed (\d+)$")]
async fn hears_and_missed(w: &mut Tea, count: usize, missed: u64) {
    for _ in 0..count {
        w.hear_message(0).await;
    }
    assert_eq!(w.hear(0).await, Some(Heard::Missed(missed)));
}

#[then("it hears of a gap")]
async fn hears_of_gap(w: &mut Tea) {
    assert_eq!(w.hear(0).await, Some(Heard::Gap));
}

#[then("it hears that it is over")]
async fn is_over(w: &mut Tea) {
    assert_eq!(w.hear(0).await, None);
}
