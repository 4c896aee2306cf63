//! Kick coalescing: the number of frames for which a guest kicks once while the worker sleeps
//! (Hyper-Switch, 4.3.3 and table 4.1: the transmit threshold).
//!
//! A kick costs the guest an exit and the worker a wake-up, about 20 to 40 microseconds in all,
//! however many frames it announces. So a guest that sends steadily kicks for the last of as many
//! frames as come within a *window*, not for the first. The number follows the measured gap between
//! frames: a guest that sends rarely kicks for each frame, as without this.
//!
//! ```text
//! frames in the window:       1                      2 .. MAX
//!                        kick for each       event index: kick for the last of them
//!                                            without one: no kick, the worker's timer
//! ```
//!
//! A sender that waits for replies may stop before that number. Its frames then wait for the
//! worker's safety timer, which is a *stall*: from then on it gathers at most half as many frames
//! as it had sent, for a hold time that doubles with each further stall. So a sender with a few
//! outstanding requests is served as without coalescing, but for a trial now and then. A guest
//! without an event index, which the timer serves in any case, stalls when a fourth of the expected
//! frames came.
//!
//! This module reads no clock.

use super::{GuestQueue, KickRequest};
use crate::ports::coalescing::Nanos;

/// Most frames for one kick (table 4.1).
const MAX_THRESHOLD: u16 = 64;
/// Longest gap that is distinguished: with longer ones each frame has its kick.
const MAX_GAP: Nanos = 1_000_000;
/// Divisor of the latest measurement's part in the average gap.
const WEIGHT: u64 = 4;
/// Bounds of the hold time after a stall.
const HOLD: (Nanos, Nanos) = (2_000_000, 1_000_000_000);
/// Kicks in a row for a full threshold after which stalls are forgotten.
const GOOD_KICKS: u32 = 256;

/// The rate of a queue's frames, and the threshold that follows from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KickRate {
    /// The average time between two frames.
    gap: Nanos,
    /// Time, and frames of the queue so far, at the last measurement.
    measured: (Nanos, u64),
    /// Of the latest request for a kick.
    requested: Option<Request>,
    stalls: Stalls,
}

/// A request for a kick after several frames.
#[derive(Clone, Copy, Debug)]
struct Request {
    at: Nanos,
    frames: u64,
    threshold: u16,
}

/// The memory of stalls.
#[derive(Clone, Copy, Debug)]
struct Stalls {
    /// Most frames for a kick, until a time.
    limit: u16,
    until: Nanos,
    hold: Nanos,
    good_kicks: u32,
}

impl Default for KickRate {
    fn default() -> Self {
        Self {
            gap: MAX_GAP,
            measured: (0, 0),
            requested: None,
            stalls: Stalls {
                limit: MAX_THRESHOLD,
                until: 0,
                hold: HOLD.0,
                good_kicks: 0,
            },
        }
    }
}

impl KickRate {
    /// Notes the queue's frames so far, and learns from the latest request whether it stalled.
    pub(super) fn measure(&mut self, now: Nanos, frames: u64, window: Nanos) {
        self.learn(now, frames, window);
        let (since, before) = self.measured;
        let (time, count) = (now.saturating_sub(since), frames.saturating_sub(before));
        if count == 0 {
            // A gap that lasts is as long already.
            self.gap = self.gap.max(time.min(MAX_GAP));
            return;
        }
        self.measured = (now, frames);
        let latest = (time / count).min(MAX_GAP);
        self.gap = self.gap - self.gap / WEIGHT + latest / WEIGHT;
    }

    /// Returns the average time between two frames.
    pub(super) fn gap(&self) -> Nanos {
        self.gap.max(1)
    }

    /// Returns the number of frames for one kick, at most a fourth of a queue of this size.
    pub(super) fn threshold(&self, now: Nanos, window: Nanos, size: u16) -> u16 {
        // A little more than a window: averages are not exact.
        let frames = (window + window / 16) / self.gap();
        let limit = if now < self.stalls.until {
            self.stalls.limit
        } else {
            MAX_THRESHOLD
        };
        let most = limit.min(size / 4).max(1);
        u16::try_from(frames).map_or(most, |frames| frames.clamp(1, most))
    }

