//! The one timer of a flow: retransmission (RFC 6298), probes of a closed window, keep-alive.

use super::sequence::before;
use crate::Nanos;

const MS: Nanos = 1_000_000;
pub(super) const S: Nanos = 1000 * MS;
/// Before the first measurement (RFC 6298, section 2.1).
const INITIAL: Nanos = S;
/// The same if a SYN was lost (RFC 6298, section 5.7).
const AFTER_LOST_SYN: Nanos = 3 * S;
/// Minimum timeout. RFC 6298 has a second, Linux 200 ms; the path to a guest is one machine.
const LEAST: Nanos = 200 * MS;
/// Longest timeout (RFC 6298, section 2.5).
const MOST: Nanos = 60 * S;
/// Number of early timeouts of a flow that continues after its driver's death: the last after half
/// of [`INITIAL`], each before it after half as long (16 ms for the first).
const EARLY: u8 = 6;
/// Maximum time between probes, as in Linux. Where a shorter silence is probed it is a part of
/// that, so that all probes take about as long as the silence.
const INTERVAL: Nanos = 75 * S;
const INTERVALS: Nanos = 8;
/// Probes that a guest may leave without an answer.
pub(super) const PROBES: u8 = 9;
/// Tries of other segments: about 13 minutes.
pub(super) const TRIES: u8 = 15;

/// The timer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer {
    /// Smoothed round trip and its variation.
    measured: Option<(Nanos, Nanos)>,
    /// Sequence number after a byte that is measured until its acknowledgement, and its sending
    /// time.
    sample: Option<(u32, Nanos)>,
    backoff: u32,
    syn_was_lost: bool,
    /// Timeouts that come early, as long as the guest is silent.
    early: u8,
    /// The guest's last sign of life, or the beginning.
    heard: Nanos,
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
    pub(super) fn restored(&mut self, now: Nanos) {
        self.early = EARLY;
        self.heard = now;
    }

    /// The flow begins, and must be established within `most`.
    pub(super) fn begin(&mut self, now: Nanos, most: Nanos) {
        self.heard = now;
        self.deadline = Some(now.saturating_add(most));
    }

    /// The guest's last sign of life, or the beginning of the flow.
    pub(super) fn heard_at(&self) -> Nanos {
        self.heard
    }

    /// For how long the guest has been silent.
    pub(super) fn silent(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.heard)
    }

    /// The deadline is not later than this silence.
    pub(super) fn end_after(&mut self, silence: Nanos) {
        let end = self.heard.saturating_add(silence);
        self.deadline = self.deadline.map(|deadline| deadline.min(end));
    }

    /// Returns whether the deadline is one of retransmission, or of a probe.
    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    /// Timeouts since the last acknowledgement of new bytes.
    pub(super) fn timeouts(&self) -> u32 {
        self.backoff
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
    pub(super) fn established(&mut self, now: Nanos, silence: Nanos) {
        self.syn_was_lost = self.backoff > 0;
        self.idle(now, silence);
    }

    /// The guest's window is open again: the timeouts of probes do not count.
    pub(super) fn reopened(&mut self, now: Nanos) {
        self.sample = None;
        self.backoff = 0;
        if self.is_running {
            self.start(now);
        }
    }

    /// Nothing is on its way; after this silence the guest is probed.
    pub(super) fn idle(&mut self, now: Nanos, silence: Nanos) {
        self.is_running = false;
        self.tries = 0;
        self.backoff = 0;
        self.heard = now;
        self.deadline = Some(now.saturating_add(silence));
    }

    /// A probe of an idle flow was sent.
    pub(super) fn keep_alive(&mut self, now: Nanos, silence: Nanos) {
        self.is_running = false;
        if self.early > 0 {
            self.deadline = Some(now.saturating_add(self.timeout()));
            self.early -= 1;
            return;
        }
        self.tries = self.tries.saturating_add(1);
        let interval = INTERVAL.min(silence / INTERVALS);
        self.deadline = Some(now.saturating_add(interval));
    }

    /// The guest lives.
    pub(super) fn heard(&mut self, now: Nanos, silence: Nanos) {
        self.tries = 0;
        self.heard = now;
        if std::mem::take(&mut self.early) > 0 {
            // It has answered sooner than the least timeout allows for.
            self.measured = self.measured.or(Some((0, 0)));
        }
        if !self.is_running {
            self.deadline = Some(now.saturating_add(silence));
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
