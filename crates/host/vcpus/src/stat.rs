//! The state of a thread in `/proc` (proc(5)): the first one of a thread that is followed, because
//! the BPF programs report only changes.
//!
//! `/proc` does not distinguish a thread that runs from one that waits for a core; both count as
//! running.

use crate::Activity;

/// Returns the activity of a thread, and the core that it ran on last; `None` when it has ended.
#[must_use]
pub fn of_thread(thread: u32) -> Option<(Activity, u16)> {
    let stat = std::fs::read(format!("/proc/{thread}/task/{thread}/stat")).ok()?;
    activity(&String::from_utf8_lossy(&stat))
}

/// Parses a thread's line. Its name, which may have any characters, stands in parentheses.
fn activity(stat: &str) -> Option<(Activity, u16)> {
    let mut fields = sys::procfs::stat_fields(stat)?;
    let activity = match fields.next()? {
        "R" => Activity::Running,
        "X" | "x" | "Z" => return None,
        _ => Activity::Blocked,
    };
    // The state is the third field, the core the 39th.
    let core = fields.nth(39 - 3 - 1)?.parse().ok()?;
    Some((activity, core))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_thread_is_read_whatever_its_name() {
        let line = |name: &str, state: &str| {
            let zeros = "0 ".repeat(35);
            format!("17 ({name}) {state} {zeros}5 0 0\n")
        };
        assert_eq!(activity(&line("a", "R")), Some((Activity::Running, 5)));
        assert_eq!(
            activity(&line("a) R 1 (", "S")),
            Some((Activity::Blocked, 5))
        );
        assert_eq!(
            activity(&line("CPU 0/KVM", "D")),
            Some((Activity::Blocked, 5))
        );
        assert_eq!(activity(&line("a", "Z")), None);
        assert_eq!(activity("17 (a) R 1 2"), None);
        assert_eq!(activity(""), None);
    }

    #[test]
    fn a_thread_runs_while_it_asks_and_is_gone_after_its_end() {
        let id = || rustix::thread::gettid().as_raw_nonzero().get();
        let thread = std::thread::spawn(move || {
            let id = id().cast_unsigned();
            (id, of_thread(id).map(|(activity, _)| activity))
        });
        let (id, own) = thread.join().unwrap();
        assert_eq!(own, Some(Activity::Running));
        // The kernel keeps threads for a while after they were waited for.
        testkit::wait::wait_until("its end", || of_thread(id).is_none());
    }
}