    /// Notes that the guest is to kick for the last of so many frames.
    pub(super) fn request(&mut self, at: Nanos, frames: u64, threshold: u16) {
        self.requested = (threshold > 1).then_some(Request {
            at,
            frames,
            threshold,
        });
    }

    /// Learns from the latest request whether it stalled.
    fn learn(&mut self, now: Nanos, frames: u64, window: Nanos) {
        let Some(request) = self.requested.take() else {
            return;
        };
        let sent = frames.saturating_sub(request.frames);
        let waited = now.saturating_sub(request.at);
        let stalls = &mut self.stalls;
        if sent >= u64::from(request.threshold) {
            stalls.good_kicks = stalls.good_kicks.saturating_add(1);
            if stalls.good_kicks >= GOOD_KICKS {
                stalls.hold = HOLD.0;
            }
            return;
        }
        let few = 4 * sent <= request.threshold.into();
        if sent > 0 && (waited >= 2 * window || (waited >= window && few)) {
            stalls.good_kicks = 0;
            stalls.limit = (sent as u16 / 2).max(1);
            stalls.until = now + stalls.hold;
            stalls.hold = (2 * stalls.hold).min(HOLD.1);
        }
    }
}

impl GuestQueue {
    /// Measures the rate of frames. Returns the number of frames for one kick.
    pub(super) fn measure_kicks(&mut self, now: Nanos, window: Nanos) -> u16 {
        let (rate, size) = (&mut self.kicks.rate, self.queue.size());
        rate.measure(now, self.counts.frames, window);
        rate.threshold(now, window, size)
    }

