//! Sidecars that are killed and stopped at the worst moments, next to a destination that does what it likes.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use bson::{Document, doc};
use rustix::process::Signal;

use crate::{
    process::{PATIENCE, Sidecar},
    support::{Asked, Hook, Reply, eventually},
    town::Town,
};

/// How long it lasts.
fn length() -> Duration {
    match std::env::var_os("SOAK") {
        Some(_) => Duration::from_secs(180),
        None => Duration::from_secs(15),
    }
}

/// What becomes of each request in turn.
fn fortune(turn: usize) -> Reply {
    match turn % 13 {
        1 => Reply::status(500),
        3 => Reply::with(503, "retry-after", "1"),
        5 => Reply::Late(Duration::from_millis(1500), Box::new(Reply::status(204))),
        7 => Reply::Reset,
        9 => Reply::Half(200),
        11 => Reply::status(404),
        _ => Reply::status(204),
    }
}

fn start(town: &Town, config: &Path) -> Sidecar {
    let mut settings = town.settings();
    settings.push(("CONFIG", config.display().to_string()));
    Sidecar::start(&settings)
}

fn contains(asked: &[Asked], id: &str) -> bool {
    asked.iter().any(|asked| asked.text().contains(id))
}

#[tokio::test]
async fn nothing_is_lost_and_what_is_given_up_is_what_was_rejected() {
    let town = Town::shared().await;
    let created = town.consumer().await;
    let server = Hook::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("x.toml");
    let sink = format!(
        "[[sink]]\nname = \"hook\"\nkind = \"http\"\nlabels = [\"*.created\"]\nurl = \"{}\"\n\
         secret = \"of the tea pots, and long\"\ntimeout = 1000\nattempts = 1000000\nsafety = false\n",
        server.url("/pots")
    );
    std::fs::write(&config, sink).unwrap();
    let turns = AtomicUsize::new(0);
    server.answers(move |asked| match asked.text().contains("poison") {
        true => Reply::status(400),
        false => fortune(turns.fetch_add(1, Relaxed)),
    });
    let mut sidecars = [start(&town, &config), start(&town, &config)];
    let (mut ids, mut poison) = (Vec::new(), BTreeSet::new());
    let until = Instant::now() + length();
    for turn in 0.. {
        if Instant::now() > until {
            break;
        }
        ids.extend(town.write(20).await);
        if turn % 10 == 0 {
            let (id, row) = crate::town::row(doc! { "material": "poison" });
            town.rows().insert_one(row).await.unwrap();
            poison.insert(id);
        }
        // The pace of the writer, and what falls upon whom.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let which = turn % 2;
        match turn % 30 {
            9 | 24 => {
                sidecars[which].signal(Signal::KILL);
                sidecars[which] = start(&town, &config);
            }
            14 => sidecars[which].signal(Signal::STOP),
            29 => sidecars
                .iter()
                .for_each(|sidecar| sidecar.signal(Signal::CONT)),
            _ => {}
        }
    }
    sidecars
        .iter()
        .for_each(|sidecar| sidecar.signal(Signal::CONT));
    // What failed often waits for minutes, and what a dead process had claimed for one.
    server.answers(|asked| match asked.text().contains("poison") {
        true => Reply::status(400),
        false => Reply::status(204),
    });
    eventually(
        PATIENCE * 2 + length() * 2,
        "every row is marked",
        async || town.unpublished().await == 0,
    )
    .await;
    created.wait_for(ids.len() + poison.len(), PATIENCE).await;
    let taken = server.answered(204);
    let lost: Vec<&String> = ids.iter().filter(|id| !contains(&taken, id)).collect();
    assert!(
        lost.is_empty(),
        "{} of {} lost: {lost:?}",
        lost.len(),
        ids.len()
    );
    let deliveries = format!("{}_outbox_deliveries", town.pots);
    let deliveries = town.database.collection::<Document>(&deliveries);
    let others = doc! { "$or": [{ "state": { "$ne": "dead" } }, { "row.event.state.material": { "$ne": "poison" } }] };
    eventually(PATIENCE, "nothing else is known of", async || {
        deliveries.count_documents(others.clone()).await.unwrap() == 0
    })
    .await;
    assert_eq!(
        deliveries.count_documents(doc! {}).await.unwrap(),
        poison.len() as u64
    );
    for sidecar in sidecars {
        assert!(sidecar.stop().await.success());
    }
}
