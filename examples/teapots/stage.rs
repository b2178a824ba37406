//! Starts the service, consumes its events, and makes things go wrong.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use bson::{Bson, Document, doc};
use futures::{StreamExt, TryStreamExt};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use lapin::{options::*, types::FieldTable};
use mongodb::Collection;
use support::{Rabbit, ReplicaSet};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// How many changes are made in all.
const CHANGES: u64 = 5_000;

/// How long the broker is away.
const AWAY: Duration = Duration::from_secs(5);

/// When what is still missing counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

const LABELS: [&str; 4] = ["created", "updated", "deleted", "boiled"];

type Failure = Box<dyn Error>;

/// Microseconds since the epoch.
pub fn micros() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

/// Everything that was seen.
#[derive(Default)]
struct Seen {
    /// When the service said that a change had committed, by pot and version.
    committed: HashMap<(String, i64), i64>,
    /// How often a message arrived, by row and label.
    delivered: HashMap<(String, String), u64>,
    /// When a change first arrived, by pot and version.
    arrived: HashMap<(String, i64), i64>,
}

pub async fn play() -> Result<(), Failure> {
    let bar = ProgressBar::new(CHANGES);
    let style = "{elapsed:>4} [{bar:40}] {pos}/{len} delivered  {msg}";
    bar.set_style(ProgressStyle::with_template(style)?);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.set_message("starting MongoDB and RabbitMQ");
    let servers = Servers::start().await;
    let rows = servers.rows().await?;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let consumer = tokio::spawn(consume(servers.amqp.clone(), seen.clone(), bar.clone()));

    bar.set_message("all is well");
    let mut service = servers.service(&seen)?;
    committed(&rows, CHANGES / 3).await?;
    let calm_until = micros();

    bar.set_message("the service is killed and started again");
    service.kill().await?;
    service = servers.service(&seen)?;
    committed(&rows, CHANGES * 2 / 3).await?;

    bar.set_message("the broker is away");
    servers.stop_broker().await?;
    tokio::time::sleep(AWAY).await;
    servers.start_broker().await?;
    let (back, waiting) = (Instant::now(), ids(&rows).await?);
    bar.set_message("the broker is back");
    everything(&seen, &waiting).await;
    let recovery = back.elapsed();

    committed(&rows, CHANGES).await?;
    bar.set_message("the service is asked to stop");
    drop(service.stdin.take());
    service.wait().await?;
    let all = ids(&rows).await?;
    everything(&seen, &all).await;
    consumer.abort();
    bar.finish_and_clear();
    let seen = seen.lock().unwrap();
    report(&seen, &all, calm_until, recovery)
}

/// The servers: those of the compose file if the Makefile started them, else private ones.
struct Servers {
    mongodb: String,
    amqp: String,
    local: Option<(ReplicaSet, Rabbit)>,
}

impl Servers {
    async fn start() -> Self {
        let given = |name| std::env::var(name).ok();
        match (given("TOA_OUTBOX_MONGODB"), given("TOA_OUTBOX_AMQP")) {
            (Some(mongodb), Some(amqp)) => Self {
                mongodb,
                amqp,
                local: None,
            },
            _ => {
                let (mongo, rabbit) = tokio::join!(ReplicaSet::start(1), Rabbit::start());
                Self {
                    mongodb: mongo.uri(),
                    amqp: rabbit.uri(),
                    local: Some((mongo, rabbit)),
                }
            }
        }
    }

    async fn stop_broker(&self) -> Result<(), Failure> {
        match &self.local {
            Some((_, rabbit)) => rabbit.stop().await,
            None => compose("stop").await?,
        }
        Ok(())
    }

    async fn start_broker(&self) -> Result<(), Failure> {
        match &self.local {
            Some((_, rabbit)) => rabbit.start_again().await,
            None => compose("start").await?,
        }
        Ok(())
    }

    async fn rows(&self) -> Result<Collection<Document>, Failure> {
        let database = mongodb::Client::with_uri_str(&self.mongodb)
            .await?
            .database("teapots");
        database.drop().await?;
        Ok(database.collection("tea_pots_outbox"))
    }

    /// This program again, as the service.
    fn service(&self, seen: &Arc<Mutex<Seen>>) -> Result<Child, Failure> {
        let mut service = Command::new(std::env::current_exe()?)
            .arg("service")
            .env("TOA_OUTBOX_MONGODB", &self.mongodb)
            .env("TOA_OUTBOX_AMQP", &self.amqp)
            .env("TOA_OUTBOX_INTERVAL", "1000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let told = service
            .stdout
            .take()
            .ok_or("the service has no standard output")?;
        tokio::spawn(listen(told, seen.clone()));
        Ok(service)
    }
}

async fn compose(command: &str) -> Result<(), Failure> {
    let done = Command::new("docker")
        .args(["compose", command, "rabbitmq"])
        .status()
        .await?;
    done.success()
        .then_some(())
        .ok_or_else(|| format!("docker compose {command} failed").into())
}

/// Writes down what the service says it has committed.
async fn listen(told: tokio::process::ChildStdout, seen: Arc<Mutex<Seen>>) {
    let mut lines = BufReader::new(told).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut words = line.split(' ');
        if let (Some(pot), Some(version), Some(at)) = (words.next(), words.next(), words.next())
            && let (Ok(version), Ok(at)) = (version.parse(), at.parse())
        {
            seen.lock()
                .unwrap()
                .committed
                .insert((pot.to_owned(), version), at);
        }
    }
}

