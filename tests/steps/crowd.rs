//! Many pots, or many hands on one.

use bson::{Bson, Document, doc};
use cucumber::{then, when};
use futures::future::join_all;
use toa_outbox::Outbox;

use super::{change::of, world::Tea};

#[when(regex = r"^(\d+) pots are created by (\d+) tasks?$")]
async fn create_many(w: &mut Tea, count: usize, tasks: usize) {
    let service = w.service().await;
    create_by(w, count, &vec![service; tasks]).await;
}

#[when(regex = r"^each service creates (\d+) pots$")]
async fn create_by_each(w: &mut Tea, count: usize) {
    let services = w.services.clone();
    create_by(w, count * services.len(), &services).await;
}

#[then(regex = r"^(\d+) pots are created, one by each service$")]
async fn create_one_by_each(w: &mut Tea, count: usize) {
    assert_eq!(w.services.len(), count);
    create_by_each(w, 1).await;
}

/// Shares the work among tasks with a service each.
async fn create_by(w: &mut Tea, count: usize, services: &[Outbox]) {
    let pots: Vec<String> = (0..count).map(|number| format!("pot-{number}")).collect();
    let shares = pots.chunks(count.div_ceil(services.len())).zip(services);
    let tasks = shares.map(|(share, service)| {
        let (share, service) = (share.to_vec(), service.clone());
        tokio::spawn(async move {
            for pot in share {
                service.create(of(&pot, doc! {}), Bson::Null).await.unwrap();
            }
        })
    });
    join_all(tasks)
        .await
        .into_iter()
        .for_each(|task| task.unwrap());
    w.pots = pots;
}

#[when(
    regex = r#"^(\d+) tasks at once each add 1 to the temperature of the pot "(\w+)" by (transit|assign)$"#
)]
async fn warm(w: &mut Tea, tasks: usize, pot: String, change: String) {
    let service = w.service().await;
    let warmers = (0..tasks).map(|_| {
        let (service, pot, transit) = (service.clone(), pot.clone(), change == "transit");
        tokio::spawn(async move {
            if transit {
                warm_by_transit(service, pot).await
            } else {
                warm_by_assign(service, pot).await
            }
        })
    });
    join_all(warmers)
        .await
        .into_iter()
        .for_each(|task| task.unwrap());
}

async fn warm_by_transit(service: Outbox, pot: String) {
    let warmer = |state: &mut Document, _: &mut Document| {
        let temperature = state.get_i32("temperature").unwrap();
        state.insert("temperature", temperature + 1);
        Ok(())
    };
    service.transit(pot, Bson::Null, warmer).await.unwrap();
}

async fn warm_by_assign(service: Outbox, pot: String) {
    let update = doc! { "$inc": { "temperature": 1 } };
    service
        .assign(doc! { "_id": pot }, update, Bson::Null)
        .await
        .unwrap();
}
