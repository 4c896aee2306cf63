//! Application of control's answers in their order, in bounded parts.
//!
//! A rule may concern a million flows, and frames wait while these are removed. Therefore the rest
//! of a rule, and all answers behind it, wait for the next call.

use std::collections::VecDeque;

use flow_table::{CHANGE, CachedDecision, Class, Effort, Origin, SEEK};
use ipc::records::{Answer, StaleFlows, key_from_words, mask_from_words};
use policy::{Action, ExcludeSetId, OutdatedFlows, PortId, Program, SegmentId};
use port::DropReason;
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};
use wire::vlan::CAP;

use super::Switch;
use super::connections::Flush;
use crate::forward::fabric::FrameInTransit;
use crate::forward::pending_upcalls::PendingFrame;
use crate::forward::revalidator::{FlowSweep, Revalidator, SweepResult};
use crate::forward::tables::{Place, Tables};
use crate::forward::tracking::pending::Resumption;
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
    /// Removes a station's flows, from a place on.
    Station(SegmentId, MacAddr, Place),
    /// Removes outdated flows, from a place on.
    Outdated(OutdatedFlows, Place),
    /// Replaces the program, after all outdated flows are removed.
    SetProgram(Program),
    /// Removes the connections of a port.
    Connections(Flush),
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
    fn ports_with(&mut self, port: PortId) -> OutdatedFlows {
        let mut ports = vec![port];
        while let Some(Work::Answer(Answer::Forget(StaleFlows::Port(port)))) = self.queue.front() {
            ports.push(*port);
            self.queue.pop_front();
        }
        OutdatedFlows::ports(ports)
    }
}

