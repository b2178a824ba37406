//! Wall clocks that are wrong, and ones that jump. None of them is compared with another's.

use std::{fs, path::PathBuf};

use libtest_mimic::Trial;

use crate::{
    crew::Casting,
    stage::{PATIENCE, Stage, assert_one_owner},
    support::eventually,
    timeline, trial,
};

pub fn tests() -> Vec<Trial> {
    vec![
        trial!(wall_clocks_apart_change_nothing),
        trial!(a_wall_clock_that_runs_ahead_is_a_reason_to_doubt),
    ]
}

/// A wall clock of a process's own, which can be set.
struct Clock(PathBuf);

impl Clock {
    fn at(stage: &Stage, name: &str, offset: &str) -> Self {
        let file = std::env::temp_dir().join(format!("{}-{name}.clock", stage.namespace));
        let clock = Self(file);
        clock.set(offset);
        clock
    }

    fn set(&self, offset: &str) {
        // In one step: half a file would be another time.
        let next = self.0.with_extension("next");
        fs::write(&next, format!("{offset}\n")).unwrap();
        fs::rename(next, &self.0).unwrap();
    }

    fn of(&self, casting: Casting) -> Casting {
        let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
        assert!(
            fs::exists(library).unwrap(),
            "install.sh brings libfaketime"
        );
        casting
            .with("LD_PRELOAD", library)
            .with("FAKETIME_TIMESTAMP_FILE", self.0.display())
            .with("FAKETIME_NO_CACHE", 1)
            .with("DONT_FAKE_MONOTONIC", 1)
            .with("FAKETIME_DONT_FAKE_MONOTONIC", 1)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

async fn wall_clocks_apart_change_nothing() {
    let stage = Stage::shared().await.unhurried();
    let consumer = stage.consume().await;
    let (fast, slow) = (
        Clock::at(&stage, "fast", "+60s"),
        Clock::at(&stage, "slow", "-60s"),
    );
    let mut crew = vec![
        fast.of(stage.casting()).start(),
        slow.of(stage.casting()).start(),
        stage.casting().start(),
    ];
    stage.whole(&crew).await;
    stage.seed(3_000).await;
    assert_eq!(stage.all_arrive(&consumer).await.len(), 0);
    let changes = |crew: &[crate::crew::Replica]| -> usize {
        crew.iter().map(|replica| replica.count("owns lanes")).sum()
    };
    let before = changes(&crew);
    for replica in &mut crew {
        replica.write(50).await;
    }
    // Time is the subject.
    tokio::time::sleep(stage.beat * 3).await;
    for replica in &mut crew {
        replica.write_no_more().await;
    }
    // Of a clock that is behind, rows are due when they are written, and may be swept beside their writer; of one that
    // is ahead, only their writer sends them for a minute.
    println!(
        "clocks a minute off: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    assert_eq!(changes(&crew), before, "nobody lost or gained a lane");
    assert_one_owner(&crew);
}

async fn a_wall_clock_that_runs_ahead_is_a_reason_to_doubt() {
    let stage = Stage::shared().await;
    let consumer = stage.consume().await;
    let clock = Clock::at(&stage, "jumping", "+0s");
    let mut crew = vec![clock.of(stage.casting()).start(), stage.casting().start()];
    stage.whole(&crew).await;
    clock.set("-60s");
    // Time is the subject.
    tokio::time::sleep(stage.beat * 5).await;
    assert_eq!(
        crew[0].count("was this machine stopped"),
        0,
        "back is no reason"
    );
    stage.seed(3_000).await;
    clock.set("+60s");
    eventually(PATIENCE, "it doubts", async || {
        crew[0].count("was this machine stopped") == 1
    })
    .await;
    stage.whole(&crew).await;
    println!(
        "a jump of two minutes: {} repeated",
        stage.all_arrive(&consumer).await.len()
    );
    eventually(PATIENCE, "it has lanes again", async || {
        let now = timeline::now();
        crew.iter().all(|replica| replica.share(now) == 64)
    })
    .await;
    crew[0].stop().await;
    assert_one_owner(&crew);
}
