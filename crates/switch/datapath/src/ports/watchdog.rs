//! Ringing a front end's eventfd without being blocked by it.
//!
//! An eventfd whose counter is full blocks a writer unless `O_NONBLOCK` is set. That flag belongs
//! to the open file, which the VMM shares: it can clear the flag and fill the counter, and a plain
//! write would never return. (The kernel offers no alternative: eventfds refuse a write with
//! `RWF_NOWAIT`.) So each thread that rings has a watchdog: a second thread that reads its beat
//! every `CHECK_INTERVAL` and interrupts a write that has not ended since the last check. An idle
//! thread's watchdog sleeps too.
//!
//! That happens once for each connection and thread: see [`Doorbells`]. Then the connection is
//! closed, and the port accepts the next one after a pause (see [`crate::process::attach`]).

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// Interval between two checks, milliseconds. A front end can block a thread for at most twice this
/// time.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Checks without a write after which the watchdog sleeps until the next one. Few, because each is
/// a wake-up, also where a guest is notified some times a second; and more than a pause between two
/// batches takes, because the write that ends a sleep costs its thread a system call more.
const IDLE_CHECKS: u32 = 8;

/// The error of a write that the front end made block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockedWrite;

/// The event descriptors of one connection. Clones share the state.
///
/// After an interrupted write none of them is written any more: the front end could make each of
/// them block, and the connection is about to end.
#[derive(Clone, Debug, Default)]
pub struct Doorbells(Arc<AtomicBool>);

impl Doorbells {
    /// Rings as [`ring`] does, unless one of them has blocked before.
    ///
    /// # Errors
    /// [`BlockedWrite`] when the write had to be interrupted, now or before.
    pub fn ring(&self, event: &OwnedFd) -> Result<(), BlockedWrite> {
        if self.have_blocked() {
            return Err(BlockedWrite);
        }
        let rung = ring(event);
        if rung.is_err() {
            self.0.store(true, Ordering::Release);
        }
        rung
    }

    /// Returns whether a write to one of them had to be interrupted.
    #[must_use]
    pub fn have_blocked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The state that a thread and its watchdog share.
#[derive(Debug, Default)]
struct Beat {
    /// Odd while a write is under way.
    count: AtomicU64,
    /// The watchdog sleeps.
    sleeping: AtomicBool,
    /// The thread has ended.
    done: AtomicBool,
}

/// The thread's side: ends the watchdog with the thread.
struct WatchGuard {
    beat: Arc<Beat>,
    watchdog: Thread,
    _handle: JoinHandle<()>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.beat.done.store(true, Ordering::SeqCst);
        self.watchdog.unpark();
    }
}

thread_local! {
    static WATCHED: RefCell<Option<WatchGuard>> = const { RefCell::new(None) };
}

/// Starts a watchdog for the calling thread, for as long as the thread lives.
///
/// The watchdog runs when this returns.
///
/// # Errors
/// A system error of the signal handler or the thread.
pub fn watch_this_thread() -> io::Result<()> {
    install_handler()?;
    let beat = Arc::new(Beat::default());
    let watched = Arc::clone(&beat);
    let thread = rustix::thread::gettid();
    let started = Arc::new(Barrier::new(2));
    let running = Arc::clone(&started);
    let watchdog = std::thread::Builder::new().name("watchdog".into());
    let handle = sys::thread::start(watchdog, move || {
        running.wait();
        watch(&watched, thread);
    })?;
    started.wait();
    WATCHED.with_borrow_mut(|watched| {
        *watched = Some(WatchGuard {
            beat,
            watchdog: handle.thread().clone(),
            _handle: handle,
        });
    });
    Ok(())
}

/// Adds one to an eventfd. A full counter wakes its reader already; other errors are ignored.
///
/// # Errors
/// [`BlockedWrite`] when the write had to be interrupted.
pub fn ring(event: &OwnedFd) -> Result<(), BlockedWrite> {
    WATCHED.with_borrow(|watched| {
        if let Some(watched) = watched {
            watched.beat.count.fetch_add(1, Ordering::SeqCst);
            if watched.beat.sleeping.load(Ordering::SeqCst) {
                watched.watchdog.unpark();
            }
        }
        let written = rustix::io::write(event, &1u64.to_ne_bytes());
        if let Some(watched) = watched {
            watched.beat.count.fetch_add(1, Ordering::SeqCst);
        }
        match written {
            Err(Errno::INTR) => Err(BlockedWrite),
            _ => Ok(()),
        }
    })
}

fn watch(beat: &Beat, thread: Pid) {
    let (mut last, mut idle) = (0, 0);
    while !beat.done.load(Ordering::SeqCst) {
        std::thread::sleep(CHECK_INTERVAL);
        let count = beat.count.load(Ordering::SeqCst);
        if count != last {
            (last, idle) = (count, 0);
        } else if count % 2 == 1 {
            interrupt(thread);
        } else {
            idle += 1;
        }
        if idle > IDLE_CHECKS {
            sleep_until_rung(beat, last);
            idle = 0;
        }
    }
}

fn sleep_until_rung(beat: &Beat, last: u64) {
    beat.sleeping.store(true, Ordering::SeqCst);
    // A ring after the store sees it and wakes this thread; one before it has changed the count.
    while beat.count.load(Ordering::SeqCst) == last && !beat.done.load(Ordering::SeqCst) {
        std::thread::park();
    }
    beat.sleeping.store(false, Ordering::SeqCst);
}

fn interrupt(thread: Pid) {
    // SAFETY: a bare system call; a thread that has ended meanwhile is reported as an error.
    unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            libc::getpid(),
            thread.as_raw_nonzero().get(),
            Signal::USR1.as_raw(),
        );
    }
}

/// Installs an empty handler, so that the signal only interrupts.
fn install_handler() -> io::Result<()> {
    extern "C" fn nothing(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {}
    // SAFETY: the handler makes no calls.
    unsafe { sys::signal::handle(libc::SIGUSR1, nothing, 0) }.map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_write_that_blocks_is_interrupted() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let rung = std::thread::spawn(move || {
            watch_this_thread().unwrap();
            let first = ring(&event);
            rustix::io::read(&event, &mut [0; 8]).unwrap();
            (first, ring(&event), event)
        });
        let began = Instant::now();
        while !rung.is_finished() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(rung.is_finished(), "the thread hangs in its write");
        let (first, second, event) = rung.join().unwrap();
        assert_eq!(first, Err(BlockedWrite));
        assert_eq!(second, Ok(()), "with room again it rings");
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }

    #[test]
    fn a_full_eventfd_that_does_not_block_rings_already() {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert_eq!(ring(&event), Ok(()), "also without a watchdog");
    }
}
