//! Frames that wait in the queues of their senders: beyond a rate limit, without credit of a
//! scheduled port, or because too many wait for control.
//!
//! The batch is cut at the first frame that may not go yet. It stays in the queue with all behind
//! it, as if it had not been taken, and the worker leaves the queue pair alone until its turn.

use std::ops::Range;
use std::sync::Arc;

use ipc::egress::{Beyond, SenderQos};
use ipc::limits::Limits;
use policy::Action;
use port::{DropReason, Offload, PortId};

use super::{Switch, UpcallSink};
use crate::forward::egress::{FULL_LOOK, Output, Turn};
use crate::forward::flow_batch::ActionBatch;
use crate::forward::limits::PortLimits;
use crate::ports::batch::{Batch, BatchLimit, Frame};
use crate::ports::budget::{Budget, Cost};
use crate::ports::coalescing::Nanos;
use crate::ports::port::Port;

/// Bytes of a VLAN tag.
const TAG: u32 = 4;

/// End of a pause of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// Its rate limit allows the next frame.
    Until(Nanos),
    /// It has its turn at a scheduled port.
    Turn(Turn),
}

/// Senders that have to wait.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Whether any sender may have to wait: a limit is set, a port is scheduled, or backpressure is
    /// on.
    pub(super) active: bool,
    /// End of the backpressure, milliseconds; 0: none. See [`Switch::enable_backpressure`].
    backpressure_until: u64,
    /// Ports with a from-guest rate limit.
    limited: Vec<PortId>,
    /// Scheduled ports.
    outputs: Vec<PortId>,
    /// Pause of the pair that was served last.
    pause: Option<Pause>,
    /// Frames of the batch in hand that were paid for, by port, where room in the interface counts.
    sent: Vec<(PortId, usize)>,
}

/// Result of paying for frames of one flow to a scheduled port.
enum Funding {
    /// All may go.
    All,
    /// So many may go; the next one has to wait, or is dropped.
    Some(usize, Beyond),
}

impl<P: Port> Switch<P> {
    /// Serves a pair as [`Switch::serve`] does, while some senders may have to wait.
    #[inline(never)]
    pub(super) fn serve_throttled(
        &mut self,
        (id, pair): (PortId, u16),
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) -> bool {
        if self.throttle.backpressure_until != 0 && self.is_under_backpressure(id, now) {
            return false;
        }
        let mut budget = match self.rate_limit_budget(id) {
            Ok(budget) => budget,
            Err(until) => {
                self.throttle.pause = Some(Pause::Until(until));
                return false;
            }
        };
        self.lookup.batch.clear();
        let Some(slot) = self.fabric.slot(id) else {
            return false;
        };
        slot.port.take(pair, &mut self.lookup.batch);
        if self.lookup.batch.is_untouched() {
            self.fabric.release(id, pair);
            self.settle_rate_limit(id, budget);
            return false;
        }
        self.fabric.serving = pair;
        if let Some(budget) = &mut budget {
            let kept = within(budget, &self.lookup.batch);
            self.cut(id, pair, kept);
        }
        self.group(id, (now, false));
        let kept = self.lookup.batch.frames().len();
        self.decide_funded((id, pair), now, upcalls);
        if self.lookup.batch.frames().len() < kept
            && let Some(budget) = &mut budget
        {
            budget.recharge(cost_of(&self.lookup.batch));
        }
        self.settle_rate_limit(id, budget);
        self.count_taken(id);
        self.drop_malformed(id);
        let any = !self.lookup.batch.is_untouched();
        self.fabric.prepaid = true;
        self.execute_batch(id, pair);
        self.fabric.prepaid = false;
        self.note_delivered();
        any
    }

    /// Moves a batch as [`Switch::serve`] does, of a pair that is left: no frame waits for a rate
    /// limit of its sender, and one to a scheduled port is treated as a copy of a flood.
    pub(crate) fn serve_last(
        &mut self,
        (id, pair): (PortId, u16),
        now: u64,
        upcalls: &mut dyn UpcallSink,
    ) {
        let is_throttled = std::mem::take(&mut self.throttle.active);
        self.set_limit(BatchLimit::MOST);
        self.serve(id, pair, now, upcalls);
        self.throttle.active = is_throttled;
    }

