//! Child process, started by this supervisor or by the one that it replaced.
//!
//! A killed process whose thread waits in the kernel, for example for a file system's daemon that
//! does not answer, does not end. It is given up after [`GIVE_UP`], if none of its threads can
//! return from the kernel: it writes to no memory any more, and its successor may start. It stays
//! on a list until it can be reaped.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};
use sys::closer;

/// Time after which a killed process is given up: 1 second.
const GIVE_UP: Duration = Duration::from_secs(1);
/// Time after which that is tried again: 200 milliseconds.
const RETRY: Duration = Duration::from_millis(200);
/// Maximum number of processes that are given up at a time. With more, the next one has no
/// successor until one of them can be reaped.
const MAX_GIVEN_UP: usize = 8;

/// Processes that were given up.
static GIVEN_UP: Mutex<Vec<GivenUp>> = Mutex::new(Vec::new());

/// Process that was given up and is not reaped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct GivenUp {
    pub(super) name: String,
    pub(super) pid: Pid,
    /// Time when it was put on the list.
    pub(super) since: Instant,
}

impl GivenUp {
    fn new(name: String, pid: Pid) -> Self {
        let since = Instant::now();
        Self { name, pid, since }
    }

    fn is_reaped(&self) -> bool {
        !matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None))
    }
}

fn given_up() -> MutexGuard<'static, Vec<GivenUp>> {
    GIVEN_UP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps the processes that were given up and have ended; returns the others.
pub(super) fn reap_given_up() -> Vec<GivenUp> {
    let mut all = given_up();
    all.retain(|one| {
        let is_reaped = one.is_reaped();
        if is_reaped {
            tracing::info!(
                pid = one.pid.as_raw_nonzero().get(),
                "{} ended at last",
                one.name
            );
        }
        !is_reaped
    });
    all.clone()
}

/// Adopts the children of this process that `known` does not have: those that the supervisor which
/// this one replaced has given up. Without `/proc` there are none.
pub(super) fn adopt_given_up(known: &[u32]) {
    let own = std::process::id();
    let children = sys::file::text(format!("/proc/{own}/task/{own}/children"));
    let children = children.unwrap_or_default();
    let unknown = children.split_ascii_whitespace();
    let unknown = unknown.filter_map(|child| child.parse().ok());
    for pid in unknown.filter(|pid| !known.contains(pid)) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            given_up().push(GivenUp::new("process".to_owned(), pid));
        }
    }
}

/// State of a process that has ended, as far as the supervisor is concerned.
#[derive(Clone, Copy)]
enum End {
    Reaped(ExitStatus),
    GivenUp,
}

/// Child process with its pidfd.
pub(super) struct Running {
    name: String,
    pid: Pid,
    pidfd: OwnedFd,
    end: Option<End>,
    /// Time of the next check whether a killed process is to be given up.
    check_at: Cell<Option<Instant>>,
}

impl Running {
    /// Returns the process of a child.
    ///
    /// # Errors
    /// Failed system call.
    pub(super) fn of(name: impl ToString, child: &std::process::Child) -> io::Result<Self> {
        Self::with_pid(name, child.id())
    }

