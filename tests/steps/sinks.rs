//! Sinks of a service's own, and how they behave.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bson::doc;
use cucumber::{given, then, when};
use toa_outbox::{BoxError, Builder, Message, Policy, Sink, SinkOptions, Unreachable, Verdict};

use super::{
    json,
    world::{PATIENCE, Tea},
};
use crate::support::eventually;

/// A destination, seen from outside. All replicas deliver to the same.
#[derive(Clone)]
pub struct Destination {
    name: String,
    patterns: Vec<String>,
    options: SinkOptions,
    is_handler: bool,
    state: Arc<Mutex<State>>,
}

struct State {
    conduct: Option<Conduct>,
    /// How often it took which label of which pot.
    taken: BTreeMap<(String, String), usize>,
    /// What steps have spoken of.
    expected: usize,
}

/// What it does wrong.
#[derive(Clone)]
struct Conduct {
    does: String,
    /// With this pot alone, and whatever comes with it; with all if none.
    pot: Option<String>,
}

impl Destination {
    pub fn added_to(&self, builder: Builder, local: impl Fn(&str) -> String) -> Builder {
        let patterns: Vec<String> = self.patterns.iter().map(|pattern| local(pattern)).collect();
        if self.is_handler {
            let handle = |builder: Builder, pattern: &String| {
                let sink = self.clone();
                builder.consume(&self.name, pattern, move |message| {
                    let sink = sink.clone();
                    async move { sink.handle(message).await }
                })
            };
            return patterns.iter().fold(builder, handle);
        }
        builder.sink_with(&self.name, patterns, self.clone(), self.options.clone())
    }

    async fn handle(&self, message: Message) -> Result<(), BoxError> {
        match self.deliver(&[message]).await?.remove(0) {
            Verdict::Accepted => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }

    fn taken(&self, label: &str, pot: &str) -> usize {
        let key = (label.to_owned(), pot.to_owned());
        self.state
            .lock()
            .unwrap()
            .taken
            .get(&key)
            .copied()
            .unwrap_or(0)
    }

    /// How many messages it took, each counted as often as it was.
    fn count(&self) -> usize {
        self.state.lock().unwrap().taken.values().sum()
    }

    fn expect(&self, more: usize) {
        self.state.lock().unwrap().expected += more;
    }

    fn take(&self, batch: &[Message]) -> Vec<Verdict> {
        let mut state = self.state.lock().unwrap();
        for message in batch {
            let key = (message.label().to_owned(), pot(message));
            *state.taken.entry(key).or_default() += 1;
        }
        vec![Verdict::Accepted; batch.len()]
    }
}

fn pot(message: &Message) -> String {
    let body = std::str::from_utf8(message.body()).unwrap();
    let pot = json::value(body)["_id"].as_str().unwrap().to_owned();
    assert_eq!(message.entity().as_str(), Some(pot.as_str()));
    pot
}

impl Sink for Destination {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let conduct = self.state.lock().unwrap().conduct.clone();
        let is_meant = |of: &Option<String>, message: &Message| {
            of.as_ref().is_none_or(|of| *of == pot(message))
        };
        let Some(Conduct { does, .. }) =
            conduct.filter(|conduct| batch.iter().any(|message| is_meant(&conduct.pot, message)))
        else {
            return Ok(self.take(batch));
        };
        match does.as_str() {
            "fails" => Err("the door is shut".into()),
            "panics" => panic!("a defect of the sink"),
            "hangs" => std::future::pending().await,
            "is away" => Err(Unreachable::new("nobody at the door").into()),
            "asks for a pause" => Ok(vec![
                Verdict::Paused {
                    reason: "closed for tea".into(),
                    circuit: Some("closed-for-tea".into()),
                    after: None,
                };
                batch.len()
            ]),
            "rejects" => Ok(vec![
                Verdict::Rejected("not on the list".into());
                batch.len()
            ]),
            "asks for a rest" => {
                let retry = Verdict::Retry {
                    reason: "too many guests".into(),
                    after: Some(Duration::from_millis(300)),
                };
                Ok(vec![retry; batch.len()])
            }
            other => panic!("what is it to {other}?"),
        }
    }
}

