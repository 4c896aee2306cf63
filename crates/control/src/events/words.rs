//! Events in words, for the log and for people.

use std::fmt::Write;

use api::v1::{Action, Asker, EventKind, FieldChange, ProcessChange, Progress};
use serde_json::Value;

use super::text;

/// Characters of what was changed in one line.
const CHANGES_MAX: usize = 400;

/// What has happened, in one line without its time, and without who has asked for it.
#[must_use]
pub fn words(what: &EventKind) -> String {
    match what {
        EventKind::Port {
            port,
            state,
            reason,
        } => because(format!("port {port} is {}", state.as_str()), reason),
        EventKind::Moved {
            segment,
            mac,
            from,
            to,
        } => format!("{mac} moved from port {from} to port {to} in segment {segment}"),
        EventKind::Claimed { segment, mac, port } => {
            format!("port {port} claims {mac} in segment {segment}, which another port still uses")
        }
        EventKind::Bound {
            port,
            mac,
            addresses,
        } => bound(port, mac.as_deref(), addresses),
        EventKind::Change { .. } => changed(what),
        EventKind::Flushed {
            segment,
            port,
            count,
            ..
        } => {
            let of = of(segment.as_deref(), port.as_deref());
            let addresses = several(*count, "learned address", "learned addresses");
            format!("{addresses}{of} flushed")
        }
        EventKind::Purged { port, .. } => {
            format!("cached flows{} were purged", of(None, port.as_deref()))
        }
        EventKind::Capture {
            port,
            number,
            filter,
            progress,
            ..
        } => captured(port, *number, filter, *progress),
        EventKind::Process {
            process,
            state: ProcessChange::Restarted,
            ..
        } => format!("{process} was started again"),
        EventKind::Process {
            process, reason, ..
        } => match reason {
            Some(reason) => format!("{process} ended ({})", text(reason)),
            None => format!("{process} ended"),
        },
        EventKind::Reload {
            file,
            progress,
            reason,
            ..
        } => reloaded(file, *progress, reason),
        EventKind::Upgrade { .. } => upgraded(what),
        EventKind::Missed { count: Some(count) } => {
            format!("{} missed", several(*count, "event", "events"))
        }
        EventKind::Missed { count: None } => {
            "events were missed, nobody knows how many: control was started again".to_owned()
        }
        EventKind::Unknown => "something of which this version does not know".to_owned(),
    }
}

/// Who has asked, in brackets.
#[must_use]
pub fn asked_by(asker: Asker) -> String {
    match asker.pid {
        Some(pid) => format!(" (uid {}, pid {pid})", asker.uid),
        None => format!(" (uid {})", asker.uid),
    }
}

fn several(count: u64, one: &str, many: &str) -> String {
    let things = if count == 1 { one } else { many };
    format!("{count} {things}")
}

fn because(said: String, reason: &Option<String>) -> String {
    match reason {
        Some(reason) => format!("{said}: {}", text(reason)),
        None => said,
    }
}

fn of(segment: Option<&str>, port: Option<&str>) -> String {
    let segment = segment.map(|name| format!(" of segment {}", text(name)));
    let port = port.map(|name| format!(" of port {}", text(name)));
    segment.into_iter().chain(port).collect()
}

fn bound(port: &str, mac: Option<&str>, addresses: &[String]) -> String {
    let all: Vec<&str> = mac
        .into_iter()
        .chain(addresses.iter().map(String::as_str))
        .collect();
    format!("port {port} is bound to {}", all.join(" "))
}

fn captured(port: &str, number: u32, filter: &str, progress: Progress) -> String {
    let done = match progress {
        Progress::Begun => "has begun",
        _ => "has ended",
    };
    let filter = match filter {
        "" => String::new(),
        filter => format!(" of {:?}", text(filter)),
    };
    format!("capture {number} at port {port}{filter} {done}")
}

fn changed(what: &EventKind) -> String {
    let EventKind::Change {
        action,
        subject,
        name,
        fields,
        more_fields,
        more_rules,
        disconnects,
        ..
    } = what
    else {
        return String::new();
    };
    if *more_rules > 0 {
        return format!("access lists changed: {more_rules} rules and address sets, or fewer");
    }
    let name = name.iter().map(|name| format!(" {name}"));
    let subject = subject.as_str().to_owned();
    let mut line: String = std::iter::once(subject).chain(name).collect();
    line.push_str(match action {
        Action::Add => " added",
        Action::Remove => " removed",
        Action::Change => " changed",
    });
    if *action == Action::Change {
        line.push_str(&differences(fields, *more_fields));
    }
    if *disconnects && *action == Action::Change {
        line.push_str(", which ends its connection");
    }
    line
}

/// The fields that differ, as many as a line has room for.
fn differences(fields: &[FieldChange], mut more: u64) -> String {
    let mut line = String::new();
    for field in fields {
        let one = format!(
            "{} {} -> {}",
            field.field,
            value(&field.from),
            value(&field.to)
        );
        if line.len() + one.len() > CHANGES_MAX {
            more += 1;
            continue;
        }
        let before = if line.is_empty() { ": " } else { ", " };
        let _ = write!(line, "{before}{one}");
    }
    if more > 0 {
        let before = if line.is_empty() { ": " } else { ", and " };
        let more = several(more, "more field", "more fields");
        let _ = write!(line, "{before}{more}");
    }
    line
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        // As JSON, what is no character for a terminal is escaped.
        other => text(&other.to_string()),
    }
}

fn reloaded(file: &str, progress: Progress, reason: &Option<String>) -> String {
    let file = text(file);
    match progress {
        Progress::Begun => format!("reloading {file}"),
        Progress::Done => format!("reloaded {file}"),
        _ => because(
            format!("{file} was not reloaded, nothing was changed"),
            reason,
        ),
    }
}

fn upgraded(what: &EventKind) -> String {
    let EventKind::Upgrade {
        progress,
        version,
        dir,
        gap_us,
        connections,
        reason,
        ..
    } = what
    else {
        return String::new();
    };
    match progress {
        Progress::Begun => {
            let dir = text(dir.as_deref().unwrap_or_default());
            format!("upgrade to the binaries in {dir}")
        }
        Progress::Done => {
            let version = text(version.as_deref().unwrap_or_default());
            let ms = gap_us.unwrap_or_default() as f64 / 1000.0;
            let connections = connections.unwrap_or_default().into();
            let connections = several(connections, "connection", "connections");
            format!("upgraded to version {version}: {connections} went on after {ms:.1} ms")
        }
        Progress::Refused => because("no upgrade".to_owned(), reason),
        Progress::RolledBack => because("the upgrade was rolled back".to_owned(), reason),
    }
}

/// UTC, as in RFC 3339, with milliseconds.
pub(super) fn time((seconds, nanoseconds): (u64, u64)) -> String {
    let (year, month, day) = date(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let ms = nanoseconds / 1_000_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day that are so many days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Years that begin in March have their leap day last; 400 of them have 146097 days, always.
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (400 * cycle + year + next, month, day)
}
