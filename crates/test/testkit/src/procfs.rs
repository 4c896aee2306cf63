//! Children, descriptors, memory and CPU time of processes, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Ticks of `/proc` in a second; Linux fixes USER_HZ for programs.
const TICKS: f64 = 100.0;

/// CPU time up to now, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuTimes {
    /// Of all cores, of all processes and of none: the ends of idle times are no process's.
    pub busy: f64,
    /// Taken by the hypervisor for others.
    pub steal: f64,
    /// By this process and all that it started.
    pub ours: f64,
    /// Of each other process, and of its children that have ended, by its process id; `None` where
    /// not all processes are seen.
    pub theirs: Option<BTreeMap<u32, f64>>,
}

impl CpuTimes {
    /// Reads them.
    #[must_use]
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let (busy, steal) = total(&stat, up_seconds()).unwrap_or_default();
        let us = std::process::id();
        let started = descendants(us);
        let with_ended = |pid| cpu_seconds(pid) + ended_seconds(pid);
        let other = |pid: &u32| *pid != us && !started.contains(pid);
        let theirs = || all().filter(other).map(|pid| (pid, with_ended(pid)));
        Self {
            busy,
            steal,
            ours: started.iter().copied().map(with_ended).sum::<f64>()
                + own_seconds()
                + ended_seconds(us),
            theirs: all_are_seen().then(|| theirs().collect()),
        }
    }

    /// Returns the difference to `before`. A process that has ended meanwhile is no difference but
    /// its parent's.
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        let theirs = self.theirs.zip(before.theirs.as_ref());
        let differences = |(now, before): (BTreeMap<u32, f64>, &BTreeMap<u32, f64>)| {
            let used = |pid, time| f64::max(time - before.get(&pid).unwrap_or(&0.0), 0.0);
            now.into_iter()
                .map(|(pid, time)| (pid, used(pid, time)))
                .collect()
        };
        Self {
            busy: self.busy - before.busy,
            steal: self.steal - before.steal,
            ours: self.ours - before.ours,
            theirs: theirs.map(differences),
        }
    }

    /// CPU time of all other processes: where not all are seen, what cores were not idle for,
    /// beyond ours.
    #[must_use]
    pub fn others(&self) -> f64 {
        match &self.theirs {
            Some(theirs) => theirs.values().sum(),
            None => (self.busy - self.ours).max(0.0),
        }
    }
}

/// Returns whether `/proc` shows the processes of the whole machine, not those of a container: the
/// kernel's threads are among them.
fn all_are_seen() -> bool {
    name(2).is_some_and(|name| name == "kthreadd")
}

/// Seconds since the machine was started.
fn up_seconds() -> f64 {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).map_or(0.0, |time| time.as_secs_f64())
}

/// Busy and stolen seconds of all cores, of `/proc/stat` at a time: what they were not idle. Idle
/// time is measured by the kernel, but what it says of busy time it finds by looking a hundred
/// times a second, and who is preempted then is seen each time.
fn total(stat: &str, now: f64) -> Option<(f64, f64)> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let core = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    let cores = stat.lines().filter(core).count() as f64;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|word| word.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal
    let [_, _, _, idle, waiting, _, _, steal, ..] = ticks[..] else {
        return None;
    };
    let (idle, steal) = ((idle + waiting) / TICKS, steal / TICKS);
    Some((cores * now - idle - steal, steal))
}

/// CPU time of a process with all its threads, in seconds; 0 when it is gone.
#[must_use]
pub fn cpu_seconds(pid: u32) -> f64 {
    exact_seconds(pid).unwrap_or_else(|| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        ticks_of(&stat).unwrap_or_default() / TICKS
    })
}

/// CPU time of this process, of threads that have ended too.
fn own_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).map_or(0.0, |time| time.as_secs_f64())
}

/// CPU time of a process's threads from the scheduler's own nanoseconds, where the kernel has them.
fn exact_seconds(pid: u32) -> Option<f64> {
    let mut sum = 0.0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        sum += text.split_whitespace().next()?.parse::<f64>().ok()?;
    }
    Some(sum / 1e9)
}

/// Returns the CPU time of those threads of a process and all its descendants that have this name,
/// in seconds; 0 where the kernel does not report it.
#[must_use]
pub fn named_seconds(pid: u32, name: &str) -> f64 {
    let family = descendants(pid).into_iter().chain([pid]);
    let tasks = family.flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")));
    let of = |task: &Path| {
        let text = fs::read_to_string(task.join("comm")).ok()?;
        let time = fs::read_to_string(task.join("schedstat")).ok()?;
        let nanos: f64 = time.split_whitespace().next()?.parse().ok()?;
        (text.trim() == name).then_some(nanos / 1e9)
    };
    tasks
        .flatten()
        .flatten()
        .filter_map(|task| of(&task.path()))
        .sum()
}