impl Tea {
    fn sink_mut(&mut self, name: &str) -> &mut Destination {
        let sink = self.sinks.iter_mut().find(|sink| sink.name == name);
        sink.expect("a sink of that name")
    }

    fn sink(&self, name: &str) -> &Destination {
        let sink = self.sinks.iter().find(|sink| sink.name == name);
        sink.expect("a sink of that name")
    }
}

#[given(
    regex = r#"^a (sink|handler) "(\S+)" of "([^"]*)"(?:, which (fails|panics|hangs|rejects|is away|begins now|asks for a rest|asks for a pause)(?: the pot "(\S+)")?)?$"#
)]
fn declared(w: &mut Tea, kind: String, name: String, patterns: String, does: String, pot: String) {
    let patterns: Vec<String> = patterns.split_whitespace().map(str::to_owned).collect();
    let is_handler = kind == "handler";
    if let Some(known) = w
        .sinks
        .iter_mut()
        .find(|known| is_handler && known.name == name)
    {
        return known.patterns.extend(patterns);
    }
    // What hangs is to be seen within the scenario.
    w.settings.sink_timeout = Duration::from_millis(200);
    let begins_now = does == "begins now";
    let conduct = Conduct {
        does: if begins_now { String::new() } else { does },
        pot: (!pot.is_empty()).then_some(pot),
    };
    let state = State {
        conduct: (!conduct.does.is_empty()).then_some(conduct),
        taken: BTreeMap::new(),
        expected: 0,
    };
    let options = match begins_now {
        true => SinkOptions::new().from_now(),
        false => SinkOptions::new(),
    };
    w.sinks.push(Destination {
        name,
        patterns,
        options,
        is_handler,
        state: Arc::new(Mutex::new(state)),
    });
}

#[given(regex = r#"^a grace of (\d+) s for consumers$"#)]
fn grace(w: &mut Tea, seconds: u64) {
    w.settings.consumer_grace = Duration::from_secs(seconds);
}

#[given(regex = r#"^the sink "(\S+)" gives up after (\d+) attempts$"#)]
fn gives_up(w: &mut Tea, name: String, attempts: u32) {
    // So that the scenario can wait for it.
    let policy = Policy::schedule([Duration::from_millis(100)]).attempts(attempts);
    w.sink_mut(&name).options = SinkOptions::new().policy(policy);
}

#[given(regex = r#"^the sink "(\S+)" gives nothing up$"#)]
#[when(regex = r#"^the sink "(\S+)" gives nothing up$"#)]
fn gives_nothing_up(w: &mut Tea, name: String) {
    w.sink_mut(&name).options = SinkOptions::new().policy(Policy::flat());
}

#[given(regex = r#"^the sink "(\S+)" keeps the order of the commits( from now on)?$"#)]
fn keeps_order(w: &mut Tea, name: String, from_now: String) {
    let options = SinkOptions::ordered();
    w.sink_mut(&name).options = match from_now.is_empty() {
        true => options,
        false => options.from_now(),
    };
}

#[when(regex = r#"^the sink "(\S+)" is not in the next version$"#)]
fn leaves(w: &mut Tea, name: String) {
    let (gone, stays) = std::mem::take(&mut w.sinks)
        .into_iter()
        .partition(|sink| sink.name == name);
    (w.gone, w.sinks) = (gone, stays);
}

#[when(regex = r#"^the sink "(\S+)" wants "(\S+)" alone in the next version$"#)]
fn wants(w: &mut Tea, name: String, pattern: String) {
    w.sink_mut(&name).patterns = vec![pattern];
}

