//! Failures of commands: texts, JSON documents and exit statuses.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use api::v1::Problem;
use serde_json::json;

use crate::units::{printable, printable_json};

/// The reason for which a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The request or the environment is wrong.
    Invalid(String),
    /// The request is valid, but failed.
    Failed(String),
    /// The server closed the connection before its response: the request may have been done.
    BrokenOff(String),
    /// The server refused the request; the text precedes the problem's.
    Refused(Box<Problem>, &'static str),
    /// `trace --expect` found another result.
    Unexpected(String),
    /// A dry run would change something.
    Differs,
    /// The reader has closed the output, as in `lasthop stats | head`: the end, not an error.
    OutputClosed,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text)
            | Self::Failed(text)
            | Self::BrokenOff(text)
            | Self::Unexpected(text) => f.write_str(text),
            Self::Refused(problem, before) => write!(f, "{before}{problem}"),
            Self::Differs => f.write_str("something would change"),
            Self::OutputClosed => f.write_str("the output is closed"),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Refused(Box::new(problem), "")
    }
}

/// Returns whether a retry of the same request fails again: statuses 400 to 499, except 408 (the
/// request came too slowly) and 412 (a concurrent change).
fn is_permanent(problem: &Problem) -> bool {
    (400..500).contains(&problem.status) && ![408, 412].contains(&problem.status)
}

impl Failure {
    /// Returns the failure of a system call: invalid where the environment is wrong, and the same
    /// command would fail again.
    pub fn of_system(text: String, error: &io::Error) -> Self {
        if sys::lasting::is_lasting(error) {
            Self::Invalid(text)
        } else {
            Self::Failed(text)
        }
    }

    /// Adds to a refusal that nothing was changed. For other failures this is not known.
    pub fn unchanged(self) -> Self {
        const UNCHANGED: &str = "nothing was changed: ";
        match self {
            Self::Invalid(text) => Self::Invalid(format!("{UNCHANGED}{text}")),
            Self::Refused(problem, _) if is_permanent(&problem) => {
                Self::Refused(problem, UNCHANGED)
            }
            other => other,
        }
    }

    /// Returns the exit status.
    fn status(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Refused(problem, _) if is_permanent(problem) => 2,
            Self::Refused(..) | Self::Failed(_) | Self::BrokenOff(_) => 1,
            Self::Invalid(_) => 2,
            Self::Differs => 3,
            Self::Unexpected(_) => 4,
        }
    }

    /// Prints the failure to standard error, as text or JSON, and returns the exit status.
    pub fn report(&self, json: bool) -> ExitCode {
        self.print(json);
        ExitCode::from(self.status())
    }

    /// Prints the failure as text, and ends this process with its exit status.
    pub(crate) fn exit(&self) -> ! {
        self.print(false);
        std::process::exit(self.status().into())
    }

    fn print(&self, json: bool) {
        let text = match (self, json) {
            // Standard output has everything.
            (Self::OutputClosed | Self::Differs, _) => String::new(),
            (_, true) => format!("{}\n", printable_json(&self.document())),
            (_, false) => format!("lasthop: {}\n", self.lines()),
        };
        // Without a standard error only the exit status remains.
        drop(io::stderr().write_all(text.as_bytes()));
    }

    /// Logs the failure and returns the exit status.
    pub fn log(&self) -> ExitCode {
        match self {
            Self::OutputClosed | Self::Differs => {}
            _ => tracing::error!(target: "lasthop::cli", "{}", self.lines()),
        }
        ExitCode::from(self.status())
    }

    /// Returns the text without control characters.
    fn lines(&self) -> String {
        let text = self.to_string();
        let lines: Vec<String> = text.split('\n').map(printable).collect();
        lines.join("\n")
    }

    /// Returns a problem document (RFC 9457): the server's, or one of the same form.
    fn document(&self) -> String {
        let title = match self {
            Self::Refused(problem, _) => return json!(problem).to_string(),
            Self::Invalid(_) => "Invalid request",
            Self::Failed(_) => "Failed",
            Self::BrokenOff(_) => "Connection broke off",
            Self::Unexpected(_) => "Unexpected result",
            Self::Differs | Self::OutputClosed => "",
        };
        json!({"title": title, "detail": self.to_string()}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use api::v1::ProblemKind;

    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_exit_status() {
        let status = |kind| Failure::from(Problem::new(kind, "x")).status();
        assert_eq!(status(ProblemKind::Invalid), 2);
        assert_eq!(status(ProblemKind::Outdated), 1);
        assert_eq!(status(ProblemKind::Timeout), 1);
        assert_eq!(status(ProblemKind::Unavailable), 1);
        assert_eq!(Failure::Unexpected(String::new()).status(), 4);
    }

    #[test]
    fn only_a_refusal_reports_that_nothing_was_changed() {
        let text = |kind| {
            let problem = Problem::new(kind, "no").with_field("ports");
            Failure::from(problem).unchanged().to_string()
        };
        assert_eq!(text(ProblemKind::Invalid), "nothing was changed: ports: no");
        assert_eq!(text(ProblemKind::Unavailable), "ports: no");
    }
}
