//! One process of the service: told by its environment what to be, and on its standard input what to do. What the
//! library tells of its lanes, it passes on, a line of JSON each.

use std::{io::BufRead, process::ExitCode, time::Duration};

use bson::doc;
use serde_json::{Map, Value};
use toa_outbox::{Amqp, Component, Label, Outbox, Settings};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

/// Environment: the namespace of the component.
pub const NAMESPACE: &str = "REPLICA_NAMESPACE";
/// Environment: how many replicas this process is.
pub const SEATS: &str = "REPLICA_SEATS";
/// Environment: the labels, space-separated.
pub const LABELS: &str = "REPLICA_LABELS";

pub fn is_one() -> bool {
    std::env::var_os(NAMESPACE).is_some()
}

#[tokio::main(worker_threads = 2)]
pub async fn run() -> ExitCode {
    tracing::subscriber::set_global_default(Teller).unwrap();
    let variable = |name| std::env::var(name).unwrap();
    let settings = Settings::from_env().unwrap();
    let mongodb = mongodb::Client::with_uri_str(settings.mongodb.as_ref().unwrap());
    let database = mongodb
        .await
        .unwrap()
        .database(settings.database.as_ref().unwrap());
    let labels = variable(LABELS);
    let component =
        Component::new(variable(NAMESPACE), "pots").labels(labels.split_whitespace().map(label));
    let amqp = Amqp::start(&settings).unwrap();
    let mut seats = Vec::new();
    for _ in 0..variable(SEATS).parse().unwrap() {
        let outbox = Outbox::open_with(&database, component.clone(), settings.clone(), &amqp);
        seats.push(outbox.await.unwrap());
    }
    let (rate, rates) = watch::channel(0);
    std::thread::spawn(move || listen(&rate));
    let writing = tokio::spawn(write(seats[0].clone(), rates));
    let mut term = signal(SignalKind::terminate()).unwrap();
    term.recv().await;
    writing.abort();
    let left = futures::future::join_all(seats.iter().map(Outbox::shutdown)).await;
    println!("{}", serde_json::json!({ "left": format!("{left:?}") }));
    ExitCode::SUCCESS
}

fn label(name: &str) -> Label {
    let system = Label::system()
        .into_iter()
        .find(|label| label.name() == name);
    system.unwrap_or_else(|| Label::new(name.to_owned()))
}

/// `write <rate>`: so many changes a second from now on. The end of the input is the end of the stage.
fn listen(rate: &watch::Sender<u32>) {
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap_or_default();
        match line.strip_prefix("write ") {
            Some(number) => rate.send_replace(number.parse().unwrap()),
            None => panic!("{line:?} is no order"),
        };
    }
    std::process::exit(3);
}

async fn write(pots: Outbox, mut rate: watch::Receiver<u32>) {
    let mut changes = JoinSet::new();
    loop {
        let now = *rate.borrow_and_update();
        if now == 0 {
            while changes.join_next().await.is_some() {}
            println!("{}", serde_json::json!({ "message": "writes no more" }));
            if rate.changed().await.is_err() {
                return;
            }
            continue;
        }
        let pots = pots.clone();
        changes.spawn(async move {
            // A commit that is in doubt shows in the collection, which is what is counted.
            if let Err(error) = pots.create(doc! { "material": "iron" }, doc! {}).await {
                tracing::warn!(target: "toa_outbox::slots", %error, "not written");
            }
        });
        // The rate is what was asked for.
        tokio::time::sleep(Duration::from_secs(1) / now).await;
    }
}

/// Passes on what concerns lanes.
struct Teller;

impl Subscriber for Teller {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let about_lanes = target.starts_with("toa_outbox::slots") || target.ends_with("handover");
        let most = if about_lanes {
            LevelFilter::DEBUG
        } else {
            LevelFilter::WARN
        };
        metadata.is_event() && target.starts_with("toa_outbox") && *metadata.level() <= most
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(Map::new());
        line.0
            .insert("level".into(), event.metadata().level().to_string().into());
        event.record(&mut line);
        println!("{}", Value::Object(line.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(Map<String, Value>);

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0
            .insert(field.name().into(), format!("{value:?}").into());
    }
}