    /// Notes that the frames of the batch are delivered to their interfaces.
    fn note_delivered(&mut self) {
        while let Some((to, frames)) = self.throttle.sent.pop() {
            if let Some(slot) = self.fabric.slot(to)
                && let Some(output) = &slot.output
            {
                output.note_delivered(frames);
            }
        }
    }

    /// Decides the action of each frame as `decide` does, and pays for those to scheduled ports, up
    /// to the first one that has to wait. Frames behind it are not asked about.
    fn decide_funded(&mut self, (id, pair): (PortId, u16), now: u64, upcalls: &mut dyn UpcallSink) {
        let (mut at, mut funded) = (0, 0);
        loop {
            let unknown = self.find_all(id, at, now);
            if let Some(index) = self.fund(id, &mut funded) {
                let found = unknown.unwrap_or(self.lookup.flow_batches.len());
                self.lookup.forget_behind(index, found);
                return self.cut(id, pair, index);
            }
            let Some(unknown) = unknown else { return };
            at = self.ask(unknown, id, now, upcalls);
        }
    }

    /// Pays for the frames of the action batches from this one on. Returns the index of the first
    /// frame that has to wait.
    fn fund(&mut self, from: PortId, at: &mut usize) -> Option<usize> {
        while let Some(group) = self.lookup.action_batches.get(*at) {
            *at += 1;
            let group = group.clone();
            let Action::Unicast { port: to, .. } = group.action else {
                continue;
            };
            let Some(output) = self.output(to) else {
                continue;
            };
            match self.fund_group(&output, &group, (from, to)) {
                Funding::All => {}
                Funding::Some(frames, Beyond::Hold) => return Some(group.frames.start + frames),
                Funding::Some(frames, Beyond::Drop) => self.drop_unfunded(*at - 1, frames),
            }
        }
        None
    }

    fn fund_group(
        &mut self,
        output: &Output,
        group: &ActionBatch,
        (from, to): (PortId, PortId),
    ) -> Funding {
        let Some(leaf) = output.leaf(from, group.class().number()) else {
            return Funding::All;
        };
        let now = self.fabric.now;
        let count = group.frames.len();
        let most = match output.holds_when_full() {
            true => self.fitting(output, group, to),
            false => count,
        };
        let batch = &self.lookup.batch;
        let bits = |frames| bits_of(output, batch, group, frames);
        let one = |index| bits(index..index + 1);
        let (first, all) = (one(group.frames.start), bits(group.frames.clone()));
        let taken = output.take(leaf, (first, all), now);
        let (mut sent, mut frames) = (all, count);
        if taken < all || most < count {
            (sent, frames) = (0, 0);
            for bits in group.frames.clone().map(one).take(most) {
                if sent + bits > taken {
                    break;
                }
                (sent, frames) = (sent + bits, frames + 1);
            }
        }
        output.settle(leaf, taken, sent);
        if output.holds_when_full() && frames > 0 {
            output.note_sent(frames, sent);
            self.throttle.sent.push((to, frames));
        }
        if frames == count {
            return Funding::All;
        }
        let beyond = output.beyond(leaf);
        match beyond {
            Beyond::Drop => output.note_dropped(leaf, (count - frames) as u64, now),
            // It has credit, and the interface takes no more.
            Beyond::Hold if frames == most && taken > 0 => {
                self.throttle.pause = Some(Pause::Until(now + FULL_LOOK));
            }
            Beyond::Hold => {
                let missing = (one(group.frames.start + frames), all - sent);
                let turn = output.wait((to, leaf), missing, now);
                self.throttle.pause = Some(Pause::Turn(turn));
            }
        }
        Funding::Some(frames, beyond)
    }

    /// Returns how many frames of an action batch the interface behind a port takes now.
    fn fitting(&mut self, output: &Output, group: &ActionBatch, to: PortId) -> usize {
        let (now, count) = (self.fabric.now, group.frames.len());
        let slot = self.fabric.slot(to);
        let buffers = slot.and_then(|slot| slot.port.buffers());
        let batch = &self.lookup.batch;
        let bits = |frames| bits_of(output, batch, group, frames);
        let usual = bits(group.frames.clone()) / count.max(1) as u64;
        output.note_room(buffers, Some(usual), now);
        let each = group.frames.clone().map(|index| bits(index..index + 1));
        output.fitting(each, now).min(count)
    }

