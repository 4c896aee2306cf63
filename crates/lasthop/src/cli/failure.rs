//! Why a command did not do what it should, and how the operator hears of it.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use api::v1::Problem;

/// Why a command did not do what it should.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for is wrong.
    Wrong(String),
    /// It was asked for rightly and did not work.
    Failed(String),
    /// The server went away while it was asked: nothing is known of what it has done.
    BrokenOff(String),
    /// A dry run that would change something.
    Differs,
    /// Nobody reads the output any more, as with `lasthop stats | head`: the end, not an error.
    Unread,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(text) | Self::Failed(text) | Self::BrokenOff(text) => f.write_str(text),
            Self::Differs => f.write_str("something would change"),
            Self::Unread => f.write_str("nobody reads the output"),
        }
    }
}

impl From<Problem> for Failure {
    /// Statuses from 400 to 499 blame what was asked for, but for two: it came too slowly (408), or somebody else was faster (412). Asked
    /// again it may be done, as with all others, which blame what happened.
    fn from(problem: Problem) -> Self {
        match problem.status {
            408 | 412 => Self::Failed(problem.to_string()),
            400..500 => Self::Wrong(problem.to_string()),
            _ => Self::Failed(problem.to_string()),
        }
    }
}

impl Failure {
    /// The same; a refusal says that nothing was changed. Of what failed otherwise that is not known.
    pub(crate) fn unchanged(self) -> Self {
        match self {
            Self::Wrong(text) => Self::Wrong(format!("nothing was changed: {text}")),
            other => other,
        }
    }

    /// Tells the operator, and the shell.
    pub(crate) fn report(&self) -> ExitCode {
        let status = match self {
            Self::Unread => return ExitCode::SUCCESS,
            Self::Differs => return ExitCode::from(3),
            Self::Failed(_) | Self::BrokenOff(_) => 1,
            Self::Wrong(_) => 2,
        };
        // Without a standard error there is nobody to tell.
        drop(writeln!(io::stderr(), "lasthop: {self}"));
        ExitCode::from(status)
    }
}
