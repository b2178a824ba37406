//! Many replicas on one machine that come and go at random while all of them write.

use std::time::Duration;

use libtest_mimic::Trial;
use rand::Rng;

use crate::{
    dose,
    stage::{Stage, assert_one_owner},
    trial,
};

pub fn tests() -> Vec<Trial> {
    vec![trial!(a_crowd_at_random)]
}

async fn a_crowd_at_random() {
    let (members, changes, length) = dose((6, 8, 20), (16, 20, 120));
    let mut stage = Stage::shared().await.unhurried();
    stage.interval = Duration::from_secs(2);
    let consumer = stage.consume().await;
    let (mut crew, mut gone) = (stage.start(members), Vec::new());
    stage.whole(&crew).await;
    let rate = 200 / members as u32;
    for replica in &mut crew {
        replica.write(rate).await;
    }
    let (mut killed, begun) = (0, tokio::time::Instant::now());
    for change in 0..changes {
        let next = begun + Duration::from_secs(length) * change / changes;
        tokio::time::sleep_until(next).await;
        let at = rand::rng().random_range(0..crew.len());
        if crew.len() < members || (crew.len() < members + 3 && rand::random()) {
            let mut one = stage.casting().start();
            one.write(rate).await;
            crew.push(one);
            continue;
        }
        let mut one = crew.swap_remove(at);
        if rand::random_bool(0.25) {
            killed += 1;
            one.kill().await;
        } else {
            one.stop().await;
        }
        gone.push(one);
    }
    tokio::time::sleep_until(begun + Duration::from_secs(length)).await;
    for replica in &mut crew {
        replica.write_no_more().await;
    }
    stage.whole(&crew).await;
    let repeated = stage.all_arrive(&consumer).await.len();
    let rows = stage.ids().await.len();
    println!(
        "{changes} joins and leaves among {members} in {length} s, {killed} of them killed: {rows} rows, {repeated} repeated"
    );
    // A process that is stopped in good order repeats nothing; one that is killed, what it had not marked yet.
    assert!(repeated <= killed * 2000, "{repeated}");
    assert!(rows > 50 * length as usize, "{rows}");
    crew.extend(gone);
    assert_one_owner(&crew);
}
