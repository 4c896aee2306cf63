//! Turns at the machine, for the tests of all programs that are built in one folder.
//!
//! | a test has | at the same time run | it is for tests |
//! |---|---|---|
//! | [`machine`] | no others with a turn | with guests of QEMU, with testpmd, or that measure or load the machine: on two cores these disturb each other |
//! | [`beside`] | one other of this kind | that mostly wait |
//!
//! Two files stand for two seats. A test takes a lock of one seat or of both, which the kernel
//! gives back however the process ends. A third file is the queue: only the test at its head waits
//! for seats, so that none waits forever.
//!
//! With `LASTHOP_TIMES=FILE` each test appends a line with the seconds of its turn, in the form of
//! `scripts/timed`.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const SEATS: [&str; 2] = ["turn-seat-0", "turn-seat-1"];
const QUEUE: &str = "turn-queue";
/// How often the test at the head of the queue looks for a seat.
const LOOK: Duration = Duration::from_millis(10);

/// Whether any test of this process has had a turn: programs that are no tests take none.
static USED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Seats of the test in this thread.
    static SEATS_HELD: Cell<usize> = const { Cell::new(0) };
}

/// A turn at the machine, until it is dropped.
pub struct Turn {
    started: Instant,
    _seats: Vec<File>,
}

/// Waits for the machine alone.
///
/// # Panics
/// When the folder of this program cannot be written, and when this thread has a turn already.
#[must_use]
pub fn machine() -> Turn {
    Turn::take(&folder(), SEATS.len())
}

/// Waits for a place beside another test that mostly waits.
///
/// # Panics
/// When the folder of this program cannot be written, and when this thread has a turn already.
#[must_use]
pub fn beside() -> Turn {
    Turn::take(&folder(), 1)
}

/// Says that the calling test uses this: it needs a turn, of the whole machine if `alone`.
///
/// # Panics
/// When it has no such turn, in a program whose tests have turns.
pub fn needs_turn(what: &str, alone: bool) {
    let held = SEATS_HELD.get();
    let enough = held >= if alone { SEATS.len() } else { 1 };
    assert!(
        enough || !USED.load(Ordering::Relaxed),
        "{what} needs the turn machine(){}",
        if alone { "" } else { " or beside()" }
    );
}

impl Turn {
    fn take(folder: &Path, seats: usize) -> Self {
        assert_eq!(SEATS_HELD.replace(seats), 0, "a test has one turn");
        USED.store(true, Ordering::Relaxed);
        let queue = open(&folder.join(QUEUE));
        flock(&queue, FlockOperation::LockExclusive).expect("a lock of our own file");
        let mut held = Vec::new();
        while held.len() < seats {
            let free = SEATS.iter().find_map(|seat| try_lock(&folder.join(seat)));
            match free {
                Some(seat) => held.push(seat),
                None => std::thread::sleep(LOOK),
            }
        }
        Self {
            started: Instant::now(),
            _seats: held,
        }
    }

    /// Says what the test does next, with the time since it began: the last such line before a
    /// failure is the step that failed.
    pub fn step(&self, what: &str) {
        eprintln!("{:6.1} s  {what}", self.started.elapsed().as_secs_f64());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        SEATS_HELD.set(0);
        if let Some(path) = std::env::var_os("LASTHOP_TIMES") {
            // A test that passes does not fail for that.
            let _ = append_time(Path::new(&path), self.started.elapsed());
        }
    }
}

fn append_time(path: &Path, took: Duration) -> io::Result<()> {
    // The test harness names a test's thread after the test.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread");
    let line = format!("{:9.3} s  test     {test}\n", took.as_secs_f64());
    // One write, so that lines of several processes do not mix.
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
}

/// The folder of this program: test programs that are built together are in one.
fn folder() -> PathBuf {
    let mut program = std::env::current_exe().expect("this program has a path");
    program.pop();
    program
}

/// Each opening has locks of its own, also in one process.
fn open(path: &Path) -> File {
    let file = File::options().create(true).append(true).open(path);
    file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn try_lock(path: &Path) -> Option<File> {
    let file = open(path);
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Some(file),
        Err(Errno::WOULDBLOCK) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

    use super::*;
    use crate::wait::LIMIT;

    /// Takes a turn in another thread, until the sender is dropped.
    fn elsewhere(folder: &Path, seats: usize) -> (Receiver<()>, Sender<()>) {
        let (taken, is_taken) = channel();
        let (give, given) = channel::<()>();
        let folder = folder.to_owned();
        std::thread::spawn(move || {
            let _turn = Turn::take(&folder, seats);
            taken.send(()).expect("the test waits");
            let _ = given.recv();
        });
        (is_taken, give)
    }

    fn waits(taken: &Receiver<()>) -> bool {
        taken.recv_timeout(5 * LOOK) == Err(RecvTimeoutError::Timeout)
    }

    #[test]
    fn two_tests_run_beside_each_other_or_one_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path();
        let first = Turn::take(folder, 1);
        let (second, end_second) = elsewhere(folder, 1);
        second.recv_timeout(LIMIT).expect("there are two seats");
        let (alone, end_alone) = elsewhere(folder, 2);
        assert!(waits(&alone), "both seats are taken");
        drop(first);
        assert!(waits(&alone), "one seat is taken");
        // It does not overtake the one that waits longer.
        let (late, end_late) = elsewhere(folder, 1);
        assert!(waits(&late), "it came later");
        drop(end_second);
        alone.recv_timeout(LIMIT).expect("both seats are free");
        assert!(waits(&late), "a test is alone");
        drop(end_alone);
        late.recv_timeout(LIMIT).expect("the machine is free");
        drop(end_late);
    }

    #[test]
    fn a_guest_is_refused_to_a_test_that_is_not_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let turn = Turn::take(folder.path(), 1);
        needs_turn("a switch", false);
        let refused = std::panic::catch_unwind(|| needs_turn("a guest", true));
        assert!(refused.is_err());
        drop(turn);
        let _turn = Turn::take(folder.path(), 2);
        needs_turn("a guest", true);
    }
}