    /// Returns the child with this process id.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn with_pid(name: impl ToString, pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            name: name.to_string(),
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            end: None,
            check_at: Cell::new(None),
        })
    }

    /// Returns the process id.
    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Reaps the process if it has ended, or gives it up, and returns its exit status.
    pub(super) fn has_ended(&mut self) -> Option<ExitStatus> {
        if self.end.is_none() {
            self.end = match waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(Some((_, status))) => Some(End::Reaped(ExitStatus::from_raw(status.as_raw()))),
                // The exit status is lost.
                Err(Errno::CHILD) => Some(End::Reaped(ExitStatus::from_raw(libc::SIGKILL))),
                _ => self.give_up(Instant::now()).then_some(End::GivenUp),
            };
        }
        self.end.map(|end| match end {
            End::Reaped(status) => status,
            End::GivenUp => ExitStatus::from_raw(libc::SIGKILL),
        })
    }

    /// Returns whether [`Running::has_ended`] has seen its end.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Returns whether it was given up.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.end, Some(End::GivenUp))
    }

    /// Returns whether a killed process is to be given up now.
    fn give_up(&self, now: Instant) -> bool {
        let Some(at) = self.check_at.get() else {
            return false;
        };
        if now < at {
            return false;
        }
        self.check_at.set(Some(now + RETRY));
        if !cannot_return(self.id()) {
            return false;
        }
        let others = given_up().len();
        let (name, pid) = (&self.name, self.id());
        if others >= MAX_GIVEN_UP {
            self.check_at.set(Some(now + GIVE_UP));
            tracing::error!(
                pid,
                "killed {name} waits in the kernel, as {others} others do"
            );
            return false;
        }
        tracing::error!(pid, "killed {name} waits in the kernel: given up");
        true
    }

    /// Returns the time of the next check of a killed process.
    pub(super) fn due(&self) -> Option<Instant> {
        self.check_at.get().filter(|_| self.end.is_none())
    }

    /// Waits until the process has ended, and reaps it; `false` if it has not at the deadline.
    pub(super) fn ends_by(&mut self, deadline: Instant) -> bool {
        while self.has_ended().is_none() {
            let until = self.due().map_or(deadline, |due| due.min(deadline));
            let ended = sys::wait::ready(&self.pidfd, PollFlags::IN, Some(until));
            let is_over = Instant::now() >= deadline;
            if is_over && ended.is_ok_and(|ended| ended.is_empty()) {
                return false;
            }
        }
        true
    }

    /// Returns whether it was killed by [`Running::kill`].
    pub(super) fn is_killed(&self) -> bool {
        self.check_at.get().is_some()
    }

    /// Returns whether none of its threads can return from the kernel.
    pub(super) fn cannot_return(&self) -> bool {
        cannot_return(self.id())
    }

    /// Returns the numbers of the closers that wait in the kernel, killed, for a close to end. The
    /// others have gone, or go.
    pub(super) fn standing_closers(&self) -> Vec<usize> {
        let standing = |thread: Thread| thread.standing_closer();
        let threads = threads(self.id()).into_iter().flatten();
        threads.flatten().filter_map(standing).collect()
    }

    /// Kills the process.
    pub(super) fn kill(&self) {
        if self.check_at.get().is_none() {
            self.check_at.set(Some(Instant::now() + GIVE_UP));
        }
        // A process that has ended needs no signal.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// A process that is not reaped stays on the list of those that were given up.
impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended().is_none() || self.is_given_up() {
            given_up().push(GivenUp::new(self.name.clone(), self.pid));
        }
    }
}

/// Pidfd, readable when the process has ended.
impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Looks at the threads of a process while some end.
const LOOKS: usize = 8;

/// Returns whether no thread of a process can return from the kernel: each is dead, ends, or waits
/// uninterruptibly and will find SIGKILL.
fn cannot_return(pid: u32) -> bool {
    let look = |_| are_lost(pid);
    (0..LOOKS).find_map(look).unwrap_or(false)
}

/// As [`cannot_return`]; `None` if a thread has gone meanwhile.
fn are_lost(pid: u32) -> Option<bool> {
    let Some(mut threads) = threads(pid) else {
        return Some(false);
    };
    threads.try_fold(true, |lost, thread| Some(lost && thread?.is_lost()))
}

/// Returns the threads of a process; `None` for each that has gone meanwhile.
fn threads(pid: u32) -> Option<impl Iterator<Item = Option<Thread>>> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    Some(threads.map(|thread| Thread::at(&thread.ok()?.path())))
}

/// State of a thread.
struct Thread {
    /// Field `state` of proc_pid_stat(5).
    state: String,
    /// It runs exit(2).
    is_exiting: bool,
    /// It will find SIGKILL when it returns from the kernel.
    is_killed: bool,
    name: String,
}

impl Thread {
    fn at(path: &Path) -> Option<Self> {
        let stat = sys::file::text(path.join("stat")).ok()?;
        let status = sys::file::text(path.join("status")).ok()?;
        Self::read(&stat, &status)
    }