    /// Requests a kick for the last of `threshold` frames, or for each; see
    /// [`GuestPort::request_kicks`](super::GuestPort::request_kicks).
    pub(super) fn request_kick(
        &mut self,
        threshold: u16,
        window: Nanos,
        now: Nanos,
    ) -> KickRequest {
        let (available, request) = if threshold == 1 {
            (self.queue.set_kicks(true), KickRequest::EachFrame)
        } else if let Some(available) = self.queue.set_kick_threshold(threshold) {
            (available, KickRequest::Coalesced)
        } else {
            // Its kicks are disabled since it is active.
            (self.queue.has_available(), KickRequest::Timer(now + window))
        };
        if available {
            self.queue.set_kicks(false);
            return KickRequest::FramesAvailable;
        }
        let frames = self.counts.frames;
        self.kicks.rate.request(now, frames, threshold);
        self.counts.coalesced += u64::from(threshold > 1);
        request
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Nanos = 80_000;
    const SIZE: u16 = 1024;

    /// A queue whose guest sends in a steady rhythm.
    #[derive(Default)]
    struct Sender {
        rate: KickRate,
        now: Nanos,
        frames: u64,
    }

    impl Sender {
        /// Sends frames with this gap; after each the worker measures.
        fn send(&mut self, frames: u64, gap: Nanos) -> &mut Self {
            for _ in 0..frames {
                self.now += gap;
                self.frames += 1;
                self.rate.measure(self.now, self.frames, WINDOW);
            }
            self
        }

        fn threshold(&self) -> u16 {
            self.rate.threshold(self.now, WINDOW, SIZE)
        }

        fn request(&mut self) {
            let threshold = self.threshold();
            self.rate.request(self.now, self.frames, threshold);
        }

        /// Sends so many frames at once, after which the safety timer wakes the worker.
        fn stall(&mut self, frames: u64) {
            self.request();
            self.frames += frames;
            self.now += 3 * WINDOW;
            self.rate.measure(self.now, self.frames, WINDOW);
        }
    }

    #[test]
    fn a_new_queue_kicks_for_each_frame() {
        assert_eq!(Sender::default().threshold(), 1);
    }

    #[test]
    fn the_threshold_is_the_frames_of_a_window() {
        for (gap, frames) in [(1_000_000, 1), (100_000, 1), (20_000, 4), (5_000, 16)] {
            assert_eq!(Sender::default().send(100, gap).threshold(), frames);
        }
        assert_eq!(Sender::default().send(100, 10).threshold(), MAX_THRESHOLD);
        let sender = Sender::default();
        assert_eq!(sender.rate.threshold(0, WINDOW, 2), 1, "a tiny queue");
    }

    #[test]
    fn at_most_a_fourth_of_the_queue_is_gathered() {
        let mut sender = Sender::default();
        sender.send(100, 1000);
        assert_eq!(sender.rate.threshold(sender.now, WINDOW, 128), 32);
    }

    #[test]
    fn a_sender_that_has_stopped_kicks_for_its_next_frame() {
        let mut sender = Sender::default();
        sender.send(100, 5000);
        sender.request();
        sender.now += 2 * WINDOW;
        sender.rate.measure(sender.now, sender.frames, WINDOW);
        assert_eq!(sender.threshold(), 1);
    }

    #[test]
    fn a_stall_limits_the_threshold_for_a_time_that_doubles() {
        let mut sender = Sender::default();
        let mut times = Vec::new();
        for _ in 0..3 {
            sender.send(200, 1000);
            while sender.threshold() < MAX_THRESHOLD {
                sender.send(1, 1000);
            }
            sender.stall(8);
            let stalled = sender.now;
            while sender.send(1, 1000).threshold() < MAX_THRESHOLD {
                assert!(sender.threshold() <= 4, "half of what was sent");
            }
            times.push((sender.now - stalled) / 1_000_000);
        }
        assert_eq!(times, [2, 4, 8]);
    }

    #[test]
    fn stalls_are_forgotten_after_many_good_kicks() {
        let mut sender = Sender::default();
        let stall_of = |sender: &mut Sender| {
            while sender.send(1, 1000).threshold() < MAX_THRESHOLD {}
            sender.stall(8);
            sender.rate.stalls.until - sender.now
        };
        let holds: Vec<_> = (0..4).map(|_| stall_of(&mut sender)).collect();
        assert_eq!(holds, [2, 4, 8, 16].map(|ms| ms * 1_000_000));
        while sender.send(1, 1000).threshold() < MAX_THRESHOLD {}
        for _ in 0..GOOD_KICKS {
            sender.request();
            // All at once: the worker measures when it is kicked.
            sender.frames += u64::from(MAX_THRESHOLD);
            sender.now += 64_000;
            sender.rate.measure(sender.now, sender.frames, WINDOW);
        }
        assert_eq!(stall_of(&mut sender), HOLD.0);
    }

    #[test]
    fn a_sender_that_the_timer_serves_stalls_with_few_frames_only() {
        let stalls = |sent| {
            let mut sender = Sender::default();
            sender.send(200, 5000).request();
            sender.frames += sent;
            sender.now += WINDOW;
            sender.rate.measure(sender.now, sender.frames, WINDOW);
            sender.now < sender.rate.stalls.until
        };
        assert_eq!(
            [0, 1, 4, 5, 16].map(stalls),
            [false, true, true, false, false]
        );
    }

    #[test]
    fn good_kicks_are_counted_without_end() {
        let mut sender = Sender::default();
        sender.send(200, 1000);
        sender.rate.stalls.good_kicks = u32::MAX;
        sender.request();
        sender.send(u64::from(MAX_THRESHOLD), 1000);
        assert_eq!(sender.rate.stalls.good_kicks, u32::MAX);
    }

    #[test]
    fn one_outstanding_request_is_not_waited_for() {
        let mut sender = Sender::default();
        // Replies come quickly, so that its rate is that of a steady sender.
        sender.send(1000, 2000);
        let mut waits = 0;
        for _ in 0..100_000 {
            if sender.threshold() > 1 {
                waits += 1;
                sender.stall(1);
            }
            sender.send(1, 2000);
        }
        assert!((1..12).contains(&waits), "{waits} in 0.2 s");
    }

    proptest! {
        #[test]
        fn a_threshold_is_in_its_bounds_whatever_is_measured(
            steps in prop::collection::vec((0..u64::MAX / 64, 0..1u64 << 40, any::<bool>()), 1..60),
            size in 1u16..=4096,
            window in 1..10_000_000u64,
        ) {
            let mut rate = KickRate::default();
            let (mut now, mut frames) = (0, 0);
            for (time, more, request) in steps {
                now += time >> (more % 48);
                frames += more >> (time % 40);
                rate.measure(now, frames, window);
                let threshold = rate.threshold(now, window, size);
                prop_assert!((1..=MAX_THRESHOLD).contains(&threshold));
                prop_assert!(threshold == 1 || threshold <= size / 4);
                prop_assert!((1..=MAX_GAP).contains(&rate.gap()));
                if request {
                    rate.request(now, frames, threshold);
                }
            }
        }
    }
}
