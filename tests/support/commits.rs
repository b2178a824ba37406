//! In which order rows were committed, and whether a log keeps to it.

use std::{collections::HashMap, time::Duration};

use bson::{Bson, Document};
use futures::TryStreamExt;
use mongodb::{Collection, change_stream::event::OperationType};
use tokio::{sync::watch, task::JoinHandle};
use uuid::Uuid;

/// The ids of rows in the order in which they are committed, as the server tells it, from when it was made.
pub struct Commits {
    order: watch::Receiver<Vec<String>>,
    following: JoinHandle<()>,
}

impl Commits {
    pub async fn of(rows: &Collection<Document>) -> Self {
        let mut stream = rows.watch().await.unwrap();
        let (tell, order) = watch::channel(Vec::new());
        let following = tokio::spawn(async move {
            while let Ok(Some(event)) = stream.try_next().await {
                if let Some(row) = event.full_document
                    && event.operation_type == OperationType::Insert
                {
                    tell.send_modify(|order| order.push(id(&row)));
                }
            }
        });
        Self { order, following }
    }

    /// Waits until so many have been committed.
    pub async fn all(mut self, count: usize, patience: Duration) -> Vec<String> {
        let all = self.order.wait_for(|order| order.len() >= count);
        let all = tokio::time::timeout(patience, all).await;
        let order = all.expect("all commits").unwrap().clone();
        self.following.abort();
        order
    }
}

fn id(row: &Document) -> String {
    match row.get("_id") {
        Some(Bson::Binary(binary)) => Uuid::from_slice(&binary.bytes).unwrap().to_string(),
        other => panic!("{other:?}"),
    }
}

/// By how many rows a log goes back, each time it does; everything else is the next one each time, and all of them are there.
pub fn jumps(log: &[String], order: &[String]) -> Vec<usize> {
    let place: HashMap<&String, usize> = order.iter().zip(0..).collect();
    let (mut jumps, mut next) = (Vec::new(), 0);
    for row in log {
        let at = place[row];
        assert!(at <= next, "{} rows were passed over", at - next);
        if at < next {
            jumps.push(next - at);
        }
        next = at + 1;
    }
    assert_eq!(next, order.len(), "complete");
    jumps
}