/// CPU time of a process's children that have ended, in seconds.
fn ended_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ticks_at(&stat, 13).unwrap_or_default() / TICKS
}

/// User and system ticks of `/proc/PID/stat`.
fn ticks_of(stat: &str) -> Option<f64> {
    ticks_at(stat, 11)
}

/// The sum of two fields, counted from the one after the name, which may hold anything, blanks and
/// brackets too.
fn ticks_at(stat: &str, first: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(first);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// All processes below `pid`, at any depth.
#[must_use]
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for child in all() {
        if let Some(parent) = status(child, "PPid").and_then(|value| value.parse().ok()) {
            children.entry(parent).or_default().push(child);
        }
    }
    let mut found = children.remove(&pid).unwrap_or_default();
    let mut next = 0;
    while next < found.len() {
        found.extend(children.remove(&found[next]).unwrap_or_default());
        next += 1;
    }
    found
}

/// The living processes below `pid`, at any depth, as (process id, name of the program), without
/// [`spares`].
#[must_use]
pub fn programs_below(pid: u32) -> Vec<(u32, String)> {
    let mut living = descendants(pid);
    living.retain(|&pid| !is_gone(pid) && !is_spare(pid));
    living.into_iter().map(|pid| (pid, program(pid))).collect()
}

/// The living children of `pid`, without [`spares`].
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let mut living = living_children(pid);
    living.retain(|child| !is_spare(*child));
    living
}

/// The children of `pid` that wait to take the place of others.
#[must_use]
pub fn spares(pid: u32) -> Vec<u32> {
    let mut living = living_children(pid);
    living.retain(|child| is_spare(*child));
    living
}

fn living_children(pid: u32) -> Vec<u32> {
    let parent = |child: &u32| status(*child, "PPid").and_then(|value| value.parse().ok());
    let living = all().filter(|&child| !is_gone(child));
    living.filter(|child| parent(child) == Some(pid)).collect()
}

fn is_spare(pid: u32) -> bool {
    let Some(name) = name(pid) else {
        return false;
    };
    // It has its name soon after its start, and another one once it is used.
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    let is_made_so = variables.any(|variable| variable == b"LASTHOP_SPARE=1");
    let is_used = ["lasthop-switch", "lasthop-control"].contains(&&*name);
    name == "lasthop-spare" || (is_made_so && !is_used)
}

/// The processes of a user, by the effective one.
#[must_use]
pub fn of_user(user: u32) -> Vec<u32> {
    let effective = |pid| status(pid, "Uid")?.split_whitespace().nth(1)?.parse().ok();
    all().filter(|&pid| effective(pid) == Some(user)).collect()
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns whether a process has ended, reaped or not.
#[must_use]
pub fn is_gone(pid: u32) -> bool {
    status(pid, "State").is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// The name of a process's program, without its folder.
fn program(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = command.split(|&byte| byte == 0).next().unwrap_or_default();
    let program = String::from_utf8_lossy(program);
    program.rsplit('/').next().unwrap_or_default().to_owned()
}

/// How often each thread of a process, and of all below it, has gone to sleep, by its id and name:
/// its voluntary context switches. Threads that have ended are left out.
#[must_use]
pub fn family_wake_ups(pid: u32) -> BTreeMap<(u32, String), u64> {
    let family = descendants(pid).into_iter().chain([pid]);
    let tasks = family.flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")));
    let ids = tasks.flatten().flatten();
    let ids = ids.filter_map(|task| task.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some(((id, name(id)?), wake_ups_of(id)?)))
        .collect()
}

fn wake_ups_of(thread: u32) -> Option<u64> {
    status(thread, "voluntary_ctxt_switches")?.parse().ok()
}

/// How often the calling thread has gone to sleep.
#[must_use]
pub fn own_wake_ups() -> u64 {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    wake_ups_of(thread.unsigned_abs()).unwrap_or_default()
}

/// CPU time of a process and all below it, in seconds.
#[must_use]
pub fn family_seconds(pid: u32) -> f64 {
    let below: f64 = descendants(pid).into_iter().map(cpu_seconds).sum();
    below + cpu_seconds(pid)
}

/// Memory of a process and all below it, in KiB: anonymous and shared, what several of them share
/// counted once and what they share with guests in part (the proportional set size), without
/// program files. Where that may not be read, their anonymous memory.
#[must_use]
pub fn family_kib(pid: u32) -> u64 {
    let mut family = descendants(pid);
    family.push(pid);
    family.into_iter().filter_map(memory_kib).sum()
}

/// Memory of one process; None when it is gone.
#[must_use]
pub fn memory_kib(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    proportional(&text).or_else(|| status(pid, "RssAnon").and_then(|value| kib(&value)))
}

/// Open descriptors of a process; None when it is gone.
#[must_use]
pub fn descriptors(pid: u32) -> Option<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    u64::try_from(entries.count()).ok()
}

/// Threads of a process; 0 when it is gone.
#[must_use]
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// How many pieces of memory a process has mapped; 0 when it is gone.
#[must_use]
pub fn mappings(pid: u32) -> usize {
    mapped(pid, "")
}

/// How many pieces of memory a process has mapped whose line in its map has such a text.
#[must_use]
pub fn mapped(pid: u32, text: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter(|line| line.contains(text)).count()
}

/// A process's own resident memory in KiB, without what it shares; 0 when it is gone.
#[must_use]
pub fn private_kib(pid: u32) -> u64 {
    status(pid, "RssAnon")
        .and_then(|value| kib(&value))
        .unwrap_or(0)
}

/// All resident memory of a process in KiB; 0 when it is gone.
#[must_use]
pub fn resident_kib(pid: u32) -> u64 {
    status(pid, "VmRSS")
        .and_then(|value| kib(&value))
        .unwrap_or(0)
}

/// The name of a process, 15 bytes at most; None when it is gone.
#[must_use]
pub fn name(pid: u32) -> Option<String> {
    status(pid, "Name")
}

/// Anonymous and shared memory of `/proc/PID/smaps_rollup`, in KiB.
fn proportional(rollup: &str) -> Option<u64> {
    let value = |key| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(kib)
    };
    Some(value("Pss_Anon:")? + value("Pss_Shmem:")?)
}

