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
//! Small files and mappings of memory take no time, and are no jobs.
//!
//! A wait that a signal can end (`SO_LINGER` of TCP, vsock and others) ends after 20 milliseconds:
//! a timer of each thread signals it, and then each millisecond, because a signal that comes before
//! the wait does not end it, and one close may wait for many. Nothing ends the others but their
//! cause: a file on FUSE or NFS, or many pages.
//!
//! A process without these threads closes in the thread that drops: a tool, a test, a library in a
//! user's program.

mod queue;
mod timer;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{fcntl_get_seals, fstat};
use rustix::net::RecvFlags;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::foreign::Author;
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
/// Bytes of memory that are freed or unmapped at once, by any thread: 4 MiB.
pub const SMALL: u64 = 4 << 20;
/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;

/// Callback when a thread begins a job, with its label, and when it has done it.
pub type Watcher = Arc<dyn Fn(usize, Option<u32>) + Send + Sync>;

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
/// Number of jobs in the queue and under way: without any, no lock is taken.
static JOBS: AtomicUsize = AtomicUsize::new(0);

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the threads, unless they run, before the process's system calls are restricted. Later
/// they make `close`, `munmap`, `recvfrom`, `futex` and `timer_settime` only.
///
/// # Errors
/// The system starts no thread, or gives it no timer.
pub fn start(watcher: Option<Watcher>) -> io::Result<()> {
    if queue().threads > 0 {
        return Ok(());
    }
    timer::handle_signal()?;
    let share = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
    queue().share = usize::try_from(share).unwrap_or(usize::MAX);
    let (started, all) = mpsc::channel();
    for number in 0..THREADS {
        let (started, watcher) = (started.clone(), watcher.clone());
        let thread = thread::Builder::new()
            .name(format!("closer {number}"))
            .stack_size(STACK);
        thread.spawn(move || match prepare() {
            Ok(timer) => {
                // The receiver waits for all.
                let _ = started.send(Ok(()));
                drop(started);
                work(number, &timer, watcher.as_ref());
            }
            Err(error) => drop(started.send(Err(error))),
        })?;
    }
    drop(started);
    all.into_iter().collect::<io::Result<()>>()?;
    queue().threads = THREADS;
    Ok(())
}

/// Gives up the thread's capabilities, which it has of the supervisor, and makes its timer. A
/// thread that becomes ready displaces none that moves frames (`SCHED_BATCH`, sched(7)).
fn prepare() -> io::Result<Timer> {
    let usual = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameter. A refusal has no consequence.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const usual) };
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none)?;
    Timer::new()
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
        let Some((author, job)) = queue.take() else {
            queue = WORK.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        // One thread wakes the next: who hands a job over wakes one at most.
        let has_work = queue.has_work();
        drop(queue);
        if has_work {
            WORK.notify_one();
        }
        watch(author.label);
        job.run(timer);
        watch(None);
        queue = self::queue();
        queue.done(author);
        JOBS.store(queue.jobs(), Ordering::Relaxed);
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

/// Has a job done by a thread; by this one, where there are none, or the job takes no time.
pub(crate) fn hand_over(author: Author, job: Job) {
    if let Job::Close(fd) = &job
        && is_small_memory(fd)
    {
        return job.run_here();
    }
    let mut queue = queue();
    if queue.threads == 0 {
        drop(queue);
        return job.run_here();
    }
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
