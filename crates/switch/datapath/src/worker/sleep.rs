//! Sleeping: enabling kicks, and waiting for kicks, bells and deadlines.

use std::mem::MaybeUninit;
use std::time::Duration;

use ipc::shared;
use polling::{PollDecision, Sample};
use port::PortId;

use super::coalesced_kicks::WakeUps;
use super::suppressed_kicks::{SuppressedPair, Trigger};
use super::{
    TICK_INTERVAL, TOKEN_ANSWERS, TOKEN_BLOCK_EVENTS, TOKEN_INBOX, TOKEN_TIMER, Worker, nanos,
};
use crate::ports::coalescing::Nanos;
use crate::ports::guest::KickRequest;
use crate::ports::port::Port;

/// Passes without a sleep after which a worker is regarded as busy.
const BUSY_PASSES: u32 = 4;
/// Least time between two estimates of a sleep's length, nanoseconds.
const MIN_ESTIMATE: Nanos = 20_000;

impl Worker {
    /// Handles a kick of a guest.
    pub(super) fn kicked(&mut self, port: PortId, pair: u16) {
        let quiet = self.switch.port_mut(port).map(|port| {
            port.note_kick(pair);
            let rules = port.guest.rules();
            rules.quiet_until(nanos(self.upkeep.started.elapsed()))
        });
        self.suppressed.remove((port, pair));
        self.activate(port, pair);
        // Also for a pair that was active before its kick was read.
        self.active.keep_quiet(port, pair, quiet.unwrap_or(0));
    }

    /// Checks the pairs with suppressed kicks that are due: pairs with frames become active, the
    /// kicks of the others are enabled.
    pub(super) fn check_suppressed(&mut self) {
        if self.suppressed.next().is_none() {
            return;
        }
        let now = nanos(self.upkeep.started.elapsed());
        loop {
            let switch = &mut self.switch;
            let processor = |(port, pair)| switch.guest_mut(port)?.processor(pair);
            let Some(due) = self.suppressed.take_due(now, processor) else {
                return;
            };
            let (port, pair) = due.pair;
            let frames = self.enable_kicks(port, pair);
            self.suppressed.learn(due, frames);
            if frames {
                self.active.add(port, pair);
            }
        }
    }

    /// Looks at pairs again: their requests for kicks may have been missed.
    pub(super) fn look_again(&mut self) {
        if self.pacing.second_looks.next().is_none() {
            return;
        }
        let now = nanos(self.upkeep.started.elapsed());
        while let Some((port, pair)) = self.pacing.second_looks.take_due(now) {
            let guest = self.switch.guest_mut(port);
            if guest.is_some_and(|guest| guest.has_frames(pair)) {
                self.activate(port, pair);
            }
        }
    }

    /// Enables kicks before a sleep: pairs without new frames become inactive.
    pub(super) fn deactivate_idle(&mut self, now: Duration) {
        let now = nanos(now);
        let mut at = 0;
        while let Some((port, pair)) = self.active.get(at) {
            let until = self.active.quiet_until(at);
            let suppressed =
                now < until && self.suppress((port, pair), Trigger::Kick, (now, until));
            if suppressed || self.request_kicks(port, pair, now) {
                self.active.remove_at(at);
            } else {
                at += 1;
            }
        }
        while let Some((port, pair)) = self.switch.next_served() {
            self.suppress_after_delivery(port, pair, now);
        }
    }

    /// Requests kicks of a pair before a sleep. Returns `false`, with kicks disabled, when frames
    /// came meanwhile.
    fn request_kicks(&mut self, port: PortId, pair: u16, now: Nanos) -> bool {
        let Some(port_side) = self.switch.port_mut(port) else {
            return true;
        };
        if port_side.interface().is_some() {
            return port_side.rests(pair);
        }
        let guest = &mut port_side.guest;
        let due = match guest.request_kicks(pair, now) {
            KickRequest::FramesAvailable => return false,
            KickRequest::EachFrame => {
                if guest.may_miss_kicks(pair) {
                    self.pacing.second_looks.add((port, pair), now);
                }
                return true;
            }
            KickRequest::Coalesced => None,
            KickRequest::Timer(due) => Some(due),
        };
        let window = guest.rules().kick_window();
        self.pacing.kicks.add((port, pair), window, due);
        true
    }

    /// Decides whether to sleep after a pass without frames.
    #[inline]
    pub(super) fn found_nothing(&mut self, now: Duration) -> PollDecision {
        let asleep = if self.pacing.poll.is_busy() {
            self.time_asleep(nanos(now))
        } else {
            None
        };
        self.pacing.poll.found_nothing(now, asleep)
    }

