//! Why a command did not do what it should, and how the operator hears of it.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use api::v1::Problem;
use serde_json::json;

use super::units::{printable, printable_json};

/// Why a command did not do what it should.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for is wrong.
    Wrong(String),
    /// It was asked for rightly and did not work.
    Failed(String),
    /// The server went away while it was asked: nothing is known of what it has done.
    BrokenOff(String),
    /// What the server has against it; whether nothing was changed is said before.
    Refused(Box<Problem>, &'static str),
    /// Something else would become of a frame than was expected.
    Otherwise(String),
    /// A dry run that would change something.
    Differs,
    /// Nobody reads the output any more, as with `lasthop stats | head`: the end, not an error.
    Unread,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(text)
            | Self::Failed(text)
            | Self::BrokenOff(text)
            | Self::Otherwise(text) => f.write_str(text),
            Self::Refused(problem, before) => write!(f, "{before}{problem}"),
            Self::Differs => f.write_str("something would change"),
            Self::Unread => f.write_str("nobody reads the output"),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Refused(Box::new(problem), "")
    }
}

/// Statuses from 400 to 499 blame what was asked for, but for two: it came too slowly (408), or somebody else was faster (412). Asked
/// again it may be done, as with all others, which blame what happened.
fn blames_the_request(problem: &Problem) -> bool {
    (400..500).contains(&problem.status) && ![408, 412].contains(&problem.status)
}

impl Failure {
    /// The same; a refusal says that nothing was changed. Of what failed otherwise that is not known.
    pub(crate) fn unchanged(self) -> Self {
        const UNCHANGED: &str = "nothing was changed: ";
        match self {
            Self::Wrong(text) => Self::Wrong(format!("{UNCHANGED}{text}")),
            Self::Refused(problem, _) if blames_the_request(&problem) => {
                Self::Refused(problem, UNCHANGED)
            }
            other => other,
        }
    }

    /// The exit status.
    fn status(&self) -> u8 {
        match self {
            Self::Unread => 0,
            Self::Refused(problem, _) if blames_the_request(problem) => 2,
            Self::Refused(..) | Self::Failed(_) | Self::BrokenOff(_) => 1,
            Self::Wrong(_) => 2,
            Self::Differs => 3,
            Self::Otherwise(_) => 4,
        }
    }

    /// Tells the operator, in words or as a document, and the shell.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        let said = match (self, json) {
            // Their output says it all.
            (Self::Unread | Self::Differs, _) => String::new(),
            (_, true) => format!("{}\n", printable_json(&self.document())),
            (_, false) => format!("lasthop: {}\n", self.lines()),
        };
        // Without a standard error there is nobody to tell.
        drop(io::stderr().write_all(said.as_bytes()));
        ExitCode::from(self.status())
    }

    /// Tells the log, and whoever has started us.
    pub(crate) fn log(&self) -> ExitCode {
        match self {
            Self::Unread | Self::Differs => {}
            _ => tracing::error!("{}", self.lines()),
        }
        ExitCode::from(self.status())
    }

    /// In words, fit for a terminal.
    fn lines(&self) -> String {
        let text = self.to_string();
        let lines: Vec<String> = text.split('\n').map(printable).collect();
        lines.join("\n")
    }

    /// As a problem document (RFC 9457): that of the server, where it is the one who refuses.
    fn document(&self) -> String {
        let title = match self {
            Self::Refused(problem, _) => return json!(problem).to_string(),
            Self::Wrong(_) => "The command asks for what cannot be",
            Self::Failed(_) => "It failed",
            Self::BrokenOff(_) => "The answer broke off",
            Self::Otherwise(_) => "It is not as expected",
            Self::Differs | Self::Unread => "",
        };
        json!({"title": title, "detail": self.to_string()}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use api::v1::ProblemKind;

    use super::*;

    #[test]
    fn statuses_say_whom_to_blame() {
        let status = |kind| Failure::from(Problem::new(kind, "x")).status();
        assert_eq!(status(ProblemKind::Invalid), 2);
        assert_eq!(status(ProblemKind::Outdated), 1);
        assert_eq!(status(ProblemKind::Timeout), 1);
        assert_eq!(status(ProblemKind::Unavailable), 1);
        assert_eq!(Failure::Otherwise(String::new()).status(), 4);
    }

    #[test]
    fn only_a_refusal_says_that_nothing_was_changed() {
        let said = |kind| {
            let problem = Problem::new(kind, "no").with_field("ports");
            Failure::from(problem).unchanged().to_string()
        };
        assert_eq!(said(ProblemKind::Invalid), "nothing was changed: ports: no");
        assert_eq!(said(ProblemKind::Unavailable), "ports: no");
    }
}
