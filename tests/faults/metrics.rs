//! What is counted while rows go their way, and when they do not.

use bson::doc;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

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