    /// Returns the expected time until a kick or a timer ends a sleep, where guests kick once for
    /// several frames. It is estimated anew once in a window.
    fn time_asleep(&mut self, now: Nanos) -> Option<Duration> {
        if let Some(estimated) = self.pacing.kicks.estimated(now) {
            return estimated;
        }
        let (mut wake_ups, mut window) = (WakeUps::default(), MIN_ESTIMATE);
        for (port, pair) in self.active.pairs() {
            if let Some(guest) = self.switch.guest_mut(port) {
                window = window.max(guest.rules().kick_window());
                if let Some((threshold, gap)) = guest.kick_threshold(pair, now) {
                    wake_ups.add(threshold, gap);
                }
            }
        }
        let asleep = wake_ups.interval();
        self.pacing.kicks.set_estimate(now + window, asleep);
        asleep
    }

    /// Makes all pairs active whose guests kick once for several frames: the worker is awake.
    #[inline]
    fn end_coalescing(&mut self) {
        while let Some((port, pair)) = self.pacing.kicks.take() {
            self.activate(port, pair);
        }
    }

    /// Keeps the kicks of a guest that received frames disabled, if that pays: it may reply soon.
    fn suppress_after_delivery(&mut self, port: PortId, pair: u16, now: Nanos) {
        let known = (port, pair);
        let ours = self.all.is_empty() || self.loads.contains_key(&known);
        if !ours
            || self.active.has(port, pair)
            || self.suppressed.has(known)
            || self.paused.has(known)
        {
            return;
        }
        let Some(guest) = self.switch.guest_mut(port) else {
            return;
        };
        let until = guest.rules().quiet_until(now);
        if now < until {
            self.suppress(known, Trigger::Delivery, (now, until));
        }
    }

    /// Suppresses the kicks of a pair, on three conditions: its guest runs or is about to, and a
    /// block event will follow at once when it halts, without a poll of KVM's; the worker may run
    /// on its core, where it would end such a poll; and suppressing paid lately. A pair whose
    /// frames are there already becomes active instead.
    fn suppress(
        &mut self,
        pair: (PortId, u16),
        trigger: Trigger,
        (since, until): (Nanos, Nanos),
    ) -> bool {
        let Some(guest) = self.switch.guest_mut(pair.0) else {
            return false;
        };
        // The state is read before the block event is requested: a vCPU that blocks in between
        // causes no event.
        let processor = guest.processor(pair.1);
        let Some(processor) = processor.filter(|processor| !processor.polled_for) else {
            return false;
        };
        let holds = self.pacing.affinity.allows(processor.core)
            && (trigger == Trigger::Delivery || processor.asleep.is_none())
            && self.suppressed.should_try(pair, trigger)
            && guest.listen(pair.1)
            && guest
                .processor(pair.1)
                .is_some_and(|now| now.asleep == processor.asleep);
        if !holds {
            return false;
        }
        if guest.suppress_kicks(pair.1) {
            self.activate(pair.0, pair.1);
            return false;
        }
        guest.note_suppressed_kicks(pair.1);
        self.suppressed.add(SuppressedPair {
            pair,
            trigger,
            processor,
            since,
            until,
        });
        true
    }

    /// Enables the kicks of a pair. Returns `true`, with kicks disabled again, when frames came
    /// meanwhile.
    pub(super) fn enable_kicks(&mut self, port: PortId, pair: u16) -> bool {
        let Some(sender) = self.switch.port_mut(port) else {
            return false;
        };
        if sender.arm(pair, true) {
            sender.arm(pair, false);
            return true;
        }
        if sender.guest.may_miss_kicks(pair) {
            let now = nanos(self.upkeep.started.elapsed());
            self.pacing.second_looks.add((port, pair), now);
        }
        false
    }