    /// Reads its files (proc_pid_stat(5), proc_pid_status(5)).
    fn read(stat: &str, status: &str) -> Option<Self> {
        /// `PF_EXITING` in `linux/sched.h`.
        const EXITING: u32 = 4;
        const KILL: u64 = 1 << (libc::SIGKILL - 1);
        let value = |key| {
            let values = status.lines().filter_map(|line| line.strip_prefix(key));
            values.map(str::trim).next()
        };
        let mut fields = sys::procfs::stat_fields(stat)?;
        let state = fields.next()?.to_owned();
        // The state is field 3, the flags are field 9.
        let flags: u32 = fields.nth(5)?.parse().ok()?;
        let pending = value("SigPnd:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        Some(Self {
            state,
            is_exiting: flags & EXITING != 0,
            is_killed: pending.is_some_and(|mask| mask & KILL != 0),
            name: value("Name:").unwrap_or_default().to_owned(),
        })
    }

    /// Returns whether it never runs code of its program again.
    fn is_lost(&self) -> bool {
        match &*self.state {
            "Z" | "X" => true,
            "D" => self.is_exiting || self.is_killed,
            _ => self.is_exiting,
        }
    }

    /// Returns the closer's number if it is one and has not come back from its last call.
    fn standing_closer(&self) -> Option<usize> {
        let stands = self.state == "D" && self.is_killed && !self.is_exiting;
        closer::number_of(&self.name).filter(|_| stands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(state: &str, flags: u32) -> String {
        format!("7 (a b) {state} 1 7 7 0 -1 {flags} 0 0")
    }

    const KILLED: &str = "Name:\tcloser 3\nSigPnd:\t0000000000000100\n";
    const NOT_KILLED: &str = "Name:\tcloser 3\nSigPnd:\t0000000000000000\n";

    fn thread(state: &str, flags: u32, status: &str) -> Thread {
        Thread::read(&stat(state, flags), status).expect("a thread")
    }

    #[test]
    fn a_thread_is_lost_if_it_is_dead_or_cannot_leave_the_kernel() {
        let is_lost = |state, flags, status| thread(state, flags, status).is_lost();
        assert!(is_lost("Z", 0, NOT_KILLED));
        assert!(is_lost("D", 0, KILLED));
        assert!(is_lost("D", 4, NOT_KILLED), "it is in exit");
        assert!(is_lost("R", 4, NOT_KILLED), "it frees memory in exit");
        assert!(!is_lost("D", 0, NOT_KILLED), "a disk may answer");
        assert!(!is_lost("R", 0, KILLED), "it may run still");
        assert!(!is_lost("t", 0, KILLED), "a debugger holds it");
        assert!(!is_lost("S", 0, "SigPnd:\t0000000000000001\n"));
        assert!(Thread::read("", "").is_none());
    }

    /// The others have done their last job: what its slot names is closed.
    #[test]
    fn a_closer_stands_if_the_kill_does_not_end_its_call() {
        let closer = |state, flags, status| thread(state, flags, status).standing_closer();
        assert_eq!(closer("D", 0, KILLED), Some(3));
        assert_eq!(closer("D", 0, NOT_KILLED), None);
        assert_eq!(closer("D", 4, KILLED), None, "it is in exit");
        assert_eq!(closer("R", 0, KILLED), None);
        let other = KILLED.replace("closer 3", "worker 3");
        assert_eq!(closer("D", 0, &other), None);
    }

    #[test]
    fn a_process_that_runs_is_not_given_up() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut running = Running::of("sleep", &child).unwrap();
        assert!(!cannot_return(running.id()));
        assert!(
            !running.give_up(Instant::now() + 10 * GIVE_UP),
            "nobody killed it"
        );
        running.kill();
        assert!(running.ends_by(Instant::now() + Duration::from_secs(60)));
        assert!(!running.is_given_up());
        // Reaped.
        assert!(child.try_wait().is_err());
    }
}