/// The number of `   12 kB`.
fn kib(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// A line of `/proc/PID/status`, which may be of a thread; None when it is gone.
#[must_use]
pub fn status(pid: u32, key: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::wait;

    #[test]
    fn cores_are_busy_while_they_are_not_idle() {
        let stat = "cpu  100 20 30 4000 50 6 4 50 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n\
            cpu1 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(total(stat, 25.0), Some((9.0, 0.5)));
        assert_eq!(total("cpu 1 2\n", 25.0), None);
        assert_eq!(total("", 25.0), None);
    }

    #[test]
    fn a_name_with_brackets_is_skipped() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 30 10 20 0 1 0 100 0 0";
        assert_eq!(ticks_of(stat), Some(200.0));
        assert_eq!(ticks_at(stat, 13), Some(40.0));
        assert_eq!(ticks_of("42 (a"), None);
    }

    #[test]
    fn others_are_what_is_not_ours() {
        let before = CpuTimes {
            busy: 10.0,
            steal: 0.0,
            ours: 4.0,
            theirs: None,
        };
        let after = CpuTimes {
            busy: 13.0,
            steal: 0.5,
            ours: 6.5,
            theirs: None,
        };
        let between = after.since(&before);
        assert!((between.others() - 0.5).abs() < 1e-9);
        assert!((between.steal - 0.5).abs() < 1e-9);
    }

    #[test]
    fn others_are_summed_up_where_all_are_seen() {
        let at = |theirs: &[(u32, f64)]| CpuTimes {
            theirs: Some(theirs.iter().copied().collect()),
            busy: 100.0,
            ..CpuTimes::default()
        };
        // One goes on, one has ended, one is new.
        let before = at(&[(2, 1.0), (7, 5.0)]);
        let between = at(&[(2, 1.25), (9, 0.5)]).since(&before);
        assert!((between.others() - 0.75).abs() < 1e-9);
    }

    #[test]
    fn children_are_ours_and_all_else_is_theirs() {
        let before = CpuTimes::now();
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell");
        let used = |before: &CpuTimes| CpuTimes::now().since(before).ours;
        wait::wait_until("the child has used CPU time", || used(&before) > 0.05);
        let theirs = CpuTimes::now().theirs;
        child.kill().and_then(|()| child.wait()).expect("it runs");
        if let Some(theirs) = theirs {
            assert!(!theirs.contains_key(&child.id()));
            assert!(theirs.contains_key(&1), "{theirs:?}");
        }
    }

    #[test]
    fn program_files_are_not_counted() {
        let rollup =
            "Rss: 900 kB\nPss: 500 kB\nPss_Anon:  100 kB\nPss_File: 350 kB\nPss_Shmem: 50 kB\n";
        assert_eq!(proportional(rollup), Some(150));
        assert_eq!(proportional("Pss: 500 kB\n"), None);
    }

    #[test]
    fn threads_that_ended_were_ours() {
        let before = own_seconds();
        std::thread::spawn(|| while own_seconds() < 0.01 {})
            .join()
            .expect("a thread");
        assert!(own_seconds() >= 0.01_f64.max(before));
    }

    #[test]
    fn a_sleep_is_a_wake_up() {
        let before = own_wake_ups();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = own_wake_ups();
        assert!(now >= before + 3, "{before}, {now}");
        let all = family_wake_ups(std::process::id());
        assert!(all.values().any(|count| *count >= now), "{all:?}");
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(family_kib(std::process::id()) > 0);
    }
}
