//! Log of all processes.

pub mod closers;

use std::fmt;
use std::io::{self, IsTerminal};

use tracing::field::Field;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{self, Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts logging to standard error; `LASTHOP_LOG` filters the lines (`debug`, `datapath=trace`,
/// ...).
pub fn start() {
    let filter = filter(std::env::var("LASTHOP_LOG").ok().as_deref());
    let log = tracing_subscriber::fmt()
        .fmt_fields(fields())
        .with_max_level(LevelFilter::TRACE)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    if is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()) {
        let line = Format::default().without_time().with_level(false);
        log.event_format(Journal(line)).finish().with(filter).init();
    } else {
        log.finish().with(filter).init();
    }
}

/// Returns the filter of `LASTHOP_LOG`: level "info" where it is not set or cannot be parsed,
/// "error" where it is empty.
fn filter(text: Option<&str>) -> Targets {
    let info = || Targets::new().with_default(LevelFilter::INFO);
    let Some(text) = text else { return info() };
    let directives: Vec<_> = text.split(',').filter(|part| !part.is_empty()).collect();
    if directives.is_empty() {
        Targets::new().with_default(LevelFilter::ERROR)
    } else {
        directives.join(",").parse().unwrap_or_else(|_| info())
    }
}

/// Maximum number of characters of a value.
const MAX_VALUE_CHARS: usize = 4096;

/// Returns a formatter that writes each value in one line, of bounded length and without control
/// characters: guests, VMMs and clients of the API choose parts of them.
fn fields() -> impl for<'a> FormatFields<'a> + 'static {
    let write = |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let value = printable(&format!("{value:?}"));
        match field.name() {
            "message" => writer.write_str(&value),
            name => write!(writer, "{name}={value}"),
        }
    };
    format::debug_fn(write).delimited(" ")
}

/// Returns the beginning of a text, with its control characters escaped.
fn printable(text: &str) -> String {
    let mut chars = text.chars();
    let mut plain = String::new();
    for c in chars.by_ref().take(MAX_VALUE_CHARS) {
        if c.is_control() {
            plain.extend(c.escape_default())
        } else {
            plain.push(c)
        }
    }
    if chars.next().is_some() {
        plain.push('…');
    }
    plain
}

/// Returns whether standard error leads to the journal: `JOURNAL_STREAM` has device and inode of
/// that stream, but is also inherited by processes with another standard error (systemd.exec(5)).
fn is_journal(stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else {
        return false;
    };
    rustix::fs::fstat(io::stderr())
        .is_ok_and(|stat| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

/// Format for the journal, which has its own time stamps, and takes the priority from the line's
/// beginning (sd-daemon(3)).
struct Journal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::sync::Arc;

    use super::*;

    /// Returns the log output.
    pub(super) fn logged(write: impl FnOnce()) -> String {
        let kept = Arc::new(tempfile::tempfile().unwrap());
        let log = tracing_subscriber::fmt()
            .fmt_fields(fields())
            .with_writer(Arc::clone(&kept))
            .with_ansi(false)
            .without_time();
        tracing::subscriber::with_default(log.finish(), write);
        let (mut kept, mut text) = (&*kept, String::new());
        kept.rewind().unwrap();
        kept.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_environment_selects_lines() {
        let enabled = |text, target, level| filter(text).would_enable(target, &level);
        assert!(enabled(None, "control::engine", Level::INFO));
        assert!(!enabled(None, "control::engine", Level::DEBUG));
        assert!(enabled(Some(""), "control", Level::ERROR));
        assert!(!enabled(Some(""), "control", Level::WARN));
        let some = Some("WARN,,control::engine=debug,");
        assert!(enabled(some, "control::engine::api_gate", Level::DEBUG));
        assert!(enabled(some, "datapath", Level::WARN));
        assert!(!enabled(some, "control::api", Level::INFO));
        assert!(enabled(Some("datapath=loud"), "control", Level::INFO));
        assert!(!enabled(Some("off"), "control", Level::ERROR));
        assert!(!enabled(Some("datapath=debug"), "control", Level::ERROR));
    }

    #[test]
    fn every_record_is_one_line_of_bounded_length() {
        let evil = "a\nERROR b\r\x1b[31mc\u{9b}2J\u{7f}\0";
        let line = logged(|| tracing::info!(port = %evil, path = ?evil, "{evil}"));
        assert_eq!(
            line.matches(|c: char| c.is_control()).count(),
            1,
            "{line:?}"
        );
        assert!(line.ends_with('\n'), "{line:?}");
        assert!(
            line.contains(r"a\nERROR b\r\u{1b}[31mc\u{9b}2J\u{7f}\u{0} port=a\n"),
            "{line}"
        );
        let line =
            logged(|| tracing::warn!(reason = %"x".repeat(1 << 20), "{}", "y".repeat(1 << 20)));
        assert!(line.len() < 3 * MAX_VALUE_CHARS, "{}", line.len());
        assert!(line.ends_with("…\n") && line.contains("y… reason=xx"));
        let line = logged(|| tracing::info!(frames = 3, "ünïcode 'stays'"));
        assert!(line.ends_with("ünïcode 'stays' frames=3\n"), "{line}");
    }
}
