//! Delivery and latency of honest guests and VMMs.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::set_current_timer_slack;

/// After so long a frame or an answer is missed.
pub(super) const LATE: Duration = Duration::from_secs(20);
/// Limit of recorded faults.
const FAULTS: usize = 20;

/// Counts of all honest frames and messages of a run.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that never came, or came more than once.
    pub lost: u64,
    /// Frames that came altered.
    pub damaged: u64,
    /// Frames that came 20 s after they were due, or later.
    pub late: u64,
    /// Other failures, as text.
    pub faults: Vec<String>,
}

impl Counts {
    pub(in super::super) fn add(&mut self, more: Self) {
        self.sent += more.sent;
        self.lost += more.lost;
        self.damaged += more.damaged;
        self.late += more.late;
        self.faults.extend(more.faults);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            lost,
            damaged,
            late,
            ..
        } = self;
        write!(
            f,
            "{sent} sent, {lost} lost or doubled, {damaged} damaged, {late} late by {LATE:?}"
        )
    }
}

/// Times at which something is due, whether or not what was due before has come. Else one long wait
/// would count once, and all that it held up not at all.
pub(super) struct Schedule {
    first: Instant,
    every: Duration,
}

impl Schedule {
    /// Returns a schedule from the present; the calling thread waits, or threads that it starts
    /// later.
    pub(super) fn new(every: Duration) -> Self {
        // Where the system refuses, sleep takes a little longer, also beside the burner.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Self {
            first: Instant::now(),
            every,
        }
    }

    /// Returns the due time of number `number`.
    pub(super) fn due(&self, number: u64) -> Instant {
        self.first + Duration::from_nanos(self.every.as_nanos() as u64 * number)
    }

    /// Waits until number `number` is due, and gives when that was.
    pub(super) fn wait(&self, number: u64) -> Instant {
        let due = self.due(number);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due
    }
}

/// Samples of the frames of one pair, or of the messages of one VMM.
#[derive(Default)]
pub(super) struct Timeline {
    came: Mutex<Came>,
    wrong: AtomicU64,
}

#[derive(Default)]
struct Came {
    /// Due times, and delays in nanoseconds.
    samples: Vec<(Instant, u64)>,
    /// The latest due time of what came.
    latest: Option<Instant>,
    /// Nothing more will come.
    over: bool,
}

impl Timeline {
    /// Records an arrival that was due then; returns its delay.
    pub(super) fn came(&self, due: Instant) -> Duration {
        let late = due.elapsed();
        let mut came = lock(&self.came);
        came.samples.push((due, late.as_nanos() as u64));
        came.latest = came.latest.max(Some(due));
        late
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        lock(&self.came).over = true;
    }

    /// How many frames up to now are missing, doubled or damaged.
    pub(super) fn set_wrong(&self, count: u64) {
        self.wrong.store(count, Ordering::Relaxed);
    }

    pub(super) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Takes the latencies of what was due before `end`; waits until that has come, but not
    /// forever.
    pub(super) fn take(&self, end: Instant) -> Vec<u64> {
        while end.elapsed() < LATE && !lock(&self.came).has_reached(end) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut came = lock(&self.came);
        let (before, rest) = came.samples.drain(..).partition(|(due, _)| *due < end);
        came.samples = rest;
        let before: Vec<(Instant, u64)> = before;
        before.into_iter().map(|(_, late)| late).collect()
    }
}

impl Came {
    fn has_reached(&self, end: Instant) -> bool {
        self.over || self.latest.is_some_and(|latest| latest >= end)
    }
}

/// State shared by all honest guests and VMMs of a Lasthop.
#[derive(Default)]
pub(super) struct Book {
    stop: AtomicBool,
    /// Frames of each pair.
    pub(super) frames: [Timeline; 2],
    /// Messages of the VMM that talks.
    pub(super) messages: Timeline,
    counts: Mutex<Counts>,
}

impl Book {
    pub(super) fn on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn fault(&self, text: String) {
        self.count(|counts| {
            if counts.faults.len() < FAULTS {
                counts.faults.push(text);
            }
        });
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut lock(&self.counts));
    }

    pub(super) fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }
}

/// Counts are right even when a thread panicked between two of them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_came_belongs_to_the_time_in_which_it_was_due() {
        let timeline = Timeline::default();
        let now = Instant::now();
        // Three frames that one wait of two seconds held up: each counts from its own time.
        for back in [2, 1, 0] {
            timeline.came(now - SECOND * back);
        }
        let first = timeline.take(now);
        assert_eq!(first.len(), 2);
        let late = |index: usize| Duration::from_nanos(first[index]);
        assert!(late(0) >= 2 * SECOND && late(1) >= SECOND);
        timeline.close();
        assert_eq!(timeline.take(now + SECOND).len(), 1);
        assert_eq!(timeline.take(now + SECOND).len(), 0);
    }
}
