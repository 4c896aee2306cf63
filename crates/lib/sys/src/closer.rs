//! Threads that close descriptors of other processes, and unmap their memory, because both may
//! wait.
//!
//! ```text
//! author    the jobs of one author are done in turn; a job that stands delays this author only
//! user      at most USER_THREADS threads do jobs of one user at a time
//! process   THREADS threads, all of which exist from the start
//! bounds    all jobs together are at most a quarter of the process's descriptors; an author with
//!           AUTHOR_JOBS, or a 16th of that, is not read; a user with as many as all others leave
//!           free gets no further connection
//! ```
//!
//! What takes no time is no job: small files and mappings of memory, and stream connections that
//! have ended and in which nothing lies.
//!
//! A wait that a signal can end (`SO_LINGER` of TCP, vsock and others) ends after 20 milliseconds:
//! a timer of each thread signals it, and then each millisecond, because a signal that comes before
//! the wait does not end it, and one close may wait for many. Nothing ends the others but their
//! cause: a file on FUSE or NFS, or many pages. A further thread reports authors with jobs that
//! stand.
//!
//! A process without these threads closes in the thread that drops: a tool, a test, a library in a
//! user's program.

mod queue;
mod timer;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fcntl_get_seals, fstat};
use rustix::io::ioctl_fionread;
use rustix::net::sockopt::socket_type;
use rustix::net::{RecvFlags, SocketType};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::foreign::Author;
use crate::peer;
use queue::Queue;
use timer::Timer;

/// Number of threads.
pub const THREADS: usize = 16;
/// Most threads that do jobs of one user at a time.
const USER_THREADS: usize = 4;
/// Most jobs of one author. An honest one has a few: those that it caused within a thread's
/// wake-up.
const AUTHOR_JOBS: usize = 1024;
/// Time after which a thread that waits is signalled: 20 milliseconds.
const PATIENCE: Duration = Duration::from_millis(20);
/// Age of a job that is reported as one that stands: 5 seconds, or more.
const STANDS: Duration = Duration::from_secs(5);
/// Bytes of memory that are freed or unmapped at once, by any thread: 4 MiB.
pub const SMALL: u64 = 4 << 20;
/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;
/// Name of a closer (comm), before its number.
const NAME: &str = "closer ";

/// Callback when a thread begins a job, with its label, and when it has done it.
pub type Watcher = Arc<dyn Fn(usize, Option<u32>) + Send + Sync>;

/// Report that a job stands, or that all jobs of its author are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The user at the other end of the connection, if known.
    pub user: Option<u32>,
    /// The connection's label, if it has one.
    pub label: Option<u32>,
    /// Number of the connection in this process.
    pub connection: u64,
    /// Time for which the job has stood, or until all of the author's jobs were done.
    pub time: Duration,
    /// Number of jobs of the author that wait behind it.
    pub waiting: usize,
    /// All jobs of the author are done.
    pub has_ended: bool,
}

impl Report {
    fn of(author: Author, time: Duration, waiting: usize) -> Self {
        Self {
            user: author.user,
            label: author.label,
            connection: author.id,
            time,
            waiting,
            has_ended: false,
        }
    }

    fn ended(author: Author, time: Duration) -> Self {
        let has_ended = true;
        let new = Self::of(author, time, 0);
        Self { has_ended, ..new }
    }
}

/// Work of a thread.
pub(crate) enum Job {
    Close(OwnedFd),
    /// Closes a Unix socket that was shut down, after it has released what lies in its queue.
    HangUp(OwnedFd),
    Run(Box<dyn FnOnce() + Send>),
}

impl Job {
    /// Does the job in a closer, whose timer ends the waits that a signal can end.
    fn run(self, timer: &Timer) {
        match self {
            // Nothing ends these.
            Self::Run(work) => work(),
            closes => {
                timer.start(PATIENCE);
                closes.run_here();
                timer.stop();
            }
        }
    }

