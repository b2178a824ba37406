//! Whether the server and the user will do, found out at the start.

use mongodb::Database;

use crate::{
    config::Settings,
    error::{Error, Result},
    slots,
    store::{
        feed::{Collections, Feed, Scope},
        registry,
        rights::{NAMELESS, Right, Rights},
        server::Hello,
    },
};

const STANDALONE: &str = "a standalone server has no transactions and no change streams; run MongoDB as a replica set, \
     one member is enough";

/// Finds out at the start what would fail later.
pub(super) async fn check(
    database: &Database,
    settings: &Settings,
    all: bool,
    has_sinks: bool,
) -> Result<()> {
    if !Hello::ask(database).await?.is_transactional() {
        return Err(unfit(database, STANDALONE));
    }
    let had = Rights::ask(database).await?;
    if had.is_none() && !Rights::is_open(database).await? {
        return Err(unfit(database, NAMELESS.join("; ")));
    }
    let discover = Right::to_discover().filter(|_| all);
    let share = Right::all(slots::COLLECTION, slots::ACTIONS);
    let register = Right::all(registry::COLLECTION, registry::ACTIONS).filter(|_| has_sinks);
    may(
        database,
        had.as_ref(),
        share.chain(discover).chain(register),
    )?;
    if settings.defer {
        return Ok(());
    }
    if let Some(lacking) = had.as_ref().and_then(|had| had.lacking(Right::to_follow())) {
        let instead = "or set TOA_OUTBOX_DEFER=1 to do with the pump alone";
        return Err(unfit(database, format!("{lacking}, {instead}")));
    }
    let nothing = Scope {
        lanes: Vec::new(),
        collections: Collections::All,
    };
    Feed::open(database, &nothing).await.map(drop)
}

/// Refuses a user who had less than `rights` when the server was asked.
pub(super) fn may(
    database: &Database,
    had: Option<&Rights>,
    rights: impl Iterator<Item = Right>,
) -> Result<()> {
    match had.and_then(|had| had.lacking(rights)) {
        Some(lacking) => Err(unfit(database, lacking)),
        None => Ok(()),
    }
}

fn unfit(database: &Database, problem: impl Into<String>) -> Error {
    Error::Unfit {
        database: database.name().to_owned(),
        problem: problem.into(),
    }
}