/// Returns the decision to drop frames.
fn dropped(reason: DropReason) -> CachedDecision {
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
        self.answer(Answer::Forget(StaleFlows::Port(port)), now);
    }

    /// Begins to remove the connections of a port.
    pub(crate) fn forget_connections_of(&mut self, port: PortId) {
        if self.is_tracking() {
            let flush = Flush::of(port);
            self.work_queue.queue.push_back(Work::Connections(flush));
        }
    }

    /// Replaces the program and begins to remove the flows that it may decide otherwise. Until that
    /// is done, floods do not include new members of segments, which old flows do not know. With
    /// backpressure, senders lose no frames for a while.
    pub fn change_program(&mut self, program: Program, outdated: OutdatedFlows, now: u64) {
        self.fabric.program = program.without_new_members(self.program());
        if !outdated.is_empty() {
            self.enable_backpressure(now, BACKPRESSURE_MS);
        }
        let queue = &mut self.work_queue.queue;
        queue.retain(|work| !matches!(work, Work::SetProgram(_)));
        let outdated = Work::Outdated(outdated, Place::default());
        queue.extend([outdated, Work::SetProgram(program)]);
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
        let mut tables = Tables::of(&mut self.lookup, self.tracked.as_deref_mut());
        sweeps.run(&mut tables, program, now);
        !self.work_queue.is_behind()
    }

    /// Returns whether [`Switch::continue_work`] has answers or sweeps left.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.work_queue.is_empty()
    }

    /// Returns the sweeps that finished since the last call.
    pub fn take_finished(&mut self) -> Vec<SweepResult> {
        self.work_queue.sweeps.take_finished()
    }

    fn run_queue(&mut self, now: u64) {
        while !self.work_queue.effort.is_spent()
            && let Some(work) = self.work_queue.queue.pop_front()
        {
            match work {
                Work::Answer(answer) => self.apply(answer, now),
                Work::Station(segment, mac, from) => self.forget_station(segment, mac, from),
                Work::Outdated(flows, from) => self.forget_outdated(flows, from),
                Work::SetProgram(program) => self.set_program(program),
                Work::Connections(flush) => {
                    // Each part has as many as a part of flows.
                    self.work_queue.effort.charge(usize::MAX);
                    if let Some(rest) = self.flush_connections(flush, now) {
                        self.work_queue.queue.push_front(Work::Connections(rest));
                    }
                }
                Work::Begin(ticket, sweep) => self.work_queue.sweeps.begin(ticket, sweep),
            }
        }
    }

    /// Removes a part of a station's flows; the rest becomes the first element of the queue.
    fn forget_station(&mut self, segment: SegmentId, mac: MacAddr, from: Place) {
        let mut tables = Tables::of(&mut self.lookup, self.tracked.as_deref_mut());
        let WorkQueue { queue, effort, .. } = &mut self.work_queue;
        let rest = tables.walk(from, effort, |flows, at, effort| {
            flows.forget_station(segment, mac, at, effort)
        });
        if let Some(rest) = rest {
            queue.push_front(Work::Station(segment, mac, rest));
        }
    }

    /// Removes a part of the outdated flows.
    fn forget_outdated(&mut self, outdated: OutdatedFlows, from: Place) {
        let mut tables = Tables::of(&mut self.lookup, self.tracked.as_deref_mut());
        let WorkQueue { queue, effort, .. } = &mut self.work_queue;
        let rest = tables.walk(from, effort, |flows, at, effort| {
            flows.forget_outdated(&outdated, at, effort)
        });
        if let Some(rest) = rest {
            queue.push_front(Work::Outdated(outdated, rest));
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
                connection,
                segment,
                source,
                except,
                rules,
                epoch,
            } => {
                let (key, mask) = (key_from_words(&key), mask_from_words(&mask));
                self.note_reply(upcall);
                self.work_queue.effort.charge(CHANGE);
                self.take_up_lookup(PortId(key.in_port()));
                let rules = self.lookup.flows.intern_rules(rules);
                let origin = Origin {
                    class: Class::new(class).with_change(connection),
                    segment,
                    source,
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
                connection,
                except,
                rules,
                epoch,
            } => {
                self.work_queue.effort.charge(SEEK);
                self.note_reply(Some(upcall));
                if let Some(port) = self.pending.port_of(upcall) {
                    self.take_up_lookup(port);
                }
                let rules = self.lookup.flows.intern_rules(rules);
                let class = Class::new(class).with_change(connection);
                let decided = ((action, class), except);
                self.answer_once(Some(upcall), decided, (rules, epoch), now);
                self.lookup.flows.release_rules(rules);
            }
            Answer::Reply { upcall, frame } => {
                self.work_queue.effort.charge(SEEK);
                self.note_reply(Some(upcall));
                self.reply(upcall, &frame, now);
            }
            Answer::Forget(StaleFlows::Station { segment, mac }) => {
                self.work_queue.effort.charge(SEEK);
                self.forget_station(segment, MacAddr(mac), Place::default());
            }
            Answer::Forget(StaleFlows::Port(port)) => {
                self.work_queue.effort.charge(SEEK);
                let ports = self.work_queue.ports_with(port);
                self.forget_outdated(ports, Place::default());
            }
        }
    }

    /// Installs a flow and applies its action to the pending frames.
    fn install(
        &mut self,
        upcall: Option<u64>,
        (key, mask): (&FlowKey, &FlowMask),
        ((action, class), except): (CachedDecision, Vec<PortId>),
        origin: Origin,
        now: u64,
    ) {
        let Some(excluded) = self.lookup.flows.excluded.intern(except) else {
            // No exclude set is free: the frames are dropped, so that no excluded port gets them.
            let dropped = (dropped(DropReason::UpcallFull), Vec::new());
            return self.answer_once(upcall, dropped, (0, self.program().epoch()), now);
        };
        let action = action.excluding(ExcludeSetId(excluded));
        self.lookup.flows.install(key, mask, action, origin, now);
        let frames = self.pending.release_covered(upcall, key, mask);
        self.execute_decided((action, class), frames, origin.rules, now);
        self.lookup.flows.excluded.decref(excluded);
    }

    /// Applies an answer to one upcall without a flow. The upcall is sent again if the answer is by
    /// another program and has the exclude set of former members of the segment, or lets a
    /// connection in, whose frames would then pass without rules.
    fn answer_once(
        &mut self,
        upcall: Option<u64>,
        ((action, class), except): (CachedDecision, Vec<PortId>),
        (rules, epoch): (u16, u64),
        now: u64,
    ) {
        let Some(upcall) = upcall else {
            return;
        };
        let lasts = matches!(action, Action::Flood { .. }) || class.commits();
        if lasts && epoch != self.program().epoch() {
            return self.pending.retry(upcall);
        }
        let Some(waiting) = self.pending.release(upcall) else {
            return;
        };
        let frames = waiting.into_frames().collect();
        match self.lookup.flows.excluded.intern(except) {
            Some(excluded) => {
                let action = action.excluding(ExcludeSetId(excluded));
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
        self.take_up_lookup(requester);
        let frames = waiting.into_frames().collect();
        self.execute_decided(dropped(DropReason::NeighbourReply), frames, 0, now);
        self.send_generated(requester, tag, frame);
    }

    /// Applies an action to pending frames and counts them for these rules.
    fn execute_decided(
        &mut self,
        decided: CachedDecision,
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
        self.execute_pending((decided, rules), frames, now);
    }

    /// Executes an action for frames that waited for it.
    fn execute_pending(
        &mut self,
        decided: (CachedDecision, u16),
        frames: impl IntoIterator<Item = (FlowKey, PendingFrame)>,
        now: u64,
    ) {
        self.meter.begin();
        for (key, mut frame) in frames {
            let from = PortId(key.in_port());
            let _served = crash_record::serve(Some(from));
            self.fabric.serving = frame.pair;
            let (action, class) = match self.resume(&key, &frame, decided, now) {
                Resumption::Decided(decided) => decided,
                Resumption::Changed(ct, connection) => {
                    self.ask_again((key, frame), (ct, connection), now);
                    continue;
                }
            };
            let by_pair = self.fabric.class_of_pair(from, frame.pair);
            let segments = [memory::Segment {
                ptr: frame.payload.as_mut_ptr(),
                len: frame.payload.len() as u32,
                gpa: memory::Segment::PRIVATE,
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
