//! Sampling of threads and cores where BPF is not available: `/proc`, some times per second
//! (proc(5)).
//!
//! Changes between two samples are not seen: a thread that slept at both may have run in between,
//! and *since* is the first sample that showed the state. `/proc` does not distinguish a thread
//! that runs from one that waits for a core; both count as running.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Activity, Table, Vcpu};

/// Period between two samples.
pub const PERIOD: Duration = Duration::from_millis(100);
/// Most threads in one sample; others follow in the next.
const MOST: usize = 256;
/// Least part of the time, in percent, that a core was idle to count as idle.
const IDLES: u64 = 90;

/// State of the last sample.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Idle and total time of each core.
    cores: BTreeMap<usize, (u64, u64)>,
    /// The thread that was sampled last.
    last: u32,
}

impl Sampler {
    /// Samples the followed threads, and the cores. `now_ns`: of the machine's monotonic clock.
    pub fn look(&mut self, table: &Table, now_ns: u64) {
        let (before, after): (Vec<_>, Vec<_>) = table
            .threads()
            .partition(|(thread, _)| *thread <= self.last);
        for (thread, slot) in after.into_iter().chain(before).take(MOST) {
            self.last = thread;
            let Some((activity, core)) = of_thread(thread) else {
                table.clear(slot);
                continue;
            };
            let known = table.state(slot);
            let same = known.filter(|known| known.activity == activity);
            table.set(
                slot,
                Vcpu {
                    activity,
                    core,
                    since_ns: same.map_or(now_ns, |known| known.since_ns),
                },
            );
        }
        if let Ok(stat) = std::fs::read_to_string("/proc/stat") {
            self.look_at_cores(table, &stat);
        }
    }

    fn look_at_cores(&mut self, table: &Table, stat: &str) {
        for (core, idle, all) in stat.lines().filter_map(core_times) {
            let Some((idle_before, all_before)) = self.cores.insert(core, (idle, all)) else {
                continue;
            };
            let idle = idle.saturating_sub(idle_before);
            let all = all.saturating_sub(all_before);
            if all > 0 {
                table.set_core(core, 100 * idle >= IDLES * all);
            }
        }
    }
}

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

/// Parses a core's line: its number, the idle ticks, and all ticks.
fn core_times(line: &str) -> Option<(usize, u64, u64)> {
    let mut fields = line.strip_prefix("cpu")?.split(' ');
    let core = fields.next()?.parse().ok()?;
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    // User, nice, system, idle, iowait; the later fields are part of those, or another's time.
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((core, idle, ticks.iter().take(8).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::View;

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
    fn a_core_idles_that_did_so_most_of_the_time_between_two_looks() {
        let table = Table::in_memory().unwrap();
        let view = View::map(table.reader()).unwrap();
        let mut sampler = Sampler::default();
        let stat = |idle: u64, busy: u64| {
            format!(
                "cpu  1 2 3 4 5\ncpu0 {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 5\n"
            )
        };
        sampler.look_at_cores(&table, &stat(1000, 1000));
        assert!(!view.core_idles(0), "first sample");
        sampler.look_at_cores(&table, &stat(1010, 1001));
        assert!(view.core_idles(0) && !view.core_idles(1));
        sampler.look_at_cores(&table, &stat(1010, 1001));
        assert!(view.core_idles(0), "no time has passed");
        sampler.look_at_cores(&table, &stat(1011, 1010));
        assert!(!view.core_idles(0));
        sampler.look_at_cores(&table, &stat(0, 0));
        sampler.look_at_cores(&table, "cpu0\ncpu0 1\ncpux 1 2 3 4 5\n");
    }

    #[test]
    fn threads_are_seen_to_sleep_and_to_spin_and_to_be_gone() {
        use std::sync::atomic::{AtomicBool, Ordering};
        static SPIN: AtomicBool = AtomicBool::new(true);
        let id = || {
            rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .cast_unsigned()
        };
        let (say, hear) = std::sync::mpsc::channel();
        let (keep, wait) = std::sync::mpsc::channel::<()>();
        let say_too = say.clone();
        let sleeper = std::thread::spawn(move || {
            say.send(id()).unwrap();
            let _ = wait.recv();
        });
        let sleeping = hear.recv().unwrap();
        let spinner = std::thread::spawn(move || {
            say_too.send(id()).unwrap();
            while SPIN.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let spinning = hear.recv().unwrap();
        let mut table = Table::in_memory().unwrap();
        let view = View::map(table.reader()).unwrap();
        let slots = [sleeping, spinning].map(|thread| table.follow(thread).unwrap());
        let seen = |slot| {
            view.state(slot)
                .map(|state| (state.activity, state.since_ns))
        };
        let mut sampler = Sampler::default();
        // The sleeper may be on its way to sleep.
        while seen(slots[0]).is_none_or(|(activity, _)| activity != Activity::Blocked) {
            sampler.look(&table, 256);
        }
        sampler.look(&table, 512);
        assert_eq!(seen(slots[0]), Some((Activity::Blocked, 256)));
        assert_eq!(seen(slots[1]), Some((Activity::Running, 256)));
        drop(keep);
        SPIN.store(false, Ordering::Relaxed);
        sleeper.join().unwrap();
        spinner.join().unwrap();
        // The kernel keeps threads for a while after they were waited for.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while slots.map(seen) != [None, None] && std::time::Instant::now() < end {
            sampler.look(&table, 1024);
        }
        assert_eq!(slots.map(seen), [None, None]);
    }
}
