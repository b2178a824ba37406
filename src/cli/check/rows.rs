//! The rows of one component, and the collection they are in.

use std::time::Duration;

use super::Findings;
use crate::{
    Error,
    cli::target::Aim,
    slots::Group,
    store::{deliveries::retrying, inspect::MOST_COUNTED, registry::Known, survey::Lack},
};

/// For how long a row may wait before that is worth a word.
const LONG: Duration = Duration::from_secs(60);

pub(super) async fn look(
    aim: &Aim,
    retention: Duration,
    (group, known): (Option<&Group>, &Known),
    findings: &mut Findings,
) {
    let name = aim.store.name();
    let before = findings.0.len();
    let looked = async {
        let lacks = aim.store.lacks(retention).await?;
        let is_there = !lacks.contains(&Lack::Collection);
        lacking(&lacks, &name, &aim.component.rows(), findings);
        if is_there {
            overdue(aim, findings).await?;
            unreadable(aim, findings).await?;
            altered(aim, findings).await?;
            strangers(aim, group, known, findings).await?;
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = looked.await {
        findings.wrong(
            &name,
            error.to_string(),
            "if it is a missing privilege, grant it; otherwise try again",
        );
    }
    if findings.0.len() == before {
        findings.fine(&name, "indexes, validator and rows are as they should be");
    }
}

fn lacking(lacks: &[Lack], name: &str, collection: &str, findings: &mut Findings) {
    for lack in lacks {
        let remedy = lack.remedy(collection);
        match lack.is_grave() {
            true => findings.wrong(name, lack.to_string(), remedy),
            false => findings.warn(name, lack.to_string(), remedy),
        }
    }
}

/// Rows that should have left long ago.
async fn overdue(aim: &Aim, findings: &mut Findings) -> Result<(), Error> {
    let waiting = aim.store.waiting().await?;
    let age = waiting.age(Duration::ZERO);
    if age > LONG {
        findings.warn(
            &aim.store.name(),
            format!(
                "{} rows wait, the oldest for {} s",
                waiting.rows,
                age.as_secs()
            ),
            "toa-outbox list names them, and toa-outbox show ID says what becomes of one",
        );
    }
    Ok(())
}

async fn unreadable(aim: &Aim, findings: &mut Findings) -> Result<(), Error> {
    let name = aim.store.name();
    match aim.store.unreadable().await? {
        Some((0, _)) => {}
        Some((count, first)) => findings.wrong(
            &name,
            format!("{} rows that no pump can read, such as {}", at_least(count), first.join("; ")),
            format!(
                "see them with `toa-outbox list --unreadable --component {}`, mend or delete them, and run `toa-outbox init {}`, which refuses such rows",
                aim.component.id(),
                aim.component.rows()
            ),
        ),
        None => findings.warn(
            &name,
            "rows that no pump can read were looked for in vain for 10 s",
            format!("run `toa-outbox init {}`: its index makes that quick", aim.component.rows()),
        ),
    }
    Ok(())
}

async fn altered(aim: &Aim, findings: &mut Findings) -> Result<(), Error> {
    let name = aim.store.name();
    match aim.store.altered().await? {
        Some((0, _)) => {}
        Some((count, first)) => findings.wrong(
            &name,
            format!("{} rows that were changed after they were written, such as {}", at_least(count), first.join("; ")),
            format!(
                "see them with `toa-outbox list --unreadable --component {}`; restore or delete them, they are not sent",
                aim.component.id()
            ),
        ),
        None => findings.warn(
            &name,
            "rows that were changed after they were written were looked for in vain for 10 s",
            "look again when less is waiting",
        ),
    }
    Ok(())
}

async fn strangers(
    aim: &Aim,
    group: Option<&Group>,
    registered: &Known,
    findings: &mut Findings,
) -> Result<(), Error> {
    let rows = aim.component.rows();
    let mut known = aim.routes.names(aim.routes.whole());
    known.extend(group.iter().flat_map(|group| group.routes()));
    known.extend(registered.owed_by(&rows));
    let later: Vec<String> = known.iter().map(|route| retrying(route)).collect();
    known.extend(later.iter().map(String::as_str));
    let name = aim.store.name();
    match aim.store.strangers(&known).await? {
        Some(strangers) => {
            for (route, count) in strangers {
                findings.wrong(
                    &name,
                    format!("{count} rows owe {route}, and nobody here knows that route"),
                    format!(
                        "declare its label and run a replica that does, or take it off: {}",
                        aim.store.taking_off(&route)
                    ),
                );
            }
        }
        None => findings.warn(
            &name,
            "rows owed to unknown routes were looked for in vain for 10 s",
            format!(
                "run `toa-outbox init {}`: its index makes that quick",
                aim.component.rows()
            ),
        ),
    }
    Ok(())
}

fn at_least(count: u64) -> String {
    match count {
        MOST_COUNTED.. => format!("at least {MOST_COUNTED}"),
        count => count.to_string(),
    }
}
