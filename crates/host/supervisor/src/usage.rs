//! CPU time, memory and wake-ups of processes from `/proc` (proc_pid_stat(5), proc_pid_statm(5),
//! proc_pid_status(5)). They have no access to these files themselves.

use std::path::Path;

use ipc::supervision::{FRAME_THREADS, ProcessUsage};
use rustix::param::{clock_ticks_per_second, page_size};

/// Returns the usage of a process; `None` if it does not run or is hidden.
pub(super) fn of(pid: u32) -> Option<ProcessUsage> {
    let text = |file| sys::file::text(format!("/proc/{pid}/{file}")).ok();
    let ticks = cpu_ticks(&text("stat")?)?;
    let (mapped, resident, shared) = pages(&text("statm")?)?;
    let bytes = |pages: u64| pages * page_size() as u64;
    Some(ProcessUsage {
        pid,
        cpu_ms: ticks * 1000 / clock_ticks_per_second(),
        wake_ups: wake_ups(pid),
        resident_bytes: bytes(resident),
        anonymous_bytes: bytes(resident.saturating_sub(shared)),
        mapped_bytes: bytes(mapped),
    })
}

/// Returns how often the threads that move frames have given up their core to wait: a context
/// switch that is voluntary is the begin of a sleep, whatever the thread waits for.
fn wake_ups(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    threads
        .filter_map(|thread| wake_ups_of(&thread.path()))
        .sum()
}

/// Returns the wake-ups of a thread; `None` if it moves no frames, or has ended.
fn wake_ups_of(thread: &Path) -> Option<u64> {
    let name = sys::file::text(thread.join("comm")).ok()?;
    if !FRAME_THREADS.contains(&name.trim_end()) {
        return None;
    }
    voluntary_switches(&sys::file::text(thread.join("status")).ok()?)
}

fn voluntary_switches(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

/// Returns the time in user and kernel mode.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = sys::procfs::stat_fields(stat)?.skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

/// Returns pages that are mapped, those of them in RAM, and those of these that belong to files and
/// shared memory.
fn pages(statm: &str) -> Option<(u64, u64, u64)> {
    let mut fields = statm.split_whitespace();
    let mut next = || fields.next()?.parse().ok();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 3 0 1000 0 0";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("7 (a) S 1 7 7"), None);
        assert_eq!(pages("1000 30 20 1 0 5 0"), Some((1000, 30, 20)));
        assert_eq!(pages("1000 30"), None);
    }

    #[test]
    fn sleeps_of_threads_that_move_frames_are_counted() {
        let status = "Name:\tworker\nvoluntary_ctxt_switches:\t71\n\
            nonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(voluntary_switches(status), Some(71));
        assert_eq!(voluntary_switches("Name:\tworker\n"), None);
        assert_eq!(wake_ups(std::process::id()), 0, "none has such a name");
        let (go, gone) = std::sync::mpsc::channel();
        let worker = std::thread::Builder::new().name(FRAME_THREADS[0].to_owned());
        let worker = worker.spawn(move || gone.recv());
        testkit::wait::wait_until("it sleeps", || wake_ups(std::process::id()) > 0);
        go.send(()).unwrap();
        worker.unwrap().join().unwrap().unwrap();
    }

    #[test]
    fn a_process_has_memory_and_one_that_is_not_there_says_nothing() {
        let own = of(std::process::id()).unwrap();
        assert_eq!(own.pid, std::process::id());
        assert!(own.anonymous_bytes > 0 && own.resident_bytes > own.anonymous_bytes);
        assert!(own.mapped_bytes > own.resident_bytes);
        assert_eq!(of(0), None);
        assert_eq!(of(u32::MAX), None);
    }
}
