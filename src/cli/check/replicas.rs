//! Who pumps each component, and whether somebody does.

use std::{collections::BTreeSet, time::Duration};

use mongodb::Database;

use super::{Findings, rows, sinks};
use crate::{
    cli::{options::Configuration, target::Aim},
    slots::{COLLECTION, Census, Group, unbind},
    store::registry::Known,
};

/// Who is there, if that can be read.
pub(super) async fn census(
    database: &Database,
    beat: Duration,
    findings: &mut Findings,
) -> Option<Census> {
    match Census::take(database, beat).await {
        Ok(census) => Some(census),
        Err(error) => {
            let name = format!("{}.{COLLECTION}", database.name());
            findings.wrong(&name, error.to_string(), "grant find on it");
            None
        }
    }
}

/// Everything about each component, as what its rows may owe depends on who pumps them.
pub(super) async fn look(
    configuration: &Configuration,
    database: &Database,
    aims: &[Aim],
    (census, known): (Option<&Census>, &Known),
    is_without_broker: bool,
    findings: &mut Findings,
) {
    let mut told = BTreeSet::new();
    for aim in aims {
        let collection = aim.component.rows();
        let group = census.and_then(|census| census.group_of(&collection));
        let retention = configuration.settings.retention;
        rows::look(aim, retention, (group.as_ref(), known), findings).await;
        if let Some(census) = census {
            let pumped_by = census.pumped_by(&collection).unwrap_or_default();
            bound(configuration, database, &collection, pumped_by, findings);
            // What is true of a group is said once, however many components it pumps.
            if told.insert(pumped_by.to_owned()) {
                members(pumped_by, group.as_ref(), findings);
            }
            if let Some(group) = &group {
                let mut routes = sinks::routes(configuration, aim, known);
                if !is_without_broker {
                    let broker = aim.routes.names(aim.routes.whole());
                    routes.extend(broker.into_iter().map(str::to_owned));
                }
                served(aim, group, routes, findings);
            }
        }
    }
    if aims.is_empty() {
        findings.warn(
            database.name(),
            "no component is configured, and there is no outbox collection",
            "run: toa-outbox init <namespace>_<name>_outbox",
        );
    }
}

/// Whether the collection is pumped in the way this configuration would.
fn bound(
    configuration: &Configuration,
    database: &Database,
    collection: &str,
    pumped_by: &str,
    findings: &mut Findings,
) {
    let ours = match configuration.settings.slot {
        Some(slot) => format!("static slots of {}", slot.count()),
        None => format!("group {}", database.name()),
    };
    // The group of a service that uses the library.
    let library = format!("group {}.{collection}", database.name());
    // Whoever has no slot of his own is an operator, or would be told by the replica itself.
    let is_theirs = pumped_by == library || pumped_by.starts_with("static slots of ");
    let is_fine = configuration.settings.slot.is_none() && is_theirs;
    if pumped_by.is_empty() || pumped_by == ours || is_fine {
        return;
    }
    findings.wrong(
        collection,
        format!("its rows are pumped by {pumped_by}, a replica with these settings ({ours}) would stand by"),
        format!(
            "give each replica a TOA_OUTBOX_SLOT=i/n of its own, with one n for all, or none of them any; {}",
            unbind(COLLECTION, collection)
        ),
    );
}

fn members(pumped_by: &str, group: Option<&Group>, findings: &mut Findings) {
    let subject = match pumped_by {
        "" => "replicas",
        pumped_by => pumped_by,
    };
    let Some(group) = group else {
        match pumped_by.starts_with("static") {
            true => findings.fine(
                subject,
                "who has which lanes is up to the settings of each replica",
            ),
            false => nobody(subject, findings),
        }
        return;
    };
    if let Some(foreign) = &group.foreign {
        findings.warn(
            subject,
            foreign.clone(),
            "use the version of toa-outbox that the replicas have",
        );
        return;
    }
    if group.members.is_empty() {
        return nobody(subject, findings);
    }
    let alive = group.alive();
    let members = group.members.len();
    if alive == 0 {
        findings.wrong(
            subject,
            format!("none of its {members} members is alive, so nobody pumps"),
            "start a replica; if one runs, set TOA_ATOMICITY_INTERVAL here to what it has there",
        );
        return;
    }
    unowned(group, subject, findings);
    findings.fine(subject, format!("{alive} of {members} members are alive"));
}

/// Lanes that nobody reads, or would not read for long.
fn unowned(group: &Group, subject: &str, findings: &mut Findings) {
    for member in group.members.iter().filter(|member| !member.is_alive) {
        findings.warn(
            subject,
            format!("{} is silent, and nobody reads its lanes", member.id),
            "the others take them over within three beats; if they do not, read their log",
        );
    }
    for member in group
        .members
        .iter()
        .filter(|member| member.is_alive && !member.has_acknowledged)
    {
        findings.warn(
            subject,
            format!(
                "no lane is owned until {} has let go of its old ones",
                member.id
            ),
            "it takes some ten seconds; look again then",
        );
    }
    if !is_serving(group) {
        findings.wrong(
            subject,
            "all members are alive and none of them publishes anything, so nobody owns a lane",
            "read their log: they have had no broker, or could mark nothing, for long",
        );
    }
}

fn is_serving(group: &Group) -> bool {
    group.members.iter().any(|member| member.is_serving)
}

/// Whether each of these routes of a component is somebody's, where somebody publishes at all.
fn served(aim: &Aim, group: &Group, mut routes: Vec<String>, findings: &mut Findings) {
    if group.alive() == 0 || !is_serving(group) {
        return;
    }
    let served = group.routes();
    routes.retain(|route| !served.contains(route.as_str()));
    if !routes.is_empty() {
        findings.warn(
            &aim.store.name(),
            format!("no member serves {}", routes.join(", ")),
            "start a replica that is configured as this one is",
        );
    }
}

fn nobody(subject: &str, findings: &mut Findings) {
    findings.warn(
        subject,
        "no replica runs, so nobody pumps",
        "start one: toa-outbox run, or a service with the library",
    );
}