    /// Drops the frames of an action batch behind the first `frames`, which were not paid for.
    #[cold]
    fn drop_unfunded(&mut self, at: usize, frames: usize) {
        let groups = &mut self.lookup.action_batches;
        let mut rest = groups[at].clone();
        rest.action = Action::Drop(DropReason::RateLimited);
        rest.frames.start += frames;
        groups[at].frames.end = rest.frames.start;
        if frames == 0 {
            groups[at] = rest;
        } else {
            groups.insert(at + 1, rest);
        }
    }

    /// Leaves only the first frames in the batch; the others stay in their queue.
    fn cut(&mut self, id: PortId, pair: u16, frames: usize) {
        let before = self.lookup.batch.frames().len();
        if frames >= before {
            return;
        }
        let kept = self.lookup.batch.cut(frames);
        self.lookup.malformed.retain(|(index, _)| *index < frames);
        if let Some(slot) = self.fabric.slot(id) {
            slot.port.leave(pair, kept);
        }
    }

    fn output(&mut self, port: PortId) -> Option<Arc<Output>> {
        self.fabric.slot(port)?.output.clone()
    }

    /// Returns the budget of a batch by its sender's rate limit, to be settled.
    ///
    /// # Errors
    /// The time at which there is one.
    fn rate_limit_budget(&mut self, id: PortId) -> Result<Option<Budget>, Nanos> {
        let now = self.fabric.now;
        match self.fabric.slot(id).and_then(|slot| slot.limits.as_deref()) {
            Some(limits) => limits.grant(now),
            None => Ok(None),
        }
    }

    /// Returns the rest of a budget.
    fn settle_rate_limit(&mut self, id: PortId, budget: Option<Budget>) {
        let Some(budget) = budget else { return };
        let now = self.fabric.now;
        let limits = self.fabric.slot(id).and_then(|slot| slot.limits.as_deref());
        if let Some(until) = limits.and_then(|limits| limits.settle(&budget, now)) {
            self.throttle.pause.get_or_insert(Pause::Until(until));
        }
    }

    /// Enables backpressure for `for_ms` milliseconds: while too many frames of a port are pending,
    /// its further frames stay in the guest's queue and are not dropped. A switch that takes over
    /// starts so: it has no flows yet.
    pub fn enable_backpressure(&mut self, now: u64, for_ms: u64) {
        self.throttle.backpressure_until = self.throttle.backpressure_until.max(now + for_ms);
        self.update_throttle();
        self.pending.take_whole_batches(true);
    }

    #[cold]
    fn is_under_backpressure(&mut self, id: PortId, now: u64) -> bool {
        if now < self.throttle.backpressure_until {
            return !self.pending.has_room(id);
        }
        self.throttle.backpressure_until = 0;
        self.update_throttle();
        self.pending.take_whole_batches(false);
        false
    }

    /// Sets the limits of a port; workers share them.
    pub fn set_limits(&mut self, id: PortId, limits: Option<Arc<PortLimits>>) {
        self.throttle.limited.retain(|port| *port != id);
        if limits
            .as_ref()
            .is_some_and(|limits| limits.limits_from_guest())
        {
            self.throttle.limited.push(id);
        }
        self.fabric.set_limits(id, limits);
        self.update_throttle();
    }

    /// Schedules what leaves by a port, or no longer; workers share the output.
    pub fn set_output(&mut self, id: PortId, output: Option<Arc<Output>>) {
        self.throttle.outputs.retain(|port| *port != id);
        if output.is_some() {
            self.throttle.outputs.push(id);
        }
        self.fabric.set_output(id, output);
        self.update_throttle();
    }

    /// Returns the output of a port.
    #[must_use]
    pub fn output_of(&mut self, id: PortId) -> Option<Arc<Output>> {
        self.output(id)
    }

    /// Sets the settings of a port as a sender to scheduled ports.
    pub fn set_qos(&mut self, id: PortId, qos: SenderQos) {
        if let Some(slot) = self.fabric.slot(id) {
            slot.qos = (qos != SenderQos::default()).then(|| Box::new(qos));
        }
        self.fabric.update_classes();
    }

