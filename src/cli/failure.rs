//! How a command ends other than well.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use crate::Error;

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
                say(&error.to_string());
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
        }
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
