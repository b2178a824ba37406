//! The addresses, and what is answered at each.

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::get,
};
use metrics_exporter_prometheus::PrometheusHandle;

use super::{
    Health,
    check::{Check, are_good, json, text},
};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// <https://prometheus.io/docs/instrumenting/exposition_formats/>
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const CONTENTS: &str = "\
toa-outbox
/livez    200 unless a loop died, and a restart is needed
/readyz   200 if the broker and MongoDB take what is sent
/metrics  for Prometheus
";

/// What the answers are made of.
#[derive(Clone)]
struct Known {
    health: Health,
    metrics: PrometheusHandle,
}

pub(super) fn router(health: Health, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/", get(async || typed(TEXT, CONTENTS)))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .fallback(async || (StatusCode::NOT_FOUND, typed(TEXT, CONTENTS)))
        .with_state(Known { health, metrics })
}

async fn livez(State(known): State<Known>, headers: HeaderMap) -> Response {
    answer(
        known.health.alive(),
        &headers,
        StatusCode::INTERNAL_SERVER_ERROR,
    )
}

async fn readyz(State(known): State<Known>, headers: HeaderMap) -> Response {
    answer(
        known.health.ready(),
        &headers,
        StatusCode::SERVICE_UNAVAILABLE,
    )
}

async fn metrics_text(State(known): State<Known>) -> Response {
    typed(METRICS, known.metrics.render())
}

fn answer(checks: Vec<Check>, headers: &HeaderMap, otherwise: StatusCode) -> Response {
    let status = match are_good(&checks) {
        true => StatusCode::OK,
        false => otherwise,
    };
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let body = match accepts.is_some_and(|accept| accept.contains(JSON)) {
        true => typed(JSON, json(&checks)),
        false => typed(TEXT, text(&checks)),
    };
    (status, body).into_response()
}

/// What is true now is not to be kept.
fn typed(content_type: &'static str, body: impl IntoResponse) -> Response {
    let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")];
    (headers, body).into_response()
}
