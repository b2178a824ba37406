//! The indexes of the outbox collection.

use std::time::Duration;

use bson::doc;
use cucumber::then;
use futures::TryStreamExt;
use mongodb::IndexModel;

use super::world::Tea;

async fn indexes(w: &Tea) -> Vec<IndexModel> {
    let indexes = w.rows().list_indexes().await.unwrap();
    indexes.try_collect().await.unwrap()
}

/// How long the server keeps a document after the date in `publishedAt`; none: for ever.
async fn expiry(w: &Tea) -> Option<Duration> {
    let expiring = |index: IndexModel| index.options.and_then(|options| options.expire_after);
    let mut expiries = indexes(w).await.into_iter().filter_map(|index| {
        let keys = index.keys.clone();
        expiring(index).map(|after| (keys, after))
    });
    let (keys, after) = expiries.next()?;
    assert_eq!(keys, doc! { "publishedAt": 1 });
    assert!(expiries.next().is_none(), "two of them");
    Some(after)
}

#[then("rows never expire")]
async fn never(w: &mut Tea) {
    assert_eq!(expiry(w).await, None);
}

#[then(regex = r"^rows expire (\d+) s after leaving$")]
async fn after(w: &mut Tea, seconds: u64) {
    assert_eq!(expiry(w).await, Some(Duration::from_secs(seconds)));
}

#[then("the outbox collection has its two indexes")]
async fn both(w: &mut Tea) {
    let keys: Vec<_> = indexes(w)
        .await
        .into_iter()
        .map(|index| index.keys)
        .collect();
    assert_eq!(keys.len(), 3, "with that of _id: {keys:?}");
    for expected in [
        doc! { "lane": 1, "partial": 1, "pending": 1 },
        doc! { "publishedAt": 1 },
    ] {
        assert!(keys.contains(&expected), "{keys:?}");
    }
}
