//! Log lines about descriptors of other processes that do not close.

use std::time::{Duration, Instant};

use port::EventLimiter;
use sys::closer::Report;

/// Log lines of a process, within this time: a client can connect again and again.
const LINES: (u32, Duration) = (20, Duration::from_secs(60));

/// Returns the callback of [`sys::closer::start`] that logs.
pub fn logger() -> impl FnMut(Report) + Send + 'static {
    let began = Instant::now();
    let mut lines = EventLimiter::new(LINES.0, LINES.1);
    move |report| log(&mut lines, began.elapsed(), report)
}

/// Logs a report, unless there are too many. `now` is on any monotonic clock.
fn log(lines: &mut EventLimiter, now: Duration, report: Report) {
    let Some(suppressed) = lines.admit(now) else {
        return;
    };
    let suppressed = (suppressed > 0).then_some(suppressed);
    let Report {
        user,
        label: port,
        connection,
        waiting,
        ..
    } = report;
    let seconds = report.time.as_secs();
    if report.has_ended {
        tracing::info!(
            port,
            user,
            connection,
            seconds,
            suppressed,
            "all descriptors of this client are closed"
        );
    } else {
        tracing::warn!(
            port,
            user,
            connection,
            seconds,
            waiting,
            suppressed,
            "a client's descriptor does not close: it waits in the kernel"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::logged;

    #[test]
    fn a_report_names_the_client_and_lines_are_limited() {
        let stands = Report {
            user: Some(1000),
            label: Some(3),
            connection: 17,
            time: Duration::from_secs(5),
            waiting: 2,
            has_ended: false,
        };
        let (mut lines, now) = (EventLimiter::new(LINES.0, LINES.1), Duration::ZERO);
        let text = logged(|| log(&mut lines, now, stands));
        let client = "port=3 user=1000 connection=17 seconds=5 waiting=2";
        assert!(text.contains("WARN") && text.contains(client), "{text}");
        let unknown = Report {
            user: None,
            label: None,
            has_ended: true,
            ..stands
        };
        let text = logged(|| log(&mut lines, now, unknown));
        assert!(text.contains("INFO") && !text.contains("user"), "{text}");
        let text = logged(|| (0..100).for_each(|_| log(&mut lines, now, stands)));
        assert_eq!(text.lines().count() as u32, LINES.0 - 2);
        let text = logged(|| log(&mut lines, LINES.1, stands));
        assert!(text.contains("suppressed=82"), "{text}");
    }
}