    /// Sends the deferred notifications that are due; returns the time until the next one.
    pub(super) fn flush_deferred(&mut self, now: Duration) -> Option<Duration> {
        let now = nanos(now);
        self.switch.set_clock(now);
        let next = self.switch.flush_deferred()?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// Reads kicks and messages; sleeps for them when no pair is active, at most for `deferred`.
    pub(super) fn wait(&mut self, deferred: Option<Duration>, now: Duration) {
        let never_sleeps = self.pacing.poll.never_sleeps() && self.served.len() > 0;
        if !self.active.is_empty() || self.switch.has_work() || never_sleeps {
            self.end_coalescing();
            // A worker that always polls never sleeps.
            self.pacing.awake = self.pacing.awake.saturating_add(1);
            if self.pacing.awake == BUSY_PASSES {
                self.suppressed.busy();
                self.pacing.affinity.take(None);
            }
            return self.wait_for_events(Some(Duration::ZERO));
        }
        let looks = self.served.has_interfaces() && self.paused.next().is_none();
        if looks && self.found_nothing(now) == PollDecision::Poll {
            // The next frame of an interface is likely to come before a sleep would pay off.
            self.yield_core();
            return self.wait_for_events(Some(Duration::ZERO));
        }
        if self.switch.has_pending()
            && self.pacing.answers.found_nothing(now, None) == PollDecision::Poll
        {
            // Control may need this core.
            std::thread::yield_now();
            return self.wait_for_events(Some(Duration::ZERO));
        }
        if self.control.take_unfinished() {
            // The worker that has the ring may need this core.
            std::thread::yield_now();
            return self.wait_for_events(Some(Duration::ZERO));
        }
        self.pacing.awake = 0;
        let before = self.measure_sleep();
        self.pacing.affinity.take(self.suppressed.core());
        if self.switch.subscribe_deferred() {
            return;
        }
        let answers = self.control.answers.as_mut();
        if !answers.is_none_or(shared::Receiver::prepare_sleep) {
            return;
        }
        // The pass has done the rest of a tick, if one was due.
        self.check_faults();
        self.check_lost_memory();
        let parked = self.switch.has_pending().then_some(TICK_INTERVAL);
        let suppressed = self.suppressed.next();
        let looked_at = self.pacing.kicks.prepare_sleep();
        let paused = self.paused.next();
        let again = self.pacing.second_looks.next();
        let times = [suppressed, looked_at, paused, again];
        let first = times.into_iter().flatten().min();
        let first = first.map(|until| Duration::from_nanos(until.saturating_sub(nanos(now))));
        self.wait_for_events(parked.into_iter().chain(deferred).chain(first).min());
        self.end_coalescing();
        if let Some(answers) = &mut self.control.answers {
            answers.woke();
        }
        if let Some(before) = before {
            self.pacing.poll.slept(sys::time::of_thread() - before);
        }
    }

    /// Measures the price of a sleep, now and then. Returns the CPU time of the thread if that of
    /// the sleep that follows is measured.
    fn measure_sleep(&mut self) -> Option<Duration> {
        match self.pacing.poll.next_sleep() {
            Sample::None => None,
            Sample::CpuTime => {
                self.pacing.affinity.refresh();
                Some(sys::time::of_thread())
            }
            Sample::WakeUp(time) => {
                self.pacing.poll.woke_late(sys::time::lateness(time));
                None
            }
        }
    }

    /// Limits the looks before a sleep; zero: the worker sleeps at once.
    pub fn limit_looks(&mut self, longest: Duration) {
        self.pacing.poll.limit_looks(longest);
    }

    /// Gives the core to a thread that waits for it; the time that this takes shows whether one
    /// does. One that does would keep it for a time slice, longer than the looks beside it.
    pub(super) fn yield_core(&mut self) {
        if self.pacing.poll.is_on_shared_core() {
            return;
        }
        let before = self.upkeep.started.elapsed();
        std::thread::yield_now();
        let now = self.upkeep.started.elapsed();
        self.pacing
            .poll
            .yielded(now, now.saturating_sub(before), sys::time::of_thread);
    }

    /// Waits for events at most so long, or without a limit, and handles them.
    pub(super) fn wait_for_events(&mut self, limit: Option<Duration>) {
        let mut events = [MaybeUninit::uninit(); 64];
        let Ok(events) = sys::wait::events(&self.events.epoll, &mut events, limit) else {
            return;
        };
        for event in events {
            match event.data.u64() {
                TOKEN_INBOX => sys::event::clear(&*self.events.inbox_bell),
                TOKEN_TIMER => self.pacing.kicks.expired(),
                TOKEN_BLOCK_EVENTS => {
                    // The sender does not matter: all suppressed and deferred pairs are checked.
                    if let Some(block_events) = self.guests.block_events() {
                        block_events.drain();
                    }
                }
                TOKEN_ANSWERS => {
                    // A bell from before polling resumed.
                    if let Some(answers) = &mut self.control.answers {
                        answers.rang();
                    }
                }
                token => {
                    let (port, pair) = (PortId((token >> 32) as u32), token as u16);
                    self.kicked(port, pair);
                }
            }
        }
    }
}
