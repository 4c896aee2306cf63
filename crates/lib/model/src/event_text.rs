//! Events as text, for the log and the command line.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use crate::{
    Action, ConnectionLimit, ConnectionOpener, EventKind, FieldChange, PrefilterChange,
    ProcessChange, Progress, Requester,
};

/// Most characters of the differences in one line.
const CHANGES_MAX: usize = 400;
/// Most characters of a text of foreign origin.
pub const TEXT_MAX: usize = 512;

/// Returns a text of foreign origin without control characters, and truncated.
#[must_use]
pub fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(TEXT_MAX).map(visible).collect()
}

/// Returns an event as one line without its time and requester.
#[must_use]
pub fn message(what: &EventKind) -> String {
    match what {
        EventKind::Port {
            port,
            state,
            reason,
        } => with_reason(format!("port {port} is {}", state.as_str()), reason),
        EventKind::MacMoved {
            segment,
            mac,
            from,
            to,
        } => format!("MAC {mac} moved from port {from} to port {to} in segment {segment}"),
        EventKind::MacFlapping {
            segment,
            mac,
            port,
            holder,
        } => format!("MAC {mac} in segment {segment} stays at port {holder}: {port} uses it too"),
        EventKind::AddressBound {
            port,
            mac,
            addresses,
        } => bound(port, mac.as_deref(), addresses),
        EventKind::Change { .. } => changed(what),
        EventKind::FdbFlushed {
            segment,
            port,
            count,
            ..
        } => {
            let of = of(segment.as_deref(), port.as_deref());
            let addresses = several(*count, "learned address", "learned addresses");
            format!("{addresses}{of} flushed")
        }
        EventKind::Pipe {
            pipe,
            id,
            end,
            state,
            program,
            pid,
        } => format!(
            "{end} end of pipe {id} of {pipe} {}: {program}, process {pid}",
            state.as_str()
        ),
        EventKind::FlowsPurged { port, .. } => {
            format!("cached flows{} were purged", of(None, port.as_deref()))
        }
        EventKind::ConnectionsFlushed {
            segment,
            port,
            filter,
            count,
            reason,
            ..
        } => {
            let which = of(segment.as_deref(), port.as_deref());
            let matches = filter.as_deref().map(printable);
            let matches = matches.map_or_else(String::new, |filter| format!(" of {filter:?}"));
            let connections = match count {
                Some(count) => several(*count, "connection", "connections"),
                None => "all connections".to_owned(),
            };
            with_reason(format!("{connections}{which}{matches} flushed"), reason)
        }
        EventKind::ConnectionsFull {
            port,
            opener,
            bound,
            limit,
        } => full(port, *opener, *bound, *limit),
        EventKind::Prefilter {
            port,
            state,
            rules,
            frames,
        } => prefiltered(port, *state, rules, *frames),
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
        } => format!("{process} restarted"),
        EventKind::Process {
            process, reason, ..
        } => match reason {
            Some(reason) => format!("{process} ended ({})", printable(reason)),
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
            "an unknown number of events was missed: control restarted".to_owned()
        }
        EventKind::Unknown => "event of a kind unknown to this version".to_owned(),
    }
}

/// Returns the requester in parentheses.
#[must_use]
pub fn requester_text(requester: Requester) -> String {
    match requester.pid {
        Some(pid) => format!(" (uid {}, pid {pid})", requester.uid),
        None => format!(" (uid {})", requester.uid),
    }
}

fn several(count: u64, one: &str, many: &str) -> String {
    let things = if count == 1 { one } else { many };
    format!("{count} {things}")
}

fn with_reason(text: String, reason: &Option<String>) -> String {
    match reason {
        Some(reason) => format!("{text}: {}", printable(reason)),
        None => text,
    }
}

fn of(segment: Option<&str>, port: Option<&str>) -> String {
    let segment = segment.map(|name| format!(" of segment {}", printable(name)));
    let port = port.map(|name| format!(" of port {}", printable(name)));
    segment.into_iter().chain(port).collect()
}

fn full(port: &str, opener: ConnectionOpener, bound: ConnectionLimit, limit: u32) -> String {
    let opened = match opener {
        ConnectionOpener::OpenedTo => "opened to",
        _ => "opened by",
    };
    let limit = match bound {
        ConnectionLimit::Limit => format!("{limit}, its limit"),
        ConnectionLimit::Unreplied => format!("{limit} without an answer, its share of the table"),
        _ => format!("{limit}, its share of the table"),
    };
    format!("connections {opened} port {port} have reached {limit}")
}

fn prefiltered(
    port: &str,
    state: PrefilterChange,
    rules: &[String],
    frames: Option<u64>,
) -> String {
    let rules = match rules {
        [] => String::new(),
        rules => format!(" ({})", rules.join(" ")),
    };
    match (state, frames) {
        (PrefilterChange::Began, _) => {
            format!("denied frames of port {port} end at the wire{rules}")
        }
        (PrefilterChange::Ended, frames) => format!(
            "no denied frames of port {port} end at the wire any more{rules}; {}",
            several(frames.unwrap_or(0), "frame", "frames")
        ),
    }
}

fn bound(port: &str, mac: Option<&str>, addresses: &[String]) -> String {
    let all: Vec<&str> = mac
        .into_iter()
        .chain(addresses.iter().map(String::as_str))
        .collect();
    format!("address bound to port {port}: {}", all.join(" "))
}

fn captured(port: &str, number: u32, filter: &str, progress: Progress) -> String {
    let done = match progress {
        Progress::Started => "has begun",
        _ => "has ended",
    };
    let filter = match filter {
        "" => String::new(),
        filter => format!(" of {:?}", printable(filter)),
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
        return format!("access lists changed: at most {more_rules} rules and address sets");
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

/// Returns the fields that differ, as many as a line has room for.
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
        // JSON escapes control characters.
        other => printable(&other.to_string()),
    }
}

fn reloaded(file: &str, progress: Progress, reason: &Option<String>) -> String {
    let file = printable(file);
    match progress {
        Progress::Started => format!("reloading {file}"),
        Progress::Done => format!("reloaded {file}"),
        _ => with_reason(
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
        Progress::Started => {
            let dir = printable(dir.as_deref().unwrap_or_default());
            format!("upgrade to the binaries in {dir}")
        }
        Progress::Done => {
            let version = printable(version.as_deref().unwrap_or_default());
            let ms = gap_us.unwrap_or_default() as f64 / 1000.0;
            let connections = connections.unwrap_or_default().into();
            let connections = several(connections, "connection", "connections");
            format!("upgraded to version {version}: {connections} resumed after {ms:.1} ms")
        }
        Progress::Refused => with_reason("upgrade refused".to_owned(), reason),
        Progress::RolledBack => with_reason("the upgrade was rolled back".to_owned(), reason),
    }
}

/// Returns a time in UTC as in RFC 3339, with milliseconds.
#[must_use]
pub fn time(since_1970: Duration) -> String {
    let (seconds, ms) = (since_1970.as_secs(), since_1970.subsec_millis());
    let (year, month, day) = date(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Returns year, month and day of a number of days after 1970-01-01.
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
