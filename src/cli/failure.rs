//! How a command ends other than well.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use mongodb::error::ErrorKind;

use crate::{
    Error,
    error::{TOO_LONG, UNAUTHORIZED, code},
};

/// What a command ends with.
pub(super) type Outcome = Result<(), Failure>;

pub(super) enum Failure {
    /// The crate said why.
    Error(Error),
    /// What was found cannot be written to standard output.
    Output(io::Error),
    /// A reason of the command's own.
    Because(String),
    /// It has been said, line by line.
    Said,
    /// It stands in the log.
    Logged(ExitCode),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failure {
    /// Says it on standard error, and what the program ends with.
    pub(super) fn report(self) -> ExitCode {
        match self {
            Self::Error(error) => {
                say(&told(&error));
                exit_code(&error)
            }
            // Nobody reads on: what was asked for has been had.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Output(error) => {
                say(&format!("writing to standard output: {error}"));
                ExitCode::FAILURE
            }
            Self::Because(reason) => {
                say(&reason);
                ExitCode::FAILURE
            }
            Self::Said => ExitCode::FAILURE,
            Self::Logged(code) => code,
        }
    }

    /// Says it as an event of the log, for whoever reads nothing else. Where errors are not logged, it is left to
    /// [`report`](Self::report).
    pub(super) fn logged(self) -> Self {
        if !tracing::enabled!(tracing::Level::ERROR) {
            return self;
        }
        match self {
            Self::Error(error) => {
                tracing::error!("{}", told(&error));
                Self::Logged(exit_code(&error))
            }
            Self::Because(reason) => {
                tracing::error!("{reason}");
                Self::Logged(ExitCode::FAILURE)
            }
            other => other,
        }
    }
}

/// The error and, where it is the server's and says nothing of it, the remedy.
fn told(error: &Error) -> String {
    match error {
        Error::Store { source, .. } => format!("{error}{}", remedy(source)),
        _ => error.to_string(),
    }
}

fn remedy(error: &mongodb::error::Error) -> &'static str {
    match error.kind.as_ref() {
        ErrorKind::ServerSelection { .. } | ErrorKind::DnsResolve { .. } | ErrorKind::Io(_) => {
            "; check hosts, replicaSet and tls in TOA_OUTBOX_MONGODB, and that MongoDB runs there"
        }
        ErrorKind::Authentication { .. } => {
            "; check user, password and authSource in TOA_OUTBOX_MONGODB"
        }
        ErrorKind::InvalidTlsConfig { .. } => {
            "; check tlsCAFile and tlsCertificateKeyFile in TOA_OUTBOX_MONGODB: PEM files that can be read"
        }
        _ => match code(error) {
            Some(UNAUTHORIZED) => {
                "; grant that right, `toa-outbox check` tells all that are missing"
            }
            Some(TOO_LONG) => {
                "; ask for less: one --component, a lane, or rows by what an index has: _id, or published: false"
            }
            _ => "",
        },
    }
}

/// A line on standard error, if that can be written to.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "toa-outbox: {text}");
}

/// 2 for what the user can mend in the call or the settings, 1 for what failed.
fn exit_code(error: &Error) -> ExitCode {
    match error {
        Error::Setting { .. } | Error::Component { .. } => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
