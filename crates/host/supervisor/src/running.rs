//! Child process, started by this supervisor or by the one that it replaced.
//!
//! The system reports the end of a process once it has freed what the process had, and a switch has
//! mapped the memory of all guests. Its threads have left the program long before. So the
//! supervisor watches threads as well ([`Running::watch_threads`]): a process without one that can
//! run is over, and is reaped later.
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
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, pidfd_open, pidfd_send_signal,
    waitid, waitpid,
};
use sys::closer;
use sys::foreign::Author;

/// Time after which a killed process is given up: 1 second.
const GIVE_UP: Duration = Duration::from_secs(1);
/// Time after which that is tried again: 200 milliseconds.
const RETRY: Duration = Duration::from_millis(200);
/// Time between two looks at the threads of a process that ends: 200 microseconds at first, then
/// twice as long each time, at most 100 milliseconds.
const LOOK: Duration = Duration::from_micros(200);
const MAX_LOOK: Duration = Duration::from_millis(100);
/// Time after which a process that is over is reaped: 100 milliseconds. Its successor starts
/// meanwhile, and the system needs milliseconds to remove a process that had many descriptors.
const REAP: Duration = Duration::from_millis(100);
/// Maximum number of processes that are given up or not reaped at a time. With more, the next one
/// has no successor until it is reaped.
const MAX_UNREAPED: usize = 8;

/// Processes that are over and not reaped.
static UNREAPED: Mutex<Vec<UnreapedProcess>> = Mutex::new(Vec::new());

/// Process that is over and not reaped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct UnreapedProcess {
    pub(super) name: String,
    pub(super) pid: Pid,
    /// Time when it was put on the list.
    pub(super) since: Instant,
    /// It was given up. One that frees its memory is not, for a while.
    is_given_up: bool,
}

impl UnreapedProcess {
    fn new(name: String, pid: Pid, is_given_up: bool) -> Self {
        let since = Instant::now();
        Self {
            name,
            pid,
            since,
            is_given_up,
        }
    }

    fn is_reaped(&self) -> bool {
        let is_due = self.is_given_up || self.since.elapsed() >= REAP;
        is_due && !matches!(reaped(self.pid), Ok(None))
    }

    /// Notes that it takes long.
    fn give_up_if_due(&mut self) {
        if !self.is_given_up && self.since.elapsed() >= GIVE_UP {
            self.is_given_up = true;
            let (name, pid) = (&self.name, self.pid.as_raw_nonzero().get());
            tracing::error!(pid, "killed {name} waits in the kernel: given up");
        }
    }
}

/// Returns the exit status of a child that has ended. Another thread reaps it: the system removes
/// what `/proc` has of it then, which takes tens of milliseconds if a program has listed many
/// descriptors there.
///
/// # Errors
/// It is reaped already.
fn reaped(pid: Pid) -> Result<Option<ExitStatus>, Errno> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let Some(status) = waitid(WaitId::Pid(pid), options)? else {
        return Ok(None);
    };
    closer::run(Author::ours(), move || {
        // Nobody else waits for it.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    });
    // As wait(2) encodes it.
    let core = if status.dumped() { 0x80 } else { 0 };
    let raw = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => (code & 0xff) << 8,
        (None, signal) => signal.unwrap_or(libc::SIGKILL) | core,
    };
    Ok(Some(ExitStatus::from_raw(raw)))
}

fn unreaped() -> MutexGuard<'static, Vec<UnreapedProcess>> {
    UNREAPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps the processes that are over and have ended; returns those that were given up.
pub(super) fn reap_unreaped() -> Vec<UnreapedProcess> {
    let mut all = unreaped();
    all.retain_mut(|one| {
        let is_reaped = one.is_reaped();
        let pid = one.pid.as_raw_nonzero().get();
        match (is_reaped, one.is_given_up) {
            (true, true) => tracing::info!(pid, "{} ended at last", one.name),
            (true, false) => tracing::debug!(pid, "{} is reaped", one.name),
            (false, _) => one.give_up_if_due(),
        }
        !is_reaped
    });
    all.iter().filter(|one| one.is_given_up).cloned().collect()
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
            unreaped().push(UnreapedProcess::new("process".to_owned(), pid, true));
        }
    }
}

