//! Delivery of tapped frames, one by one.

use ipc::capture::Way;
use policy::Action;
use port::{DropReason, PortId};
use wire::vlan::HeaderBuf;

use super::{Fabric, FrameInTransit, strip_tag};
use crate::forward::flow_batch::ActionBatch;
use crate::forward::tap::{TapPayload, TappedFrame, Taps};
use crate::ports::batch::Batch;
use crate::ports::payload::Outgoing;
use crate::ports::port::Port;
use flow_table::{Class, ExcludeSets};

impl<P: Port> Fabric<P> {
    /// Executes the actions of all frames of a batch, with taps.
    #[cold]
    pub(super) fn forward_tapped(
        &mut self,
        groups: &[ActionBatch],
        batch: &mut Batch,
        from: PortId,
        excluded: &ExcludeSets,
    ) {
        for group in groups {
            if self.is_tapped(from, group.action) {
                self.forward_tapped_batch(group, batch, from, excluded);
            } else {
                let one = std::slice::from_ref(group);
                self.forward_untapped(one, batch, from, excluded);
            }
        }
    }

    /// Returns whether a tap covers frames of this sender or of its receivers.
    fn is_tapped(&self, from: PortId, action: Action) -> bool {
        let Some(taps) = &self.taps else {
            return false;
        };
        let receiver_is = match action {
            Action::Unicast { port, .. } => taps.covers(port, Way::Out, &self.program),
            Action::Drop(_) => false,
            // Receivers without a tap take the same path.
            _ => true,
        };
        receiver_is || taps.covers(from, Way::In, &self.program)
    }

    /// Executes the action of tapped frames and emits them.
    fn forward_tapped_batch(
        &mut self,
        group: &ActionBatch,
        batch: &mut Batch,
        from: PortId,
        excluded: &ExcludeSets,
    ) {
        for index in group.frames.clone() {
            let (headers, payload, offload) = batch.split(index);
            let frame = FrameInTransit {
                headers,
                payload: &payload,
                offload: *offload,
                from,
                class: group.class(),
            };
            self.execute_tapped(group.action, frame, excluded);
        }
    }

    /// Executes the action of a frame and emits it to the taps of its sender.
    pub(crate) fn execute_tapped(
        &mut self,
        action: Action,
        frame: FrameInTransit<'_>,
        excluded: &ExcludeSets,
    ) {
        let from = frame.from;
        let of_sender = |taps: &Taps| taps.covers(from, Way::In, &self.program);
        let seen = self.taps.as_deref().is_some_and(of_sender);
        if !seen {
            return self.execute(action, frame, excluded);
        }
        let (headers, payload, offload) = (frame.headers.clone(), frame.payload, frame.offload);
        self.in_progress.dropped_at_sender = None;
        self.execute(action, frame, excluded);
        let lost = match action {
            Action::Drop(reason) => Some(reason),
            _ => self.in_progress.dropped_at_sender.take(),
        };
        let shown = TappedFrame {
            headers: headers.as_slice(),
            rest: TapPayload::Leased(payload),
            offload,
        };
        self.emit(from, Way::In, shown, lost);
    }

    /// Emits a frame to the taps of the port and delivers the copies of mirrors.
    #[cold]
    pub(crate) fn emit(
        &mut self,
        port: PortId,
        way: Way,
        frame: TappedFrame<'_>,
        lost: Option<DropReason>,
    ) {
        if let Some(taps) = &mut self.taps {
            // Each copy is emitted once, as delivered or dropped at its receiver.
            if let Some(mirror) = taps.copying() {
                self.counters.add_copy(mirror, frame.len() as u64, lost);
            }
            taps.emit(port, way, frame, lost, &self.program);
        }
        while let Some(to) = self.taps.as_mut().and_then(|taps| taps.begin_copy()) {
            self.copy_to(to, port, frame);
            if let Some(taps) = &mut self.taps {
                taps.end_copy();
            }
        }
    }

    /// Delivers an unchanged copy of a frame, with its tag, to the port of a mirror.
    fn copy_to(&mut self, to: PortId, from: PortId, frame: TappedFrame<'_>) {
        let mut headers = HeaderBuf::copy_of(frame.headers);
        let mut offload = frame.checked_offload();
        let had_tag = headers.vlan().is_some();
        // The tag is pushed again as an egress tag.
        let tag = strip_tag(&mut headers, &mut offload);
        frame.rest.with_payload(|payload| {
            let copy = FrameInTransit {
                headers: &mut headers,
                payload,
                offload,
                from,
                class: Class::default(),
            };
            let prepaid = std::mem::take(&mut self.prepaid);
            self.deliver(to, had_tag.then_some(tag.vid), tag, copy);
            self.prepaid = prepaid;
        });
    }

    /// Counts a frame that is dropped because of its sender or the policy.
    #[cold]
    pub(super) fn drop_at_sender(&mut self, from: PortId, reason: DropReason) {
        self.count_drop(from, reason, 1);
        self.in_progress.dropped_at_sender = Some(reason);
    }

    /// Counts a frame that is dropped because of its receiver.
    #[cold]
    pub(super) fn drop_at_receiver(
        &mut self,
        to: PortId,
        reason: DropReason,
        frame: &FrameInTransit<'_>,
    ) {
        self.counters.add_drops(to, reason, 1);
        if self.taps.is_some() {
            let out = Outgoing {
                headers: frame.headers.as_slice(),
                payload: frame.payload,
                offload: frame.offload,
            };
            self.emit_out(to, &out, Some(reason));
        }
    }

    /// Emits a frame as its receiver gets it.
    #[cold]
    #[inline(never)]
    pub(super) fn emit_out(&mut self, to: PortId, out: &Outgoing<'_>, lost: Option<DropReason>) {
        let shown = TappedFrame {
            headers: out.headers,
            rest: TapPayload::Leased(out.payload),
            offload: out.offload,
        };
        self.emit(to, Way::Out, shown, lost);
    }
}