/// Consumes until it is aborted, through every loss of the broker.
async fn consume(amqp: String, seen: Arc<Mutex<Seen>>, bar: ProgressBar) {
    loop {
        // The broker is away for a while; there is nobody to tell.
        let _ = consume_once(&amqp, &seen, &bar).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn consume_once(
    amqp: &str,
    seen: &Mutex<Seen>,
    bar: &ProgressBar,
) -> Result<(), lapin::Error> {
    let connection = lapin::Connection::connect(amqp, Default::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    let none = FieldTable::default;
    channel
        .queue_declare("teapots.demo".into(), durable, none())
        .await?;
    for label in LABELS {
        let exchange = format!("tea.pots.{label}");
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let fanout = lapin::ExchangeKind::Fanout;
        channel
            .exchange_declare(exchange.as_str().into(), fanout, durable, none())
            .await?;
        let bind = QueueBindOptions::default();
        channel
            .queue_bind(
                "teapots.demo".into(),
                exchange.into(),
                "".into(),
                bind,
                none(),
            )
            .await?;
    }
    let options = BasicConsumeOptions::default();
    let mut messages = channel
        .basic_consume("teapots.demo".into(), "demo".into(), options, none())
        .await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        let changes = book(&mut seen.lock().unwrap(), &message);
        bar.set_position(changes.min(CHANGES as usize) as u64);
        // Only now, so that what is on its way when the broker goes is sent again.
        message.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

/// Writes down a message; how many changes have arrived by now.
fn book(seen: &mut Seen, message: &lapin::message::Delivery) -> usize {
    let text = |value: &Option<lapin::types::ShortString>| {
        value.as_ref().map(ToString::to_string).unwrap_or_default()
    };
    let (row, label) = (
        text(message.properties.message_id()),
        text(message.properties.kind()),
    );
    *seen.delivered.entry((row, label.clone())).or_default() += 1;
    if label != "boiled"
        && let Ok(pot) = serde_json::from_slice::<serde_json::Value>(&message.data)
    {
        let change = (
            pot["_id"].as_str().unwrap_or_default().to_owned(),
            pot["_version"].as_i64().unwrap_or_default(),
        );
        seen.arrived.entry(change).or_insert_with(micros);
    }
    seen.arrived.len()
}

/// Waits until so many rows have committed.
async fn committed(rows: &Collection<Document>, enough: u64) -> Result<(), Failure> {
    while rows.count_documents(doc! {}).await? < enough {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The rows that have committed: the truth everything is measured against.
async fn ids(rows: &Collection<Document>) -> Result<HashSet<String>, Failure> {
    let found = rows.find(doc! {}).projection(doc! { "_id": 1 }).await?;
    let found: Vec<Document> = found.try_collect().await?;
    let id = |row: &Document| match row.get("_id") {
        Some(Bson::Binary(id)) => id.to_uuid().ok().map(|id| id.to_string()),
        _ => None,
    };
    Ok(found.iter().filter_map(id).collect())
}

/// Waits until each of these rows has arrived under one of the labels of every change.
async fn everything(seen: &Mutex<Seen>, rows: &HashSet<String>) {
    let until = Instant::now() + PATIENCE;
    while !missing(&seen.lock().unwrap(), rows).is_empty() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn missing(seen: &Seen, rows: &HashSet<String>) -> HashSet<String> {
    let arrived = seen.delivered.keys().filter(|(_, label)| label != "boiled");
    let arrived: HashSet<&String> = arrived.map(|(row, _)| row).collect();
    rows.iter()
        .filter(|row| !arrived.contains(row))
        .cloned()
        .collect()
}

fn report(
    seen: &Seen,
    rows: &HashSet<String>,
    calm_until: i64,
    recovery: Duration,
) -> Result<(), Failure> {
    let mut latency = Histogram::<u64>::new(3)?;
    for (change, committed) in seen.committed.iter().filter(|(_, at)| **at < calm_until) {
        if let Some(arrived) = seen.arrived.get(change) {
            latency.record((arrived - committed).max(1) as u64)?;
        }
    }
    let millis = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
    let lost = missing(seen, rows).len();
    let duplicates: u64 = seen.delivered.values().map(|times| times - 1).sum();
    println!("committed             {:>8} changes", rows.len());
    println!("delivered (distinct)  {:>8} messages", seen.delivered.len());
    println!("duplicates            {duplicates:>8}");
    println!("lost                  {lost:>8}");
    println!(
        "commit → consumer     {:>8.2} ms p50, {:.2} ms p99, while all was well",
        millis(0.5),
        millis(0.99)
    );
    println!(
        "recovery              {:>8.2} s after the broker came back",
        recovery.as_secs_f64()
    );
    if lost > 0 {
        return Err(format!("{lost} changes never arrived").into());
    }
    Ok(())
}
