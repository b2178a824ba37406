//! What every sink has to do, whatever its destination does: in the end each message is there, and nobody else waits for it.
//!
//! A sink is done when [`conforms`] passes for a [`Destination`] of it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use bson::{DateTime, Document, doc};
use futures::TryStreamExt;
use mongodb::{Client, Collection, Database};
use toa_outbox::{
    BoxError, Builder, Component, Label, Message, Outbox, Settings, Sink, Slot, Verdict,
};

use super::{eventually, unique};

/// Long enough for anything that is going to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many pots are made under each conduct.
const POTS: usize = 100;

/// Which of a hundred is not taken where one is not.
const BAD: usize = 37;

/// How a destination behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    Works,
    /// It says, or something says, that it did not work.
    Fails,
    /// It says nothing.
    Hangs,
    /// Whatever the pot 37 of a hundred is in.
    RejectsOne,
    /// It, or what speaks to it, breaks down.
    Panics,
    /// There is nobody.
    IsAway,
}

/// What a sink sends to, seen from outside.
pub trait Destination {
    /// What it can be made to do beside working.
    const CONDUCTS: &[Conduct];

    /// Adds the sink that sends to it, under this name and for these labels.
    async fn added_to(&self, builder: Builder, name: &str, labels: &str) -> Builder;

    /// From now on.
    async fn behave(&self, conduct: Conduct);

    /// The pots it has, each as often as it was given it.
    fn pots(&self) -> Vec<usize>;
}

/// Whether so numbered a pot is the bad one.
pub fn is_bad(pot: usize) -> bool {
    pot % POTS == BAD
}

/// Makes a destination do all it can do wrong, and then work again. However it behaves, a sibling of the sink is given all there
/// is meanwhile; and once it works, it is given what it is owed. What it has rejected is dead, and nothing else is.
pub async fn conforms<D: Destination>(mongodb: &str, destination: &D) {
    let pots = Pots::new(mongodb).await;
    let sibling = Plain::default();
    let builder = pots.builder();
    let builder = destination.added_to(builder, "tried", &pots.labels()).await;
    let builder = sibling.added_to(builder, "sibling", &pots.labels()).await;
    let outbox = builder.open().await.expect("an outbox");
    let mut made = 0;
    let rounds = [Conduct::Works].iter().chain(D::CONDUCTS);
    for &conduct in rounds {
        println!("{conduct:?}");
        destination.behave(conduct).await;
        let numbers = made..made + POTS;
        made += POTS;
        pots.make(&outbox, numbers.clone()).await;
        // Before the other works again, so it waits for nothing of it.
        all(&sibling, numbers.clone(), "the sibling has all").await;
        misbehaved(destination, &pots, conduct, numbers.clone()).await;
        destination.behave(Conduct::Works).await;
        let taken = numbers.filter(|&number| conduct != Conduct::RejectsOne || !is_bad(number));
        all(destination, taken, "in the end it has all, too").await;
        pots.owed("in the end nothing is owed", |owed| owed == 0)
            .await;
    }
    let rejected = rounds_of(D::CONDUCTS, Conduct::RejectsOne);
    let rejected: Vec<Dead> = rejected
        .map(|round| Dead::of("tried", round * POTS + BAD, 1))
        .collect();
    assert_eq!(pots.dead().await, rejected);
    let mut taken = sibling.pots();
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..made), "each once to the sibling");
    outbox.shutdown().await;
}

/// What is seen of a conduct while it lasts.
async fn misbehaved<D: Destination>(
    destination: &D,
    pots: &Pots,
    conduct: Conduct,
    numbers: std::ops::Range<usize>,
) {
    let owed = match conduct {
        Conduct::Works => return,
        Conduct::RejectsOne => {
            let good = numbers.filter(|&number| !is_bad(number));
            all(destination, good, "all but one are taken").await;
            0
        }
        _ => POTS as u64,
    };
    pots.owed("what was not taken is owed", |count| count == owed)
        .await;
}

/// In which rounds it behaves like this; first it works.
fn rounds_of(conducts: &[Conduct], conduct: Conduct) -> impl Iterator<Item = usize> {
    let rounds = conducts.iter().zip(1..);
    rounds.filter_map(move |(&other, round)| (other == conduct).then_some(round))
}

async fn all<D: Destination>(
    destination: &D,
    numbers: impl IntoIterator<Item = usize>,
    what: &str,
) {
    let numbers: HashSet<usize> = numbers.into_iter().collect();
    eventually(PATIENCE, what, async || {
        let pots: HashSet<usize> = destination.pots().into_iter().collect();
        numbers.is_subset(&pots)
    })
    .await;
}

/// A component of a test's own, `<unique>.pots`, without a broker, and what one looks at in it.
pub struct Pots {
    database: Database,
    namespace: String,
    pub component: Component,
    pub settings: Settings,
}

impl Pots {
    pub async fn new(mongodb: &str) -> Self {
        let client = Client::with_uri_str(mongodb).await.expect("a client");
        let namespace = unique("tea");
        Self {
            database: client.database(&namespace),
            component: Component::new(&namespace, "pots").labels(Label::system()),
            settings: Settings {
                interval: Duration::from_millis(100),
                slot: Some(Slot::WHOLE),
                // What hangs is to be seen within the test.
                sink_timeout: Duration::from_millis(500),
                ..Settings::default()
            },
            namespace,
        }
    }

