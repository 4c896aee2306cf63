//! Whether other threads want the core of one that looks.

use std::time::Duration;

/// The first time without looks, milliseconds: some time slices.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest time without looks, seconds. A look that meets another thread costs a time slice,
/// so this bounds their part of the time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Time without a sleep over which the thread's CPU time is compared with the clock, milliseconds.
const WINDOW: Duration = Duration::from_millis(1);
/// The part of a window that others have at least where they share the core: an eighth. Interrupts
/// and threads of the kernel have less.
const OTHERS_PART: u32 = 8;

/// When others were met on the core.
#[derive(Debug, Default)]
pub(crate) struct SharedCore {
    /// No look begins until then.
    until: Duration,
    pause: Duration,
    /// Since the last check, if the thread has not slept since.
    window: Option<Window>,
    next_check: Duration,
}

/// A time without a sleep.
#[derive(Debug)]
struct Window {
    began: Duration,
    /// The CPU time of the thread then.
    cpu: Duration,
    /// The time of yields.
    given: Duration,
}

impl SharedCore {
    pub(crate) fn is_shared(&self, now: Duration) -> bool {
        now < self.until
    }

    /// Notes that another thread ran on the core. The pause doubles where it follows the last one
    /// within the length of that.
    pub(crate) fn met_another(&mut self, now: Duration) {
        let again = now.saturating_sub(self.until) < self.pause;
        self.pause = match again {
            true => (2 * self.pause).min(LONGEST_PAUSE),
            false => FIRST_PAUSE,
        };
        self.until = now + self.pause;
        self.window = None;
    }

    /// Notes a sleep: the thread gives its core away.
    pub(crate) fn slept(&mut self) {
        self.window = None;
    }

    /// Notes a short yield. Now and then the CPU time of the thread is compared with the clock: a
    /// thread that looks on and does not sleep is interrupted anywhere, when it has had its part of
    /// a shared core. The time of yields is no loss: a peer that shares the core answers in it.
    pub(crate) fn yielded(
        &mut self,
        now: Duration,
        took: Duration,
        cpu_time: impl FnOnce() -> Duration,
    ) {
        if let Some(window) = &mut self.window {
            window.given += took;
        }
        if now < self.next_check {
            return;
        }
        self.next_check = now + WINDOW;
        let (cpu, given) = (cpu_time(), Duration::ZERO);
        let new = Window {
            began: now,
            cpu,
            given,
        };
        if let Some(last) = self.window.replace(new) {
            let passed = now.saturating_sub(last.began);
            let ran = cpu.saturating_sub(last.cpu) + last.given;
            if passed.saturating_sub(ran) * OTHERS_PART > passed {
                self.met_another(now);
            }
        }
    }
}
