//! What can go wrong, and for each: again or never?

use std::{borrow::Cow, error::Error as StdError, path::PathBuf};

use crate::ceiling::Ceiling;

/// A specialised result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything this crate refuses or fails with. Every text says what was attempted, on what, why it
/// failed and, where someone can do something about it, what. No text carries a credential.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot be used. The value of a secret is never repeated.
    #[error("{name} ({origin}): {value:?} cannot be used: {expected}")]
    Setting {
        /// The setting, by the name the user gave it.
        name: String,
        /// Where the value came from: `environment`, `command line`, the file and its line, or `builder`.
        origin: Cow<'static, str>,
        /// The value, or `…` for a secret.
        value: String,
        /// What would have been accepted.
        expected: String,
    },

    /// A component that contradicts itself, found before anything is connected.
    #[error("component {component}: {problem}")]
    Component {
        /// `<namespace>.<name>`.
        component: String,
        /// What is wrong, and what to do.
        problem: String,
    },

    /// MongoDB refused or could not be reached.
    // Without what the driver adds, the raw reply above all.
    #[error("{attempted} on {collection}: {}", .source.kind)]
    Store {
        /// What was being done, as a phrase.
        attempted: &'static str,
        /// The collection it was done on, `<database>.<collection>`.
        collection: String,
        /// What the driver said.
        source: Box<mongodb::error::Error>,
    },

    /// The database is of a kind, or the user has too few rights, for what was asked.
    #[error("database {database}: {problem}")]
    Unfit {
        /// The database.
        database: String,
        /// What is missing, and what to do.
        problem: String,
    },

    /// A file that messages go to cannot be opened.
    #[error("opening {}: {source}{}", path.display(), openable(source))]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// An operation of the caller's own, run inside the transaction, failed in the driver.
    #[error("in the body of the transaction: {}", .0.kind)]
    Driver(Box<mongodb::error::Error>),

    /// The body of the transaction gave up for a reason of its own; see [`Error::refused`].
    #[error("refused by the body of the transaction: {0}")]
    Refused(Box<dyn StdError + Send + Sync>),

    /// The commit was sent and its outcome never became known within the deadline. The change and
    /// its row may both be there; if they are, the pump publishes the row.
    #[error(
        "commit on {collection}: outcome unknown after {seconds} s: {}; read the entity to find out",
        .source.kind
    )]
    OutcomeUnknown {
        /// The outbox collection of the component.
        collection: String,
        /// How long the commit was repeated, in seconds.
        seconds: u64,
        /// What the driver said last.
        source: Box<mongodb::error::Error>,
    },

    /// The row would not fit into a BSON document.
    #[error(
        "row of {component}: {size} bytes, over the {limit} that a row may have; shrink state, origin or input"
    )]
    TooLarge {
        /// `<namespace>.<name>`.
        component: String,
        /// The size the row would have, in bytes.
        size: usize,
        /// The limit, in bytes.
        limit: usize,
    },

    /// The outbox holds as much as it may; see [`Settings::ceiling`](crate::Settings::ceiling). Nothing was written.
    #[error(
        "writing a row: the outbox holds {} and no more, nothing was written; try again once some of it is published, or raise TOA_OUTBOX_CEILING",
        .ceiling.in_words()
    )]
    Ceiling {
        /// As much.
        ceiling: Ceiling,
    },

    /// A value that BSON cannot hold.
    #[error("{what} of {component} cannot be written as BSON: {reason}")]
    Unencodable {
        /// Which part of the event.
        what: &'static str,
        /// `<namespace>.<name>`.
        component: String,
        /// What the encoder said.
        reason: String,
    },

    /// The entity kept changing under a [`transit`](crate::Outbox::transit) or an assignment.
    #[error(
        "entity {entity} of {component} was changed by others {attempts} times in a row; try again later"
    )]
    Conflict {
        /// The `_id` or the filter of the entity.
        entity: String,
        /// `<namespace>.<name>`.
        component: String,
        /// How often the change was attempted.
        attempts: u32,
    },

    /// Under the id that was given for a row there is another event.
    #[error(
        "row {id} of {collection} is there and holds another event, nothing was written; give each event an id of its own"
    )]
    IdTaken {
        /// The id.
        id: String,
        /// The outbox collection, `<database>.<collection>`.
        collection: String,
    },

    /// There is no such entity.
    #[error("entity {entity} of {component} does not exist")]
    NotFound {
        /// The `_id` or the filter of the entity.
        entity: String,
        /// `<namespace>.<name>`.
        component: String,
    },

    /// On a standalone server, where publication is part of the operation: the state was changed
    /// and the event could not be published.
    #[error(
        "event of {component} was not published within {seconds} s: {reason}; the state is changed, and a standalone server keeps no row"
    )]
    NotPublished {
        /// `<namespace>.<name>`.
        component: String,
        /// How long publication was attempted, in seconds.
        seconds: u64,
        /// What the sink said last.
        reason: String,
    },
}