    pub fn builder(&self) -> Builder {
        Outbox::builder(
            &self.database,
            self.component.clone(),
            self.settings.clone(),
        )
    }

    /// A pattern of all its labels.
    pub fn labels(&self) -> String {
        format!("{}_pots.*", self.namespace)
    }

    /// Makes pots whose `_id` is their number.
    pub async fn make(&self, outbox: &Outbox, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let pot = doc! { "_id": number as i64 };
            outbox.create(pot, Document::new()).await.expect("a pot");
        }
    }

    /// Rows of such pots as a writer that died left them, with a text of so many letters.
    pub async fn seed(&self, letters: impl IntoIterator<Item = usize>) {
        let now = DateTime::now().timestamp_millis();
        let rows = letters.into_iter().enumerate().map(|(number, letters)| {
            let state = doc! { "_id": number as i64, "text": "x".repeat(letters) };
            doc! {
                "_id": bson::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes()),
                "lane": (number % 128) as i32,
                "published": false,
                "pending": now,
                "event": { "origin": null, "state": state, "trailers": null, "input": null },
            }
        });
        let rows: Vec<Document> = rows.collect();
        self.rows().insert_many(rows).await.expect("rows");
    }

    /// What is dead, by its number.
    pub async fn dead(&self) -> Vec<Dead> {
        let name = format!("{}_pots_outbox_deliveries", self.namespace);
        let all: Collection<Document> = self.database.collection(&name);
        let dead = all.find(doc! { "state": "dead" }).await.expect("a cursor");
        let dead: Vec<Document> = dead.try_collect().await.expect("what is dead");
        let mut dead: Vec<Dead> = dead.iter().map(Dead::read).collect();
        dead.sort_by_key(|dead| dead.pot);
        dead
    }

    /// Where it stands which sinks are paused.
    pub fn sinks(&self) -> Collection<Document> {
        self.database.collection("outbox_sinks")
    }

    fn rows(&self) -> Collection<Document> {
        let name = format!("{}_pots_outbox", self.namespace);
        self.database.collection(&name)
    }

    /// Waits until so many rows are owed to someone.
    pub async fn owed(&self, what: &str, is_right: impl Fn(u64) -> bool) {
        let rows = self.rows();
        eventually(PATIENCE, what, async || {
            let owed = rows.count_documents(doc! { "published": false }).await;
            owed.is_ok_and(&is_right)
        })
        .await;
    }
}

/// A message that was given up.
#[derive(Debug, PartialEq, Eq)]
pub struct Dead {
    sink: String,
    pot: usize,
    attempts: i32,
}

impl Dead {
    pub fn of(sink: &str, pot: usize, attempts: i32) -> Self {
        Self {
            sink: sink.into(),
            pot,
            attempts,
        }
    }

    fn read(delivery: &Document) -> Self {
        let row = delivery.get_document("row").expect("a copy of the row");
        let state = row
            .get_document("event")
            .and_then(|event| event.get_document("state"));
        let pot = state.expect("a state").get_i64("_id").expect("a number");
        let sink = delivery.get_str("sink").expect("a sink");
        let attempts = delivery.get_i32("attempts").expect("attempts");
        Self::of(sink, usize::try_from(pot).expect("of a pot"), attempts)
    }
}

/// A sink of the test's own, and its destination at once.
#[derive(Clone, Default)]
pub struct Plain {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    conduct: Mutex<Option<Conduct>>,
    pots: Mutex<Vec<usize>>,
}

impl Destination for Plain {
    const CONDUCTS: &[Conduct] = &[
        Conduct::Fails,
        Conduct::Hangs,
        Conduct::RejectsOne,
        Conduct::Panics,
        Conduct::IsAway,
    ];

    async fn added_to(&self, builder: Builder, name: &str, labels: &str) -> Builder {
        builder.sink(name, [labels], self.clone())
    }

    async fn behave(&self, conduct: Conduct) {
        *self.shared.conduct.lock().unwrap() = Some(conduct);
    }

    fn pots(&self) -> Vec<usize> {
        self.shared.pots.lock().unwrap().clone()
    }
}

impl Sink for Plain {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let conduct = *self.shared.conduct.lock().unwrap();
        let pots: Vec<usize> = batch.iter().map(number).collect();
        match conduct.unwrap_or(Conduct::Works) {
            Conduct::Fails => return Err("the door is shut".into()),
            Conduct::Hangs => std::future::pending().await,
            Conduct::RejectsOne if pots.iter().any(|&pot| is_bad(pot)) => {
                return Ok(vec![Verdict::Rejected("not this one".into()); pots.len()]);
            }
            Conduct::Panics => panic!("a defect of the sink"),
            Conduct::IsAway => return Err(toa_outbox::Unreachable::new("nobody is there").into()),
            Conduct::Works | Conduct::RejectsOne => {}
        }
        self.shared.pots.lock().unwrap().extend(pots);
        Ok(vec![Verdict::Accepted; batch.len()])
    }
}

fn number(message: &Message) -> usize {
    let number = message.entity().as_i64().expect("a number");
    usize::try_from(number).expect("of a pot")
}
