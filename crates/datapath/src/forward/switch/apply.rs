//! Application of control's answers in their order, in bounded parts.
//!
//! A rule may concern a million flows, and frames wait while these are removed. Therefore the rest
//! of a rule, and all answers behind it, wait for the next call.

use std::collections::VecDeque;

use channel::records::{Answer, Stale, key_from_words, mask_from_words};
use flow_table::{CHANGE, Class, Decided, Effort, Origin, Progress, SEEK};
use policy::{Action, Excluded, Outdated, PortId, Program, SegmentId};
use port::DropReason;
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};
use wire::vlan::CAP;

use super::Switch;
use crate::forward::fabric::FrameInTransit;
use crate::forward::pending_upcalls::PendingFrame;
use crate::forward::revalidator::{Finished, FlowSweep, Revalidator};
use crate::ports::crash_record;
use crate::ports::payload::Payload;
use crate::ports::port::Port;

/// Backpressure after flows were removed because of a new program, milliseconds; see
/// [`Switch::enable_backpressure`].
const BACKPRESSURE_MS: u64 = 1000;

/// Element of the work queue.
#[derive(Debug)]
enum Work {
    Answer(Answer),
    /// Removes a station's flows, from a position on.
    Station(SegmentId, MacAddr, usize),
    /// Removes outdated flows, from a position on.
    Outdated(Outdated, usize),
    /// Replaces the program, after all outdated flows are removed.
    SetProgram(Program),
    /// Begins a sweep with this number.
    Begin(u64, FlowSweep),
}

/// Work that is left, in order.
#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    queue: VecDeque<Work>,
    /// Effort that is left until the next [`Switch::continue_work`].
    effort: Effort,
    sweeps: Revalidator,
}

impl WorkQueue {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.sweeps.is_empty()
    }

    /// Returns whether answers are left to apply.
    pub(crate) fn is_behind(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes this and the following port removals off the queue: they share one walk through the
    /// flows.
    fn ports_with(&mut self, port: PortId) -> Outdated {
        let mut ports = vec![port];
        while let Some(Work::Answer(Answer::Forget(Stale::Port(port)))) = self.queue.front() {
            ports.push(*port);
            self.queue.pop_front();
        }
        Outdated::ports(ports)
    }
}

/// Returns the decision to drop frames.
fn dropped(reason: DropReason) -> Decided {
    (Action::Drop(reason), Class::default())
}

impl<P: Port> Switch<P> {
    /// Applies one answer of control: at once, if none is left before it and effort is left since
    /// the last [`Switch::continue_work`].
    pub fn answer(&mut self, answer: Answer, now: u64) {
        self.work_queue.queue.push_back(Work::Answer(answer));
        if self.work_queue.queue.len() == 1 {
            self.run_queue(now);
        }
    }

    /// Begins to remove the flows from and to a port.
    pub(crate) fn forget_flows_of(&mut self, port: PortId, now: u64) {
        self.answer(Answer::Forget(Stale::Port(port)), now);
    }

    /// Replaces the program and begins to remove the flows that it may decide otherwise. Until that
    /// is done, floods do not include new members of segments, which old flows do not know. With
    /// backpressure, senders lose no frames for a while.
    pub fn change_program(&mut self, program: Program, outdated: Outdated, now: u64) {
        self.set_program(program.without_new_members(self.program()));
        if !outdated.is_empty() {
            self.enable_backpressure(now, BACKPRESSURE_MS);
        }
        let queue = &mut self.work_queue.queue;
        queue.retain(|work| !matches!(work, Work::SetProgram(_)));
        queue.extend([Work::Outdated(outdated, 0), Work::SetProgram(program)]);
        self.run_queue(now);
    }

    /// Queues a sweep behind all work; [`Switch::take_finished`] returns its result.
    pub fn begin(&mut self, ticket: u64, sweep: FlowSweep) {
        self.work_queue.queue.push_back(Work::Begin(ticket, sweep));
    }

    /// Does a part of the remaining work and of the current sweep. To be called periodically, and
    /// soon while [`Switch::has_work`]. Returns `true` when later answers can be applied at once.
    pub fn continue_work(&mut self, now: u64) -> bool {
        self.work_queue.effort = Effort::default();
        self.run_queue(now);
        let (sweeps, program) = (&mut self.work_queue.sweeps, &self.fabric.program);
        sweeps.run(&mut self.lookup.flows, program, now);
        !self.work_queue.is_behind()
    }

