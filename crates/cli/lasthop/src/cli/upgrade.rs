//! Requests to the supervisor: `lasthop upgrade`, and the configuration file for `lasthop reload`.

use std::fmt;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use ipc::timeouts::UPGRADE_REPLY;

use super::{ExitStatus, Failure, emit, emit_json, units};
use client::unreachable;
use ipc::admin::{Answer, Report, Request, SOCKET};

/// The lines of the supervisor's reply.
struct Replies {
    socket: PathBuf,
    lines: Lines<BufReader<UnixStream>>,
}

impl Replies {
    /// Sends a request to the supervisor of the Lasthop that runs in a directory.
    fn request(runtime_dir: &Path, request: &Request) -> Result<Self, Failure> {
        let socket = runtime_dir.join(SOCKET);
        let failed = |text, error: &dyn fmt::Display| failed(text, &socket, error);
        let stream = UnixStream::connect(&socket);
        let mut stream = stream.map_err(|e| unreachable(&socket, &e))?;
        let request = serde_json::to_string(request);
        let request = request.map_err(|e| Failure::Failed(e.to_string()))?;
        // A supervisor that refuses may close early; its reply is the better error.
        let _ = writeln!(stream, "{request}");
        let waits = stream.set_read_timeout(Some(UPGRADE_REPLY));
        waits.map_err(|e| failed("cannot wait for", &e))?;
        let lines = BufReader::new(stream).lines();
        Ok(Self { socket, lines })
    }

    /// Returns the next reply and its line.
    fn next(&mut self) -> Result<(Answer, String), Failure> {
        let failed = |text, error: &dyn fmt::Display| failed(text, &self.socket, error);
        let Some(line) = self.lines.next() else {
            return Err(failed("no reply from", &"connection closed"));
        };
        let line = line.map_err(|e| failed("no reply from", &e))?;
        let answer = serde_json::from_str(&line);
        let answer = answer.map_err(|e| failed("malformed reply from", &e))?;
        match answer {
            Answer::Refused(reason) => Err(Failure::Invalid(format!("refused: {reason}"))),
            answer => Ok((answer, line)),
        }
    }
}

fn failed(text: &str, socket: &Path, error: &dyn fmt::Display) -> Failure {
    Failure::Failed(format!("{text} {}: {error}", socket.display()))
}

/// Returns the configuration file of the Lasthop that runs in a directory.
pub(super) fn configuration(runtime_dir: &Path) -> Result<PathBuf, Failure> {
    let mut replies = Replies::request(runtime_dir, &Request::Configuration)?;
    match replies.next()? {
        (Answer::Configuration(file), _) => Ok(file),
        (_, line) => Err(Failure::Failed(format!("unexpected reply: {line}"))),
    }
}

/// Upgrades the Lasthop that runs in a directory, to the binaries in `to`.
pub(super) fn upgrade(runtime_dir: &Path, to: Option<PathBuf>, json: bool) -> ExitStatus {
    let to = to.map(std::path::absolute).transpose();
    let to = to.map_err(|e| Failure::Invalid(e.to_string()))?;
    let mut replies = Replies::request(runtime_dir, &Request::Upgrade { to })?;
    loop {
        match replies.next()? {
            (Answer::Doing(step), _) if !json => emit(&format!("{step}\n"))?,
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
    let (from, to, gap_ms) = (&report.from, &report.to, report.gap_ms);
    let kept = units::plural(u64::from(report.connections), "connection");
    let mut text =
        format!("upgraded from {from} to {to}: {kept} kept, {gap_ms:.2} ms without a switch\n");
    match report.table {
        Some(table) if table.is_new => text += "the table of connections starts empty\n",
        Some(table) => {
            let tracked = units::plural(u64::from(table.connections), "tracked connection");
            text += &format!("{tracked} kept\n");
        }
        None => {}
    }
    for driver in &report.drivers {
        let (port, gap_ms) = (&driver.port, driver.gap_ms);
        text += &format!("driver of {port} replaced: {gap_ms:.2} ms without a driver\n");
    }
    if let Some(reason) = &report.drivers_stay {
        text += &format!("drivers stay at version {from}: {reason}\n");
    }
    if report.prefilters_stay {
        text += "prefilters need a restart of Lasthop: their programs are of another version\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipc::admin::DriverGap;
    use ipc::connections::AdoptedTable;

    #[test]
    fn a_report_is_formatted() {
        let report = Report {
            from: "1.0.0".into(),
            to: "1.1.0".into(),
            gap_ms: 1.234,
            connections: 1,
            table: Some(AdoptedTable {
                is_new: false,
                connections: 2,
            }),
            drivers: vec![DriverGap {
                port: "up".into(),
                gap_ms: 5.0,
            }],
            drivers_stay: Some("driver of t0: it ended".into()),
            prefilters_stay: true,
        };
        let expected = "upgraded from 1.0.0 to 1.1.0: 1 connection kept, 1.23 ms without a switch\n\
             2 tracked connections kept\n\
             driver of up replaced: 5.00 ms without a driver\n\
             drivers stay at version 1.0.0: driver of t0: it ended\n\
             prefilters need a restart of Lasthop: their programs are of another version\n";
        assert_eq!(show(&report), expected);
        let report = Report {
            table: Some(AdoptedTable {
                is_new: true,
                connections: 0,
            }),
            ..Report::default()
        };
        assert!(show(&report).ends_with("\nthe table of connections starts empty\n"));
    }
}