    fn run_here(self) {
        match self {
            Self::Close(fd) => drop(fd),
            Self::HangUp(socket) => {
                drain(&socket);
                drop(socket);
            }
            Self::Run(work) => work(),
        }
    }
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue::new());
static WORK: Condvar = Condvar::new();
/// For the thread that reports.
static REPORTS: Condvar = Condvar::new();
/// Whether the threads exist.
static STARTED: AtomicBool = AtomicBool::new(false);
/// Number of jobs in the queue and under way: without any, no lock is taken.
static JOBS: AtomicUsize = AtomicUsize::new(0);

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the threads, unless they run, before the process's system calls are restricted. Later
/// they make `close`, `munmap`, `recvfrom`, `futex` and `timer_settime` only. `report` is called in
/// a thread of its own, once for each author with a job that stands for five seconds, and once when
/// that author's jobs are done.
///
/// # Errors
/// The system starts no thread, or gives it no timer.
pub fn start(
    report: impl FnMut(Report) + Send + 'static,
    watcher: Option<Watcher>,
) -> io::Result<()> {
    if STARTED.load(Ordering::Acquire) {
        return Ok(());
    }
    timer::handle_signal()?;
    let share = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
    queue().share = usize::try_from(share).unwrap_or(usize::MAX);
    let (started, all) = mpsc::channel();
    for number in 0..THREADS {
        let watcher = watcher.clone();
        let prepare = || prepare().and_then(|()| Timer::new());
        spawn(format!("{NAME}{number}"), &started, prepare, move |timer| {
            work(number, &timer, watcher.as_ref());
        })?;
    }
    spawn("closer report".to_owned(), &started, prepare, |()| {
        watch(report);
    })?;
    drop(started);
    all.into_iter().collect::<io::Result<()>>()?;
    queue().threads = THREADS;
    STARTED.store(true, Ordering::Release);
    Ok(())
}

/// Starts a thread that does `run` with the result of `prepare`, which it sends.
fn spawn<T>(
    name: String,
    started: &mpsc::Sender<io::Result<()>>,
    prepare: impl FnOnce() -> io::Result<T> + Send + 'static,
    run: impl FnOnce(T) + Send + 'static,
) -> io::Result<()> {
    let started = started.clone();
    let thread = thread::Builder::new().name(name).stack_size(STACK);
    crate::thread::start(thread, move || match prepare() {
        Ok(prepared) => {
            // The receiver waits for all.
            let _ = started.send(Ok(()));
            drop(started);
            run(prepared);
        }
        Err(error) => drop(started.send(Err(error))),
    })?;
    Ok(())
}

/// Returns the number of the closer with this thread name (comm), if it is one.
#[must_use]
pub fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix(NAME)?.parse().ok()
}

/// Gives up the thread's capabilities, which it has of the supervisor. A thread that becomes ready
/// displaces none that moves frames (`SCHED_BATCH`, sched(7)).
fn prepare() -> io::Result<()> {
    let usual = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameter. A refusal has no consequence.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const usual) };
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none)?;
    Ok(())
}