    /// Returns the limits of a port.
    #[must_use]
    pub fn limits(&mut self, id: PortId) -> Limits {
        let slot = self.fabric.slot(id);
        let limits = slot.and_then(|slot| slot.limits.as_deref());
        limits.map(PortLimits::limits).unwrap_or_default()
    }

    /// Returns and clears the pause of the pair that was served last.
    #[inline]
    pub(crate) fn take_pause(&mut self) -> Option<Pause> {
        if self.throttle.active {
            self.throttle.pause.take()
        } else {
            None
        }
    }

    /// Returns whether the pause of a pair is over.
    pub(crate) fn is_over(&mut self, pause: &Pause, now: Nanos) -> bool {
        match pause {
            Pause::Until(until) => *until <= now,
            Pause::Turn(turn) => {
                let slot = self.fabric.slot(turn.output);
                // A port that is no longer scheduled holds no sender.
                let output = slot.and_then(|slot| slot.output.as_ref());
                output.is_none_or(|output| {
                    let over = output.has_turn(turn);
                    if over {
                        output.end_turn(turn, now);
                    }
                    over
                })
            }
        }
    }

    /// Ends the pause of a pair that this worker serves no longer.
    pub(crate) fn give_up(&mut self, pause: &Pause, now: Nanos) {
        let Pause::Turn(turn) = pause else { return };
        let slot = self.fabric.slot(turn.output);
        if let Some(output) = slot.and_then(|slot| slot.output.as_ref()) {
            output.end_turn(turn, now);
        }
    }

    /// Lets scheduled ports grant credit where that is due. Returns the time of the next one.
    pub(crate) fn allot(&mut self, now: Nanos) -> Option<Nanos> {
        let slots = &mut self.fabric.slots;
        let dues = self.throttle.outputs.iter().filter_map(|id| {
            let slot = slots.get_mut(id.0 as usize)?.as_mut()?;
            let output = slot.output.as_deref()?;
            if output.due() <= now {
                if output.holds_when_full() {
                    output.note_room(slot.port.buffers(), None, now);
                }
                output.allot(now);
            }
            Some(output.due())
        });
        dues.min()
    }

    fn update_throttle(&mut self) {
        let throttle = &mut self.throttle;
        throttle.active = throttle.backpressure_until != 0
            || !throttle.limited.is_empty()
            || !throttle.outputs.is_empty();
    }
}

/// Charges the budget, and returns the number of frames for which it suffices.
fn within(budget: &mut Budget, batch: &Batch) -> usize {
    let whole = cost_of(batch);
    if budget.covers(whole) {
        budget.charge(whole);
        return batch.frames().len();
    }
    batch.dropped().for_each(|len| budget.charge(dropped(len)));
    let frames = batch.frames().iter();
    frames
        .map(unchecked)
        .take_while(|cost| budget.admit(*cost))
        .count()
}

/// Returns the cost of all frames that were taken, the dropped ones included.
fn cost_of(batch: &Batch) -> Cost {
    let frames = batch.frames().iter().map(unchecked);
    let all = frames.chain(batch.dropped().map(dropped));
    all.fold(Cost::default(), |sum, cost| sum + cost)
}

fn unchecked(frame: &Frame) -> Cost {
    Cost::of_unchecked(frame.headers.as_slice(), frame.len(), &frame.offload)
}

fn dropped(len: u32) -> Cost {
    Cost::of(len, &Offload::default())
}

/// Returns the bits of frames behind a scheduled port, with the tag that they leave with.
#[inline]
fn bits_of(output: &Output, batch: &Batch, group: &ActionBatch, frames: Range<usize>) -> u64 {
    let tagged = matches!(group.action, Action::Unicast { tag: Some(_), .. });
    let (added, removed) = match (group.is_tagged(), tagged) {
        (false, true) => (TAG, 0),
        (true, false) => (0, TAG),
        _ => (0, 0),
    };
    let shortest = (output.shortest() + removed).saturating_sub(added);
    let cost = batch.cost(frames, shortest);
    let bits = |bytes| cost.packets * u64::from(bytes) * 8;
    (output.bits(cost) + bits(added)).saturating_sub(bits(removed))
}