    /// Returns whether [`Switch::continue_work`] has answers or sweeps left.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.work_queue.is_empty()
    }

    /// Returns the sweeps that finished since the last call.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        self.work_queue.sweeps.take_finished()
    }

    fn run_queue(&mut self, now: u64) {
        while !self.work_queue.effort.is_spent()
            && let Some(work) = self.work_queue.queue.pop_front()
        {
            match work {
                Work::Answer(answer) => self.apply(answer, now),
                Work::Station(segment, mac, at) => self.forget_station(segment, mac, at),
                Work::Outdated(flows, at) => self.forget_outdated(flows, at),
                Work::SetProgram(program) => self.set_program(program),
                Work::Begin(ticket, sweep) => self.work_queue.sweeps.begin(ticket, sweep),
            }
        }
    }

    /// Removes a part of a station's flows; the rest becomes the first element of the queue.
    fn forget_station(&mut self, segment: SegmentId, mac: MacAddr, at: usize) {
        let effort = &mut self.work_queue.effort;
        if let Progress::ResumeAt(at) = self.lookup.flows.forget_station(segment, mac, at, effort) {
            self.work_queue
                .queue
                .push_front(Work::Station(segment, mac, at));
        }
    }

    /// Removes a part of the outdated flows.
    fn forget_outdated(&mut self, flows: Outdated, at: usize) {
        let effort = &mut self.work_queue.effort;
        if let Progress::ResumeAt(at) = self.lookup.flows.forget_outdated(&flows, at, effort) {
            self.work_queue.queue.push_front(Work::Outdated(flows, at));
        }
    }

    fn apply(&mut self, answer: Answer, now: u64) {
        match answer {
            Answer::Install {
                upcall,
                key,
                mask,
                action,
                class,
                segment,
                learned,
                except,
                rules,
                epoch,
            } => {
                let (key, mask) = (key_from_words(&key), mask_from_words(&mask));
                self.note_reply(upcall);
                self.work_queue.effort.charge(CHANGE);
                let rules = self.lookup.flows.intern_rules(rules);
                let origin = Origin {
                    class: Class::new(class),
                    segment,
                    learned,
                    rules,
                };
                let decided = ((action, origin.class), except);
                // An answer to an upcall from before the program changed applies to its frames
                // only.
                if epoch == self.program().epoch() {
                    self.install(upcall, (&key, &mask), decided, origin, now)
                } else {
                    self.answer_once(upcall, decided, (rules, epoch), now)
                }
                self.lookup.flows.release_rules(rules);
            }
            Answer::Once {
                upcall,
                action,
                class,
                except,
                rules,
                epoch,
            } => {
                self.work_queue.effort.charge(SEEK);
                self.note_reply(Some(upcall));
                let rules = self.lookup.flows.intern_rules(rules);
                let decided = ((action, Class::new(class)), except);
                self.answer_once(Some(upcall), decided, (rules, epoch), now);
                self.lookup.flows.release_rules(rules);
            }
            Answer::Reply { upcall, frame } => {
                self.work_queue.effort.charge(SEEK);
                self.note_reply(Some(upcall));
                self.reply(upcall, &frame, now);
            }
            Answer::Forget(Stale::Station { segment, mac }) => {
                self.work_queue.effort.charge(SEEK);
                self.forget_station(segment, MacAddr(mac), 0);
            }
            Answer::Forget(Stale::Port(port)) => {
                self.work_queue.effort.charge(SEEK);
                let ports = self.work_queue.ports_with(port);
                self.forget_outdated(ports, 0);
            }
        }
    }

    /// Installs a flow and applies its action to the pending frames.
    fn install(
        &mut self,
        upcall: Option<u64>,
        (key, mask): (&FlowKey, &FlowMask),
        ((action, class), except): (Decided, Vec<PortId>),
        origin: Origin,
        now: u64,
    ) {
        let Some(excluded) = self.lookup.flows.excluded.intern(except) else {
            // No exclude set is free: the frames are dropped, so that no excluded port gets them.
            let dropped = (dropped(DropReason::UpcallFull), Vec::new());
            return self.answer_once(upcall, dropped, (0, self.program().epoch()), now);
        };
        let action = action.excluding(Excluded(excluded));
        self.lookup.flows.install(key, mask, action, origin, now);
        let frames = self.pending.release_covered(upcall, key, mask);
        self.execute_decided((action, class), frames, origin.rules, now);
        self.lookup.flows.excluded.decref(excluded);
    }

    /// Applies an answer to one upcall without a flow. If the exclude set is of former members of
    /// the segment, the upcall is sent again.
    fn answer_once(
        &mut self,
        upcall: Option<u64>,
        ((action, class), except): (Decided, Vec<PortId>),
        (rules, epoch): (u16, u64),
        now: u64,
    ) {
        let Some(upcall) = upcall else {
            return;
        };
        if matches!(action, Action::Flood { .. }) && epoch != self.program().epoch() {
            return self.pending.retry(upcall);
        }
        let Some(waiting) = self.pending.release(upcall) else {
            return;
        };
        let frames = waiting.into_frames().collect();
        match self.lookup.flows.excluded.intern(except) {
            Some(excluded) => {
                let action = action.excluding(Excluded(excluded));
                self.execute_decided((action, class), frames, rules, now);
                self.lookup.flows.excluded.decref(excluded);
            }
            None => self.execute_decided(dropped(DropReason::UpcallFull), frames, 0, now),
        }
    }

    /// Replies to the sender of a pending frame, with the tag of that frame.
    fn reply(&mut self, upcall: u64, frame: &[u8], now: u64) {
        let Some(waiting) = self.pending.release(upcall) else {
            return;
        };
        let (requester, tag) = (waiting.port(), waiting.key.vlan());
        let frames = waiting.into_frames().collect();
        self.execute_decided(dropped(DropReason::NeighbourReply), frames, 0, now);
        self.send_generated(requester, tag, frame);
    }

    /// Applies an action to pending frames and counts them for these rules.
    fn execute_decided(
        &mut self,
        decided: Decided,
        frames: Vec<(FlowKey, PendingFrame)>,
        rules: u16,
        now: u64,
    ) {
        let bytes = frames.iter().map(|(_, frame)| frame.bytes()).sum();
        self.work_queue.effort.charge_frames(frames.len(), bytes);
        let packets = frames.len() as u64;
        self.lookup
            .flows
            .count_unflowed(rules, packets, bytes as u64, now);
        self.execute_pending(decided, frames);
    }

    /// Executes an action for frames that waited for it.
    fn execute_pending(
        &mut self,
        (action, class): Decided,
        frames: impl IntoIterator<Item = (FlowKey, PendingFrame)>,
    ) {
        self.meter.begin();
        for (key, mut frame) in frames {
            let from = PortId(key.in_port());
            let _served = crash_record::serve(Some(from));
            self.fabric.serving = frame.pair;
            let by_pair = self.fabric.class_of_pair(from, frame.pair);
            let segments = [memory::Segment {
                ptr: frame.payload.as_mut_ptr(),
                len: frame.payload.len() as u32,
                gpa: 0,
            }];
            let len = frame.payload.len() as u32;
            // SAFETY: the segment is the frame's own buffer, which lives to the end of this
            // iteration and is not accessed otherwise.
            let payload = unsafe { Payload::new(&segments, 0, len) };
            self.fabric.execute_tapped(
                action,
                FrameInTransit {
                    headers: &mut frame.headers,
                    payload: &payload,
                    offload: frame.offload,
                    from,
                    class: by_pair.unwrap_or(class),
                },
                &self.lookup.flows.excluded,
            );
        }
        self.fabric.flush_and_notify();
        let copying = self.meter.lap_of_all();
        self.fabric.charge_receivers(copying, None);
    }

    /// Delivers a generated frame to a port in reply to a frame with this tag. Frames longer than
    /// the header buffer are ignored; control generates none.
    fn send_generated(&mut self, to: PortId, tag: Option<u16>, frame: &[u8]) {
        if frame.len() > CAP {
            return;
        }
        self.meter.begin();
        self.fabric.deliver_generated(to, tag, frame);
        self.fabric.flush_and_notify();
        let copying = self.meter.lap();
        self.fabric.charge_receivers(copying, None);
    }
}