/// Does jobs without end.
fn work(number: usize, timer: &Timer, watcher: Option<&Watcher>) {
    let watch = |label| {
        watcher
            .into_iter()
            .for_each(|watcher| watcher(number, label))
    };
    let mut queue = queue();
    loop {
        let Some((author, job)) = queue.take(Instant::now()) else {
            queue = WORK.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        // One thread wakes the next: who hands a job over wakes one at most.
        let has_work = queue.has_work();
        let was_watched = std::mem::replace(&mut queue.is_watched, true);
        drop(queue);
        if has_work {
            WORK.notify_one();
        }
        if !was_watched {
            REPORTS.notify_one();
        }
        watch(author.label);
        job.run(timer);
        watch(None);
        queue = self::queue();
        queue.done(author, Instant::now());
        JOBS.store(queue.jobs(), Ordering::Relaxed);
        if queue.has_reports() {
            REPORTS.notify_one();
        }
    }
}

/// Reports without end. While jobs come and go the thread wakes up once in [`STANDS`], and never
/// without any.
fn watch(mut report: impl FnMut(Report)) {
    let mut queue = queue();
    loop {
        let now = Instant::now();
        let reports = queue.take_reports(now);
        if !reports.is_empty() {
            // The log may wait.
            drop(queue);
            reports.into_iter().for_each(&mut report);
            queue = self::queue();
            continue;
        }
        let next = queue.next_report();
        queue.is_watched = next.is_some();
        queue = match next {
            None => REPORTS.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(next) => {
                let time = next.saturating_duration_since(now);
                let waited = REPORTS.wait_timeout(queue, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// Returns whether a file is in memory, and so small that its last close takes no time. Files that
/// support seals (memfd, tmpfs, hugetlbfs) have nothing else to wait for. Its owner, who can
/// enlarge it, has it open meanwhile; then this close is not the last.
fn is_small_memory(fd: &OwnedFd) -> bool {
    /// Bytes of a block of `stat`.
    const BLOCK: u64 = 512;
    let bytes = |stat: rustix::fs::Stat| u64::try_from(stat.st_blocks).unwrap_or(u64::MAX);
    fcntl_get_seals(fd).is_ok()
        && fstat(fd).is_ok_and(|stat| bytes(stat).saturating_mul(BLOCK) <= SMALL)
}

/// Returns whether a socket is a stream of the Unix domain that has ended in both directions and
/// holds nothing: its close releases nothing, and nothing can come to it any more. The order
/// counts: it is connected, so it never listens; has ended; holds nothing. Only streams are known
/// to be empty: a packet may have descriptors and no bytes. A byte out of band is counted as well,
/// which `MSG_PEEK` would not see.
fn is_empty_stream(fd: &OwnedFd) -> bool {
    let has_ended = || {
        let mut polled = [PollFd::new(fd, PollFlags::empty())];
        let polls = poll(&mut polled, Some(&Timespec::default()));
        polls.is_ok() && polled[0].revents().contains(PollFlags::HUP)
    };
    peer::credentials(fd).is_ok()
        && socket_type(fd) == Ok(SocketType::STREAM)
        && has_ended()
        && ioctl_fionread(fd) == Ok(0)
}

/// Has a job done by a thread; by this one, where there are none, or the job takes no time.
pub(crate) fn hand_over(author: Author, job: Job) {
    // Without threads no file is asked what it is: the process may lack these calls.
    let is_short = match &job {
        _ if !STARTED.load(Ordering::Acquire) => true,
        Job::Close(fd) => is_small_memory(fd) || is_empty_stream(fd),
        Job::HangUp(socket) => is_empty_stream(socket),
        Job::Run(_) => false,
    };
    if is_short {
        return job.run_here();
    }
    let mut queue = queue();
    let is_new = queue.add(author, job);
    JOBS.store(queue.jobs(), Ordering::Relaxed);
    drop(queue);
    if is_new {
        WORK.notify_one();
    }
}

/// Has work done that may take long and belongs to an author, such as unmapping its memory.
pub fn run(author: Author, work: impl FnOnce() + Send + 'static) {
    hand_over(author, Job::Run(Box::new(work)));
}

/// Returns whether more may be received from an author.
pub(crate) fn admits(author: Author) -> bool {
    JOBS.load(Ordering::Relaxed) == 0 || queue().admits(author)
}

/// Returns whether an author's user may have a further connection.
pub(crate) fn admits_connection(author: Author) -> bool {
    JOBS.load(Ordering::Relaxed) == 0 || queue().admits_user(author.user)
}

/// Returns whether so many jobs are not done that no more connections should be accepted.
#[must_use]
pub fn is_full() -> bool {
    JOBS.load(Ordering::Relaxed) > 0 && queue().is_full()
}

/// Waits until all jobs are done; `false` if some are not at the deadline.
#[must_use]
pub fn settle(deadline: Instant) -> bool {
    while queue().jobs() > 0 {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Releases what lies in a socket, without descriptors of it: the kernel puts them back itself when
/// they are not asked for, so that not even a file on FUSE waits.
fn drain(socket: &OwnedFd) {
    let mut bytes = [0; 4096];
    while let Ok((1.., _)) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {}
}

#[cfg(test)]
mod tests;