#[when(regex = r#"^the sink "(\S+)" is back in one more service$"#)]
async fn returns(w: &mut Tea, name: String) {
    let gone = std::mem::take(&mut w.gone);
    assert!(gone.iter().any(|sink| sink.name == name));
    w.sinks.extend(gone);
    w.start().await;
}

#[when(regex = r#"^the sink "(\S+)" works again$"#)]
fn works(w: &mut Tea, name: String) {
    w.sink(&name).state.lock().unwrap().conduct = None;
}

#[when("one more service starts")]
async fn one_more(w: &mut Tea) {
    w.start().await;
}

#[then(regex = r#"^the sink "(\S+)" takes "(\w+)" of the pot "(\S+)"$"#)]
async fn takes(w: &mut Tea, name: String, label: String, pot: String) {
    let sink = w.sink(&name);
    eventually(PATIENCE, "it takes the message", async || {
        sink.taken(&label, &pot) > 0
    })
    .await;
    sink.expect(1);
}

#[then(regex = r#"^the sink "(\S+)" has taken "(\w+)" of the pot "(\S+)"$"#)]
fn has_taken(w: &mut Tea, name: String, label: String, pot: String) {
    assert_eq!(w.sink(&name).taken(&label, &pot), 1);
}

#[then(
    regex = r#"^the sink "(\S+)" takes "(\w+)" of each of the (\d+) pots once(?: but "(\S+)")?$"#
)]
async fn takes_all(w: &mut Tea, name: String, label: String, count: usize, but: String) {
    assert_eq!(w.pots.len(), count);
    let pots: Vec<&String> = w.pots.iter().filter(|pot| **pot != but).collect();
    let sink = w.sink(&name);
    // What was rejected again and again waits for as long again.
    eventually(PATIENCE * 4, "it takes all of them", async || {
        pots.iter().all(|pot| sink.taken(&label, pot) > 0)
    })
    .await;
    for pot in &pots {
        assert_eq!(sink.taken(&label, pot), 1, "{pot}");
    }
    sink.expect(pots.len());
}

#[then(regex = r#"^the sink "(\S+)" takes "created" of (\d+) pots once$"#)]
async fn takes_some(w: &mut Tea, name: String, count: usize) {
    let sink = w.sink(&name);
    eventually(PATIENCE, "it takes all of them", async || {
        sink.count() >= count
    })
    .await;
    w.settled().await;
    // By row, since pots of different writers go by one name here.
    assert_eq!(w.sink(&name).count(), count);
}

#[then(regex = r#"^the sink "(\S+)" has taken nothing$"#)]
fn nothing_taken(w: &mut Tea, name: String) {
    assert_eq!(w.sink(&name).count(), 0);
}

#[then("no sink takes anything else")]
fn nothing_else(w: &mut Tea) {
    for sink in &w.sinks {
        let expected = sink.state.lock().unwrap().expected;
        assert_eq!(sink.count(), expected, "{}", sink.name);
    }
}

#[then(regex = r#"^only the row of the pot "(\S+)" is not marked$"#)]
async fn only_unmarked(w: &mut Tea, pot: String) {
    let unpublished = doc! { "published": false };
    eventually(PATIENCE, "one row is left", async || {
        w.count(unpublished.clone()).await == 1
    })
    .await;
    let its = doc! { "published": false, "event.state._id": pot };
    assert_eq!(w.count(its).await, 1);
}

#[then(regex = r#"^every row owes nothing but "(.+)"$"#)]
async fn owes(w: &mut Tea, routes: String) {
    let routes: Vec<&str> = routes.split(' ').collect();
    let other = doc! { "$elemMatch": { "$nin": &routes } };
    let more = doc! { "published": false, "$or": [{ "outstanding": other }, { "outstanding": { "$exists": false } }] };
    eventually(PATIENCE, "nothing else is owed", async || {
        w.count(more.clone()).await == 0
    })
    .await;
    assert_eq!(w.count(doc! { "published": true }).await, 0);
}
