//! The conformance suite, for each sink that comes with the crate and for one that does not.

use std::{fs, path::PathBuf};

use serde_json::Value;
use toa_outbox::{Builder, JsonLines};

use crate::{
    PATH, http, mongodb,
    support::{Asked, Conduct, Destination, Hook, Plain, Reply, conforms},
    unlimited,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_of_ones_own_conforms() {
    conforms(&mongodb().await, &Plain::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_conform() {
    let destination = Webhook(Hook::start().await);
    conforms(&mongodb().await, &destination).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_conform() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let destination = Files {
        elsewhere: dir.path().join("elsewhere"),
        home,
    };
    conforms(&mongodb().await, &destination).await;
}

struct Webhook(Hook);

impl Destination for Webhook {
    const CONDUCTS: &[Conduct] = &[
        Conduct::Fails,
        Conduct::Hangs,
        Conduct::RejectsOne,
        Conduct::Panics,
        Conduct::IsAway,
    ];

    async fn added_to(&self, builder: Builder, name: &str, labels: &str) -> Builder {
        let sink = http(self.0.url(PATH)).build().unwrap();
        builder.sink_with(name, [labels], sink, unlimited())
    }

    async fn behave(&self, conduct: Conduct) {
        self.0.leave().await;
        self.0.answers(move |asked| match conduct {
            Conduct::Fails => Reply::status(500),
            Conduct::Hangs => Reply::Silence,
            Conduct::Panics => Reply::Reset,
            Conduct::RejectsOne if entities(asked).iter().any(|pot| pot % 100 == 37) => {
                Reply::status(400)
            }
            _ => Reply::status(204),
        });
        if conduct != Conduct::IsAway {
            self.0.come_back().await;
        }
    }

    fn pots(&self) -> Vec<usize> {
        let accepted = self.0.answered(204);
        accepted.iter().flat_map(entities).collect()
    }
}

pub fn entities(asked: &Asked) -> Vec<usize> {
    let objects: Vec<Value> = serde_json::from_slice(&asked.body).unwrap();
    objects.iter().map(entity).collect()
}

pub fn entity(object: &Value) -> usize {
    object["entity"].as_u64().unwrap() as usize
}

/// A file in a folder that can be taken away, which is seen when another file is begun in it: for each batch.
struct Files {
    home: PathBuf,
    elsewhere: PathBuf,
}

impl Destination for Files {
    const CONDUCTS: &[Conduct] = &[Conduct::Fails];

    async fn added_to(&self, builder: Builder, name: &str, labels: &str) -> Builder {
        let sink = JsonLines::open(self.home.join("events")).await.unwrap();
        builder.sink(name, [labels], sink.rotated(1, 1000))
    }

    async fn behave(&self, conduct: Conduct) {
        let (from, to) = match conduct {
            Conduct::Fails => (&self.home, &self.elsewhere),
            _ if self.home.exists() => return,
            _ => (&self.elsewhere, &self.home),
        };
        fs::rename(from, to).unwrap();
    }

    fn pots(&self) -> Vec<usize> {
        let Ok(files) = fs::read_dir(&self.home) else {
            return Vec::new();
        };
        let text = |file: Result<fs::DirEntry, _>| fs::read_to_string(file.unwrap().path());
        let texts: Vec<String> = files.map(|file| text(file).unwrap_or_default()).collect();
        let pot = |line: &str| entity(&serde_json::from_str::<Value>(line).unwrap());
        // Of a line that is being written there may be a part only.
        let whole = texts.iter().flat_map(|text| text.split_inclusive('\n'));
        whole.filter(|line| line.ends_with('\n')).map(pot).collect()
    }
}
