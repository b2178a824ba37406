//! Sinks of services: whether somebody serves each, which are paused, and what they did not take.

use std::collections::BTreeSet;

use mongodb::Database;

use super::Findings;
use crate::{
    Error,
    cli::{
        options::Configuration,
        sinks::facts::{self, Sink},
        target::Aim,
    },
    sinks::AMQP,
    slots::Census,
    store::{
        registry::{Known, Registry},
        survey::Lack,
    },
};

/// What is registered, if that can be read.
pub(super) async fn known(database: &Database, findings: &mut Findings) -> Known {
    let registry = Registry::new(database);
    match registry.look().await {
        Ok(known) => known,
        Err(error) => {
            let remedy = "grant find on it; without, rows are owed to those sinks alone that a live replica has";
            findings.warn(&registry.name(), error.to_string(), remedy);
            Known::default()
        }
    }
}

/// Whether messages of all components go to sinks alone, as far as the file and the registry tell.
pub(super) fn replace_broker(configuration: &Configuration, aims: &[Aim], known: &Known) -> bool {
    let is_declared = !configuration.sinks.is_empty();
    let without = |aim: &Aim| {
        let rows = aim.component.rows();
        let mut registered = known
            .sinks
            .iter()
            .filter(|sink| sink.collection == rows)
            .peekable();
        let is_any = is_declared || registered.peek().is_some();
        is_any && registered.all(|sink| sink.sink != AMQP)
    };
    configuration.settings.amqp.is_empty()
        && (is_declared || !aims.is_empty())
        && aims.iter().all(without)
}

/// The routes to those sinks of the file that nobody has registered: of others it is told by whom they are served.
pub(super) fn routes(configuration: &Configuration, aim: &Aim, known: &Known) -> Vec<String> {
    let rows = aim.component.rows();
    let is_new = |name: &str| {
        !known
            .sinks
            .iter()
            .any(|sink| sink.collection == rows && sink.sink == name)
    };
    let new = configuration.sinks.iter().filter(|sink| is_new(&sink.name));
    new.flat_map(|sink| {
        aim.component
            .wanted_by(&sink.name.as_str().into(), &sink.patterns)
    })
    .map(|rendering| rendering.name)
    .collect()
}

/// Whether each pattern of the file fits a label: a misspelt one is no error, as its collection may be yet to come.
pub(super) fn wanted(configuration: &Configuration, aims: &[Aim], findings: &mut Findings) {
    for sink in &configuration.sinks {
        let name = sink.name.as_str().into();
        for pattern in &sink.patterns {
            let pattern = std::slice::from_ref(pattern);
            let fits = |aim: &Aim| !aim.component.wanted_by(&name, pattern).is_empty();
            if !aims.iter().any(fits) {
                findings.warn(
                    &format!("sink {}", sink.name),
                    format!("{:?} fits no label of any component here", pattern[0]),
                    "correct it, unless its collection is yet to come: <collection>.<label>",
                );
            }
        }
    }
}

pub(super) async fn look(
    database: &Database,
    aims: &[Aim],
    (census, known): (&Census, &Known),
    findings: &mut Findings,
) {
    let looked = async {
        let mut told = BTreeSet::new();
        for sink in facts::sinks(database, aims, census, known).await? {
            one(&sink, told.insert(sink.name.clone()), findings);
        }
        for aim in aims {
            lacking(aim, known, findings).await?;
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = looked.await {
        let remedy = "if it is a missing privilege, grant it; otherwise try again";
        findings.wrong("sinks", error.to_string(), remedy);
    }
}

/// A pause is that of a name, and said with the first collection.
fn one(sink: &Sink, is_first: bool, findings: &mut Findings) {
    let (name, count) = (&sink.name, sink.count);
    let subject = format!("sink {name} of {}", sink.collection);
    if !sink.is_served() {
        findings.warn(
            &subject,
            format!("nobody serves it, and {} rows are kept for it", sink.rows()),
            format!("start a service that has it, or, if it is gone for good: toa-outbox sinks remove {name}"),
        );
    }
    if let Some(pause) = sink.pause.as_ref().filter(|_| is_first) {
        findings.warn(
            &format!("sink {name}"),
            format!("it is paused: {}", pause.reason),
            format!(
                "when that is over: toa-outbox sinks resume {name} --circuit {}",
                pause.circuit
            ),
        );
    }
    let dead = count.dead + count.abandoned;
    if dead > 0 {
        findings.warn(
            &subject,
            format!("{dead} deliveries are dead"),
            format!(
                "see why with `toa-outbox dead list --sink {name}`, then replay or discard them"
            ),
        );
    }
}

async fn lacking(aim: &Aim, known: &Known, findings: &mut Findings) -> Result<(), Error> {
    let rows = aim.component.rows();
    let registered = known.sinks.iter().filter(|sink| sink.collection == rows);
    let count = registered.count();
    if count == 0 {
        return Ok(());
    }
    // One alone reads all there is, and is not given the index of several.
    let lacks = aim.store.lacks_for_sinks().await?.into_iter();
    for lack in lacks.filter(|lack| count > 1 || *lack != Lack::Owed) {
        let (name, remedy) = (aim.store.name(), lack.remedy(&rows));
        match lack.is_grave() {
            true => findings.wrong(&name, lack.to_string(), remedy),
            false => findings.warn(&name, lack.to_string(), remedy),
        }
    }
    Ok(())
}