/// State of a process that has ended, as far as the supervisor is concerned.
#[derive(Clone, Copy)]
enum End {
    Reaped(ExitStatus),
    /// None of its threads runs the program any more.
    Left(ExitStatus),
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
    /// Pidfds of two threads: one of them may be the last, which frees the memory before it ends.
    threads: Vec<OwnedFd>,
    /// Time of the next look at the threads of a process that ends, and the pause after that.
    look: Option<(Instant, Duration)>,
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
            threads: Vec::new(),
            look: None,
        })
    }

    /// Returns the process id.
    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Reaps the process if it has ended, or gives it up, and returns its exit status.
    pub(super) fn has_ended(&mut self) -> Option<ExitStatus> {
        if self.end.is_none() {
            self.end = match reaped(self.pid) {
                Ok(Some(status)) => Some(End::Reaped(status)),
                // The exit status is lost.
                Err(Errno::CHILD) => Some(End::Reaped(ExitStatus::from_raw(libc::SIGKILL))),
                _ if self.give_up(Instant::now()) => Some(End::GivenUp),
                _ => self.has_left(Instant::now()).map(End::Left),
            };
        }
        self.end.map(|end| match end {
            End::Reaped(status) | End::Left(status) => status,
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

    /// Watches two of its threads, from Linux 6.9 on: their ends are seen before its own.
    pub(super) fn watch_threads(&mut self) {
        if self.threads.len() < 2 && self.end.is_none() {
            let threads = thread_ids(self.id()).take(2);
            self.threads = threads.filter_map(open_thread).collect();
        }
    }

    /// Returns the descriptors to poll: readable when the process or a watched thread has ended.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // The end of a thread stays readable.
        let threads = self.threads.iter().filter(|_| self.look.is_none());
        std::iter::once(&self.pidfd).chain(threads).map(AsFd::as_fd)
    }

    /// Returns its exit status if none of its threads runs the program any more.
    fn has_left(&mut self, now: Instant) -> Option<ExitStatus> {
        let is_due = match self.look {
            Some((at, _)) => now >= at,
            None => self.threads.iter().any(has_ended),
        };
        if !is_due {
            return None;
        }
        match ProcessLook::at(self.id()) {
            ProcessLook::Runs => {
                // The thread ended alone. Others are watched soon.
                self.threads.clear();
                self.look = None;
                return None;
            }
            ProcessLook::Left if unreaped().len() < MAX_UNREAPED => {
                if let Some(status) = exit_status(self.id()) {
                    return Some(status);
                }
            }
            ProcessLook::Left | ProcessLook::Ends => {}
        }
        let pause = self.look.map_or(LOOK, |(_, pause)| pause);
        self.look = Some((now + pause, (2 * pause).min(MAX_LOOK)));
        None
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
        let others = unreaped().len();
        let (name, pid) = (&self.name, self.id());
        if others >= MAX_UNREAPED {
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

    /// Returns the time of the next check of a process that was killed or ends.
    pub(super) fn due(&self) -> Option<Instant> {
        let look = self.look.map(|(at, _)| at);
        let due = self.check_at.get().into_iter().chain(look).min();
        due.filter(|_| self.end.is_none())
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

/// A process that is not reaped stays on the list of those.
impl Drop for Running {
    fn drop(&mut self) {
        self.has_ended();
        let is_given_up = match self.end {
            Some(End::Reaped(_)) => return,
            Some(End::Left(_)) => false,
            Some(End::GivenUp) | None => true,
        };
        unreaped().push(UnreapedProcess::new(
            self.name.clone(),
            self.pid,
            is_given_up,
        ));
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

/// Returns the numbers of the threads of a process, the first one first.
fn thread_ids(pid: u32) -> impl Iterator<Item = i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten();
    threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the pidfd of a thread; `None` before Linux 6.9.
fn open_thread(thread: i32) -> Option<OwnedFd> {
    /// `PIDFD_THREAD` in `linux/pidfd.h`.
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    pidfd_open(Pid::from_raw(thread)?, THREAD).ok()
}

/// Returns whether a thread or process has ended.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let ready = sys::wait::ready(pidfd, PollFlags::IN, Some(Instant::now()));
    ready.is_ok_and(|ready| !ready.is_empty())
}

/// Returns the exit status of a process after its threads have left its program; `None` if it is
/// not shown, or if the process ended by itself, successfully: what it does at its end is waited
/// for.
fn exit_status(pid: u32) -> Option<ExitStatus> {
    let stat = sys::file::text(format!("/proc/{pid}/stat")).ok()?;
    // The status is field 52.
    let status = sys::procfs::stat_fields(&stat)?.nth(49)?.parse().ok()?;
    (status != 0).then(|| ExitStatus::from_raw(status))
}

/// State of a process by its threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProcessLook {
    /// A thread runs its program.
    Runs,
    /// Each thread is dead, in exit(2), or gets there.
    Ends,
    /// Each thread is dead or in exit(2).
    Left,
}

impl ProcessLook {
    /// Looks at a process. A list of threads may lack one if another has gone meanwhile, so it
    /// counts if all of them are still there.
    fn at(pid: u32) -> Self {
        let ids: Vec<i32> = thread_ids(pid).collect();
        if ids.is_empty() {
            return Self::Runs;
        }
        let thread = |id: &i32| Thread::at(Path::new(&format!("/proc/{pid}/task/{id}")));
        let threads: Vec<_> = ids.iter().map(thread).collect();
        let is_complete = threads.iter().all(Option::is_some) && thread_ids(pid).eq(ids);
        match Self::of(threads.into_iter().flatten()) {
            Self::Left if !is_complete => Self::Ends,
            look => look,
        }
    }

    fn of(threads: impl Iterator<Item = Thread>) -> Self {
        let looks = threads.map(|thread| match (thread.has_left(), thread.is_killed) {
            (true, _) => Self::Left,
            (false, true) => Self::Ends,
            (false, false) => Self::Runs,
        });
        looks.fold(Self::Left, |all, one| match (all, one) {
            (Self::Runs, _) | (_, Self::Runs) => Self::Runs,
            (Self::Ends, _) | (_, Self::Ends) => Self::Ends,
            (Self::Left, Self::Left) => Self::Left,
        })
    }
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

    /// Returns whether it is dead or in exit(2).
    fn has_left(&self) -> bool {
        self.is_exiting || matches!(&*self.state, "Z" | "X")
    }

    /// Returns whether it never runs code of its program again.
    fn is_lost(&self) -> bool {
        self.has_left() || (self.state == "D" && self.is_killed)
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

    /// Variable of [`program`] with the lifetime of its second thread, milliseconds.
    const PROGRAM: &str = "LASTHOP_TEST_PROGRAM";

    /// The program of [`started`]: it has two threads at least.
    #[test]
    fn program() {
        let Some(time) = std::env::var(PROGRAM).ok() else {
            return;
        };
        let time = Duration::from_millis(time.parse().unwrap());
        let other = std::thread::spawn(move || std::thread::sleep(time));
        println!("two threads");
        other.join().unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }

    /// Starts a process with two threads at least; one ends after a time. Returns it with
    /// a thread that is not its first.
    fn started(time: Duration) -> (std::process::Child, Running, i32) {
        let program = std::env::current_exe().unwrap();
        let child = std::process::Command::new(program)
            .args(["--exact", "running::tests::program", "--nocapture"])
            .env(PROGRAM, time.as_millis().to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let running = Running::of("program", &child).unwrap();
        // Its runner has a thread of its own for the test.
        let threads = || thread_ids(running.id()).collect::<Vec<_>>();
        testkit::wait::wait_until("there are threads", || threads().len() >= 3);
        let thread = threads()[2];
        (child, running, thread)
    }

    /// A debugger that has not taken note of the end of a thread keeps the process from being
    /// reaped, as memory does that is being freed.
    #[test]
    fn a_process_is_over_when_no_thread_runs_its_program() {
        let (_child, mut running, thread) = started(Duration::from_secs(600));
        running.watch_threads();
        if running.threads.is_empty() {
            return println!("not tested: Linux before 6.9");
        }
        assert_eq!(running.sources().count(), 3);
        assert!(running.has_ended().is_none());
        let (none, pid) = (std::ptr::null_mut::<libc::c_void>(), running.pid);
        // SAFETY: the calls take numbers alone.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, none, none), 0);
            libc::kill(pid.as_raw_nonzero().get(), libc::SIGKILL);
        }
        testkit::wait::wait_until("it is over", || running.has_ended().is_some());
        let status = running.has_ended().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        assert!(matches!(running.end, Some(End::Left(_))) && !running.is_given_up());
        drop(running);
        let is_listed = || unreaped().iter().any(|one| one.pid == pid);
        reap_unreaped();
        assert!(is_listed(), "the debugger holds it");
        let wait = WaitOptions::from_bits_retain(libc::__WALL as u32);
        waitpid(Pid::from_raw(thread), wait).unwrap();
        testkit::wait::wait_until("it is reaped", || {
            reap_unreaped();
            !is_listed()
        });
    }

    #[test]
    fn a_thread_that_ends_alone_is_no_end_of_its_process() {
        let (_child, mut running, thread) = started(Duration::from_millis(100));
        running.threads.extend(open_thread(thread));
        let Some(of_thread) = running.threads.first() else {
            return println!("not tested: Linux before 6.9");
        };
        let end = Instant::now() + Duration::from_secs(60);
        let ended = sys::wait::ready(of_thread, PollFlags::IN, Some(end)).unwrap();
        assert!(!ended.is_empty());
        assert_eq!((running.has_ended(), running.due()), (None, None));
        assert_eq!(
            running.sources().count(),
            1,
            "it would be readable for ever"
        );
        running.kill();
        assert!(running.ends_by(Instant::now() + Duration::from_secs(60)));
    }

    #[test]
    fn a_process_runs_as_long_as_a_thread_does() {
        let [left, ends, runs] = [("Z", 0, KILLED), ("R", 0, KILLED), ("S", 0, NOT_KILLED)];
        let look = |all: &[(&str, u32, &str)]| {
            let all = all
                .iter()
                .map(|(state, flags, of)| thread(state, *flags, of));
            ProcessLook::of(all)
        };
        let exits = ("R", 4, NOT_KILLED);
        assert_eq!(look(&[left, exits]), ProcessLook::Left);
        assert_eq!(look(&[left, ends, exits]), ProcessLook::Ends);
        let waits = ("D", 0, KILLED);
        assert_eq!(look(&[waits]), ProcessLook::Ends, "it may write until then");
        assert_eq!(look(&[left, ends, runs, left]), ProcessLook::Runs);
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

    #[test]
    fn exit_statuses_are_those_of_wait_and_no_process_is_left() {
        for (script, code, signal) in [
            ("exit 3", Some(3), None),
            ("exit 0", Some(0), None),
            ("kill -9 $$", None, Some(libc::SIGKILL)),
            ("kill -15 $$", None, Some(libc::SIGTERM)),
        ] {
            #[expect(clippy::zombie_processes, reason = "it is reaped below")]
            let child = std::process::Command::new("sh")
                .args(["-c", script])
                .spawn()
                .unwrap();
            let mut running = Running::of("shell", &child).unwrap();
            assert!(running.ends_by(Instant::now() + testkit::wait::LIMIT));
            let status = running.has_ended().unwrap();
            assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
            let path = format!("/proc/{}", running.id());
            testkit::wait::wait_until("it is reaped", || !Path::new(&path).exists());
            drop(running);
        }
    }
}
