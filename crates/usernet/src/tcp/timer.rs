//! The one timer of a flow: retransmission (RFC 6298), probes of a closed window, keep-alive.

use super::sequence::before;
use crate::Nanos;

const MS: Nanos = 1_000_000;
const S: Nanos = 1000 * MS;
/// Before the first measurement (RFC 6298, section 2.1).
const INITIAL: Nanos = S;
/// The same if a SYN was lost (RFC 6298, section 5.7).
const AFTER_LOST_SYN: Nanos = 3 * S;
/// Least timeout. RFC 6298 has a second, Linux 200 ms; the way to a guest is one machine.
const LEAST: Nanos = 200 * MS;
/// Longest timeout (RFC 6298, section 2.5).
const MOST: Nanos = 60 * S;
/// Idle time in front of the first probe of a flow (RFC 9293, section 3.8.4).
const IDLE: Nanos = 2 * 3600 * S;
/// Of a flow that continues after its driver's death, so many timeouts come early: the last after
/// half of [`INITIAL`], each before it after half as long (16 ms for the first).
const EARLY: u8 = 6;
/// Between probes, as Linux has it.
const INTERVAL: Nanos = 75 * S;
/// Probes that a guest may leave without an answer.
pub(super) const PROBES: u8 = 9;
/// Tries of a SYN.
pub(super) const SYN_TRIES: u8 = 5;
/// Tries of other segments: about 13 minutes.
pub(super) const TRIES: u8 = 15;

/// The timer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer {
    /// Smoothed round trip and its variation.
    measured: Option<(Nanos, Nanos)>,
    /// Behind a byte whose acknowledgement is awaited, and when it was sent.
    sample: Option<(u32, Nanos)>,
    backoff: u32,
    syn_was_lost: bool,
    /// Timeouts that come early, as long as the guest is silent.
    early: u8,
    /// Whether the deadline is one of retransmission.
    is_running: bool,
    pub(super) tries: u8,
    pub(super) deadline: Option<Nanos>,
}

impl Timer {
    fn timeout(&self) -> Nanos {
        let base = match self.measured {
            Some((mean, variation)) => mean.saturating_add(variation.saturating_mul(4)).max(LEAST),
            None if self.syn_was_lost => AFTER_LOST_SYN,
            None => INITIAL,
        };
        (base.saturating_mul(1 << self.backoff.min(20)) >> self.early).min(MOST)
    }

    /// The flow continues after its driver's death. The guest was there a moment ago, and the first
    /// frames may be lost while the port comes up.
    pub(super) fn restored(&mut self) {
        self.early = EARLY;
    }

    /// Starts the retransmission timer anew.
    pub(super) fn start(&mut self, now: Nanos) {
        self.is_running = true;
        self.deadline = Some(now.saturating_add(self.timeout()));
    }

    pub(super) fn start_if_idle(&mut self, now: Nanos) {
        if !self.is_running {
            self.tries = 0;
            self.start(now);
        }
    }

    /// Both have acknowledged a SYN.
    pub(super) fn established(&mut self, now: Nanos) {
        self.syn_was_lost = self.backoff > 0;
        self.idle(now);
    }

    /// The guest's window is open again: the timeouts of probes do not count.
    pub(super) fn reopened(&mut self, now: Nanos) {
        self.sample = None;
        self.backoff = 0;
        if self.is_running {
            self.start(now);
        }
    }

    /// Nothing is on its way.
    pub(super) fn idle(&mut self, now: Nanos) {
        self.is_running = false;
        self.tries = 0;
        self.backoff = 0;
        self.deadline = Some(now.saturating_add(IDLE));
    }

    /// A probe of an idle flow was sent.
    pub(super) fn keep_alive(&mut self, now: Nanos) {
        self.is_running = false;
        if self.early > 0 {
            self.deadline = Some(now.saturating_add(self.timeout()));
            self.early -= 1;
            return;
        }
        self.tries = self.tries.saturating_add(1);
        self.deadline = Some(now.saturating_add(INTERVAL));
    }

    /// The guest lives.
    pub(super) fn heard(&mut self, now: Nanos) {
        self.tries = 0;
        if std::mem::take(&mut self.early) > 0 {
            // It has answered sooner than the least timeout allows for.
            self.measured = self.measured.or(Some((0, 0)));
        }
        if !self.is_running {
            self.deadline = Some(now.saturating_add(IDLE));
        }
    }

    /// Doubles the timeout; false after `most` tries.
    pub(super) fn back_off(&mut self, now: Nanos, most: u8) -> bool {
        self.sample = None;
        if self.early > 0 {
            self.early -= 1;
        } else {
            self.tries = self.tries.saturating_add(1);
            self.backoff += 1;
        }
        self.start(now);
        self.tries <= most
    }

    /// Bytes up to `end` were sent for the first time.
    pub(super) fn sample(&mut self, end: u32, now: Nanos) {
        if self.sample.is_none() {
            self.sample = Some((end, now));
        }
    }

    /// Bytes that were sent twice are not measured (Karn's algorithm).
    pub(super) fn forget_sample(&mut self) {
        self.sample = None;
    }

    /// New bytes were acknowledged.
    pub(super) fn acknowledged(&mut self, ack: u32, now: Nanos) {
        self.backoff = 0;
        if let Some((end, sent)) = self.sample
            && !before(ack, end)
        {
            self.sample = None;
            let trip = now.saturating_sub(sent);
            self.measured = Some(match self.measured {
                None => (trip, trip / 2),
                Some((mean, variation)) => {
                    let off = mean.abs_diff(trip);
                    ((mean / 8 * 7) + trip / 8, variation / 4 * 3 + off / 4)
                }
            });
        }
        self.start(now);
    }
}
