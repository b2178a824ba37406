use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use std::net::SocketAddr;

use super::*;
use crate::metrics::prometheus::recorder;

/// A server, and what it knows.
struct Stage {
    address: SocketAddr,
    health: Health,
    broker: watch::Sender<Broker>,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

impl Stage {
    async fn start() -> Self {
        let away = Broker::Away {
            since: Instant::now(),
            reason: "not connected yet".into(),
        };
        let (broker, seen) = watch::channel(away);
        let health = Health::new(Some(seen));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let recorder = recorder().unwrap();
        metrics::with_local_recorder(&recorder, || crate::metrics::members("tea", 3));
        let stop = CancellationToken::new();
        let served = serve(listener, health.clone(), recorder.handle(), stop.clone());
        Self {
            address,
            health,
            broker,
            stop,
            served: tokio::spawn(served),
        }
    }

    /// All is well with both servers.
    async fn well() -> Self {
        let stage = Self::start().await;
        stage.broker.send_replace(Broker::Up);
        stage.health.mongodb(Ok(()));
        stage
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\n")).await
    }

    /// The status and everything that came.
    async fn ask(&self, begin: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{begin}Host: here\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }
}

#[tokio::test]
async fn it_is_alive_and_not_ready_before_anything_is_known() {
    let stage = Stage::start().await;
    assert_eq!(stage.get("/livez").await.0, 200);
    let (status, answer) = stage.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(
        answer.contains("broker: NOT OK: away for 0 s: not connected yet\n"),
        "{answer}"
    );
    assert!(
        answer.contains("mongodb: NOT OK: silent for 0 s: not asked yet\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn it_is_ready_when_both_take_what_is_sent_whatever_it_owns() {
    let stage = Stage::well().await;
    stage.health.lanes(Share::None("a spare".into()));
    let (status, answer) = stage.get("/readyz").await;
    assert_eq!(status, 200);
    assert!(
        answer.contains("\r\n\r\nbroker: ok: connected\nmongodb: ok: answers\n"),
        "{answer}"
    );
    assert!(answer.ends_with("lanes: ok: none: a spare\n"), "{answer}");
    assert!(
        answer.contains("no-store") && answer.contains("text/plain"),
        "{answer}"
    );
}

#[tokio::test]
async fn it_is_not_ready_while_the_broker_or_mongodb_takes_nothing_or_it_drains() {
    let stage = Stage::well().await;
    let away = Broker::Away {
        since: Instant::now() - Duration::from_secs(70),
        reason: "refused".into(),
    };
    let blocked = Broker::Blocked {
        reason: "low on memory".into(),
    };
    for (broker, says) in [
        (away, "away for 70 s: refused"),
        (blocked, "blocked: low on memory"),
    ] {
        stage.broker.send_replace(broker);
        let (status, answer) = stage.get("/readyz").await;
        assert!(status == 503 && answer.contains(says), "{answer}");
    }
    stage.broker.send_replace(Broker::Up);
    stage.health.mongodb(Err("no primary".into()));
    let (status, answer) = stage.get("/readyz").await;
    assert!(status == 503 && answer.contains("no primary"), "{answer}");
    stage.health.mongodb(Ok(()));
    assert_eq!(stage.get("/readyz").await.0, 200);
    stage.health.draining();
    let (status, answer) = stage.get("/readyz").await;
    assert!(status == 503 && answer.contains("draining"), "{answer}");
    assert_eq!(stage.get("/livez").await.0, 200);
}

#[tokio::test]
async fn it_is_not_alive_when_a_loop_died_which_is_named() {
    let stage = Stage::well().await;
    stage.health.died("the pump");
    stage.health.died("the marker");
    let (status, answer) = stage.get("/livez").await;
    assert!(
        status == 500 && answer.contains("the pump died"),
        "{answer}"
    );
}

#[tokio::test]
async fn checks_are_json_for_whoever_accepts_it() {
    let stage = Stage::well().await;
    stage.health.lanes(Share::Owns(64));
    let (_, answer) = stage
        .ask("GET /readyz HTTP/1.1\r\nAccept: application/json\r\n")
        .await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: application/json"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["ok"], true);
    assert_eq!(body["checks"]["lanes"]["says"], "64 of 128");
    assert_eq!(body["checks"]["mongodb"]["ok"], true);
}

#[tokio::test]
async fn metrics_are_text_and_anything_else_is_not_found() {
    let stage = Stage::well().await;
    let (status, answer) = stage.get("/metrics").await;
    assert!(
        status == 200 && answer.contains("version=0.0.4"),
        "{answer}"
    );
    assert!(
        answer.contains("toa_outbox_members{group=\"tea\"} 3\n"),
        "{answer}"
    );
    let (status, answer) = stage.get("/").await;
    assert!(status == 200 && answer.contains("/readyz"), "{answer}");
    assert_eq!(stage.get("/metrics/more").await.0, 404);
    assert_eq!(stage.ask("POST /livez HTTP/1.1\r\n").await.0, 405);
}

/// Neither a connection that is kept nor one that never finishes asking holds it up.
#[tokio::test]
async fn it_stops_when_it_is_told_to() {
    let stage = Stage::well().await;
    let mut half = TcpStream::connect(stage.address).await.unwrap();
    half.write_all(b"GET /livez HTT").await.unwrap();
    assert_eq!(stage.get("/livez").await.0, 200);
    stage.stop.cancel();
    let served = tokio::time::timeout(Duration::from_secs(10), stage.served).await;
    served.unwrap().unwrap();
}