impl Error {
    /// Ends a transaction for a reason of the caller's own: what the body returns is aborted and
    /// handed back as [`Error::Refused`], never retried.
    pub fn refused(reason: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Refused(reason.into())
    }

    /// Whether the same call may succeed later without anyone changing anything.
    pub fn again(&self) -> bool {
        match self {
            Self::Setting { .. }
            | Self::Component { .. }
            | Self::Unfit { .. }
            | Self::File { .. }
            | Self::Refused(_)
            | Self::TooLarge { .. }
            | Self::Unencodable { .. }
            | Self::IdTaken { .. }
            | Self::NotFound { .. } => false,
            Self::Conflict { .. }
            | Self::OutcomeUnknown { .. }
            | Self::Ceiling { .. }
            | Self::NotPublished { .. } => true,
            Self::Store { source, .. } | Self::Driver(source) => !is_refusal(source),
        }
    }

    pub(crate) fn store(
        attempted: &'static str,
        collection: impl Into<String>,
        source: mongodb::error::Error,
    ) -> Self {
        Self::Store {
            attempted,
            collection: collection.into(),
            source: Box::new(source),
        }
    }

    /// Whether the server will never write one of the documents as it would become: too large, or refused
    /// by a validator. Anything else it may say of a write may pass.
    pub(crate) fn is_refused_write(&self) -> bool {
        use mongodb::error::{ErrorKind::Write, WriteFailure::WriteError};
        match self {
            Self::Store { source, .. } => {
                matches!(&*source.kind, Write(WriteError(error)) if REFUSED_DOCUMENT.contains(&error.code))
            }
            _ => false,
        }
    }

    /// Whether what was to be inserted is there already.
    pub(crate) fn is_duplicate(&self) -> bool {
        use mongodb::error::{ErrorKind::Write, WriteFailure::WriteError};
        let Self::Store { source, .. } = self else {
            return false;
        };
        match &*source.kind {
            Write(WriteError(error)) => error.code == DUPLICATE_KEY,
            _ => code(source) == Some(DUPLICATE_KEY),
        }
    }

    /// Whether a change stream cannot go on from a place: it is too old or none, or what comes next is too large for it.
    pub(crate) fn is_lost_history(&self) -> bool {
        matches!(self, Self::Store { source, .. } if code(source).is_some_and(|code| LOST_HISTORY.contains(&code)))
    }

    /// Whether the user may not do it.
    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Store { source, .. } if code(source) == Some(UNAUTHORIZED))
    }

    /// Whether the driver says that the whole transaction may be run again.
    pub(crate) fn is_transient(&self) -> bool {
        use mongodb::error::TRANSIENT_TRANSACTION_ERROR as LABEL;
        match self {
            Self::Store { source, .. } | Self::Driver(source) => source.contains_label(LABEL),
            _ => false,
        }
    }
}

impl From<mongodb::error::Error> for Error {
    fn from(source: mongodb::error::Error) -> Self {
        Self::Driver(Box::new(source))
    }
}

/// The server's code for "not authorized".
pub(crate) const UNAUTHORIZED: i32 = 13;

/// The server's code for a collection that is not there.
pub(crate) const NAMESPACE_NOT_FOUND: i32 = 26;

/// The server's code for a key that is there already.
pub(crate) const DUPLICATE_KEY: i32 = 11000;

/// The server's code for a question that took longer than it was given.
pub(crate) const TOO_LONG: i32 = 50;

/// The server's codes for a place in the history that is gone, and one that is none: `ChangeStreamHistoryLost`,
/// `OplogQueryMinTsMissing`, `ChangeStreamFatalError`, `InvalidResumeToken`, `FailedToParse` and those of the token's reader; and for an
/// event that is too large.
const LOST_HISTORY: [i32; 8] = [286, 326, 280, 260, 9, 40649, 50811, 10334];

/// The server's codes for a document that fails validation, and for one that is too large.
const REFUSED_DOCUMENT: [i32; 4] = [121, 10334, 17419, 17420];

/// The code of a command the server answered with an error, if it did.
pub(crate) fn code(error: &mongodb::error::Error) -> Option<i32> {
    match error.kind.as_ref() {
        mongodb::error::ErrorKind::Command(failure) => Some(failure.code),
        _ => None,
    }
}

/// Whether the command cannot be sent at all, or the server understood it and will never accept it.
fn is_refusal(error: &mongodb::error::Error) -> bool {
    use mongodb::error::{
        ErrorKind::{Authentication, Bson, InvalidArgument, Write},
        WriteFailure::WriteError,
    };
    match error.kind.as_ref() {
        Authentication { .. } | Bson(_) | InvalidArgument { .. } | Write(WriteError(_)) => true,
        _ => code(error) == Some(UNAUTHORIZED),
    }
}

/// How a file can be opened after all, where the system does not say.
fn openable(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; make its directory, or correct the path",
        std::io::ErrorKind::PermissionDenied => "; let this user write it, and to its directory",
        _ => "",
    }
}
