//! What is counted while rows go their way, and when they do not.

use bson::{Document, doc};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use toa_outbox::{BoxError, Message, Outbox, Sink, Verdict};

use crate::{
    load::{breakable, commit, is_alone},
    rig::{PATIENCE, Rig},
    support::eventually,
};

/// The value of a metric, with its labels as they are written; none if it is not there.
fn value(metrics: &PrometheusHandle, key: &str) -> Option<f64> {
    let text = metrics.render();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_of_rows_is_counted() {
    // The recorder is the process's.
    if !is_alone("metrics::what_becomes_of_rows_is_counted") {
        return;
    }
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    let rabbit = breakable().await;
    let mut rig = Rig::shared().await;
    rig.settings.amqp = vec![rabbit.uri()];
    let of = format!("component=\"{}.pots\",sink=\"amqp\"", rig.namespace());
    let is = async |name: &str, labels: &str, expected: f64| {
        let key = format!("toa_outbox_{name}{{{of}{labels}}}");
        eventually(PATIENCE, &key, async || {
            value(&metrics, &key) == Some(expected)
        })
        .await;
    };
    let some = async |name: &str, labels: &str| {
        let key = format!("toa_outbox_{name}{{{of}{labels}}}");
        eventually(PATIENCE, &key, async || value(&metrics, &key) > Some(0.0)).await;
    };
    let link = async |name: &str, expected: f64| {
        let key = format!("toa_outbox_{name}");
        eventually(PATIENCE, &key, async || {
            value(&metrics, &key) == Some(expected)
        })
        .await;
    };

    let pots = rig.open().await;
    link("connected", 1.0).await;
    commit(&pots, 50, |_| doc! {}).await;
    rig.settled().await;
    is("published_total", ",label=\"created\"", 50.0).await;
    is("marked_total", "", 50.0).await;
    is("commit_to_confirm_seconds_count", "", 50.0).await;
    is("in_flight_rows", "", 0.0).await;
    is("owned_lanes", "", 128.0).await;
    is("malformed_rows_total", "", 0.0).await;
    link("publish_latency_seconds_count", 50.0).await;

    rig.seed(1, |row, _| drop(row.insert("event", "none")))
        .await;
    some("malformed_rows_total", "").await;

    rabbit.block().await;
    commit(&pots, 1, |_| doc! {}).await;
    link("blocked", 1.0).await;
    is("in_flight_rows", "", 1.0).await;
    rabbit.kill().await;
    link("connected", 0.0).await;
    link("blocked", 0.0).await;
    let interrupted = ",label=\"created\",kind=\"interrupted\"";
    some("failed_total", interrupted).await;
    rabbit.start_again().await;
    is("published_total", ",label=\"created\"", 51.0).await;
    pots.shutdown().await;
}

/// What a sink that is paused is owed, and for how long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_paused_sink_is_owed_is_told() {
    // The recorder is the process's.
    if !is_alone("metrics::what_a_paused_sink_is_owed_is_told") {
        return;
    }
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    let rig = Rig::shared().await;
    let registry = rig.database.collection::<Document>("outbox_sinks");
    let now = bson::DateTime::now();
    let paused = doc! { "circuit": "count", "reason": "a count", "since": now };
    let paused = doc! { "_id": { "sink": "till" }, "paused": paused };
    registry.insert_one(paused).await.unwrap();
    // One that nobody has any more.
    let gone = doc! { "collection": rig.rows().name(), "sink": "gone" };
    let routes = vec![doc! { "route": "gone/created", "at": bson::DateTime::from_millis(0) }];
    let gone = doc! { "_id": gone, "kind": "sink", "mode": "lanes", "since": now, "routes": routes, "leaving": [] };
    registry.insert_one(gone).await.unwrap();
    let builder = Outbox::builder(&rig.database, rig.component.clone(), rig.settings.clone());
    let pots = builder
        .sink("till", ["*.created"], Shut)
        .open()
        .await
        .unwrap();
    commit(&pots, 20, |_| doc! {}).await;
    let is = async |name: &str, sink: &str, expected: &dyn Fn(f64) -> bool| {
        let key = format!(
            "toa_outbox_sink_{name}{{component=\"{}.pots\",sink=\"{sink}\"}}",
            rig.namespace()
        );
        eventually(PATIENCE, &key, async || {
            value(&metrics, &key).is_some_and(expected)
        })
        .await;
    };
    is("owed_rows", "till", &|rows| rows == 20.0).await;
    is("oldest_owed_seconds", "till", &|age| age > 0.0).await;
    is("paused", "till", &|paused| paused == 1.0).await;
    is("unserved", "till", &|unserved| unserved == 0.0).await;
    is("unserved", "gone", &|unserved| unserved == 1.0).await;
    is("owed_rows", "gone", &|rows| rows == 20.0).await;
    is("dead_deliveries", "till", &|dead| dead == 0.0).await;
    pots.shutdown().await;
}

/// Is never asked.
struct Shut;

impl Sink for Shut {
    async fn deliver(&self, _: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        Err("it is shut".into())
    }
}
