//! What is asked of the supervisor itself: `lasthop upgrade`, and which file `lasthop reload` means.

use std::fmt;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::client::unreachable;
use super::{Done, Failure, emit, emit_json, units};
use crate::admin::{Answer, Report, Request, SOCKET};

/// Longer than the supervisor takes for any of its steps.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the supervisor answers, line by line.
struct Answers {
    socket: PathBuf,
    lines: Lines<BufReader<UnixStream>>,
}

impl Answers {
    /// Asks the supervisor of the Lasthop that runs in a directory.
    fn to(runtime_dir: &Path, request: &Request) -> Result<Self, Failure> {
        let socket = runtime_dir.join(SOCKET);
        let failed = |what, error: &dyn fmt::Display| failed(what, &socket, error);
        let stream = UnixStream::connect(&socket);
        let mut stream = stream.map_err(|e| Failure::Failed(unreachable(&socket, &e)))?;
        let request = serde_json::to_string(request);
        let request = request.map_err(|e| Failure::Failed(e.to_string()))?;
        // One that refuses does not read to the end; its answer says more than the error here.
        let _ = writeln!(stream, "{request}");
        let waits = stream.set_read_timeout(Some(PATIENCE));
        waits.map_err(|e| failed("cannot wait for", &e))?;
        let lines = BufReader::new(stream).lines();
        Ok(Self { socket, lines })
    }

    /// The next one, and its line.
    fn next(&mut self) -> Result<(Answer, String), Failure> {
        let failed = |what, error: &dyn fmt::Display| failed(what, &self.socket, error);
        let Some(line) = self.lines.next() else {
            return Err(failed("no answer from", &"it hung up"));
        };
        let line = line.map_err(|e| failed("no answer from", &e))?;
        let answer = serde_json::from_str(&line);
        let answer = answer.map_err(|e| failed("no sensible answer from", &e))?;
        match answer {
            Answer::Refused(reason) => Err(Failure::Wrong(format!("refused: {reason}"))),
            answer => Ok((answer, line)),
        }
    }
}

fn failed(what: &str, socket: &Path, error: &dyn fmt::Display) -> Failure {
    Failure::Failed(format!("{what} {}: {error}", socket.display()))
}

/// The file with which the Lasthop that runs in a directory was started.
pub(super) fn configuration(runtime_dir: &Path) -> Result<PathBuf, Failure> {
    let mut answers = Answers::to(runtime_dir, &Request::Configuration)?;
    match answers.next()? {
        (Answer::Configuration(file), _) => Ok(file),
        (_, line) => Err(Failure::Failed(format!(
            "an answer of another kind: {line}"
        ))),
    }
}

/// Has the Lasthop that runs in a directory upgraded; `to`: where the new binaries are.
pub(super) fn upgrade(runtime_dir: &Path, to: Option<PathBuf>, json: bool) -> Done {
    let to = to.map(std::path::absolute).transpose();
    let to = to.map_err(|e| Failure::Wrong(e.to_string()))?;
    let mut answers = Answers::to(runtime_dir, &Request::Upgrade { to })?;
    loop {
        match answers.next()? {
            (Answer::Doing(what), _) if !json => emit(&format!("{what}\n"))?,
            (Answer::Upgraded(_), line) if json => return emit_json(&line),
            (Answer::Upgraded(report), _) => return emit(&show(&report)),
            (Answer::RolledBack(reason), _) => {
                return Err(Failure::Failed(format!("rolled back: {reason}")));
            }
            (Answer::Doing(_) | Answer::Configuration(_) | Answer::Refused(_), _) => {}
        }
    }
}

fn show(report: &Report) -> String {
    let Report {
        from,
        to,
        gap_ms,
        connections,
        drivers,
        drivers_stay,
    } = report;
    let kept = units::several(u64::from(*connections), "connection");
    let mut text =
        format!("upgraded from {from} to {to}: {kept} kept, {gap_ms:.2} ms without a switch\n");
    for driver in drivers {
        let (port, gap_ms) = (&driver.port, driver.gap_ms);
        text += &format!("driver of {port}: {gap_ms:.2} ms without one\n");
    }
    if let Some(reason) = drivers_stay {
        text += &format!("drivers stay of version {from}: {reason}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::DriverGap;

    #[test]
    fn a_report_reads_well() {
        let report = Report {
            from: "1.0.0".into(),
            to: "1.1.0".into(),
            gap_ms: 1.234,
            connections: 1,
            drivers: vec![DriverGap {
                port: "up".into(),
                gap_ms: 5.0,
            }],
            drivers_stay: Some("driver of t0: it ended".into()),
        };
        let expected = "upgraded from 1.0.0 to 1.1.0: 1 connection kept, 1.23 ms without a switch\n\
             driver of up: 5.00 ms without one\n\
             drivers stay of version 1.0.0: driver of t0: it ended\n";
        assert_eq!(show(&report), expected);
    }
}
