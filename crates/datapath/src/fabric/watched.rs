//! Delivery of frames that somebody wants to see: one by one, by the long way.

use channel::capture::Way;
use policy::Action;
use port::{Batch, DropReason, Outgoing, Port, PortId};
use wire::vlan::HeaderBuf;

use super::tags::strip_tag;
use super::{Fabric, InHand};
use crate::flow_table::LeftOutLists;
use crate::runs::Run;
use crate::watch::{Rest, Shown, Watch};

impl<P: Port> Fabric<P> {
    /// Does to all frames of a batch what their flows say, where somebody looks on.
    #[cold]
    pub(super) fn execute_runs_seen(
        &mut self,
        runs: &[Run],
        batch: &mut Batch,
        from: PortId,
        left_out: &LeftOutLists,
    ) {
        for run in runs {
            match self.is_seen(from, run.action) {
                true => self.execute_seen_run(run, batch, from, left_out),
                false => {
                    let one = std::slice::from_ref(run);
                    self.execute_runs_unseen(one, batch, from, left_out);
                }
            }
        }
    }

    /// Whether somebody wants to see frames of this sender, or of whom they are for.
    fn is_seen(&self, from: PortId, action: Action) -> bool {
        let Some(watch) = &self.watch else {
            return false;
        };
        let receiver_is = match action {
            Action::Unicast { port, .. } => watch.is_of(port, Way::Out, &self.program),
            Action::Drop(_) => false,
            // Those of its receivers that nobody looks at get it by the same way.
            _ => true,
        };
        receiver_is || watch.is_of(from, Way::In, &self.program)
    }

    /// Does to frames what their flow says, and shows them.
    fn execute_seen_run(
        &mut self,
        run: &Run,
        batch: &mut Batch,
        from: PortId,
        left_out: &LeftOutLists,
    ) {
        for index in run.frames.clone() {
            let (headers, payload, offload) = batch.split(index);
            let frame = InHand {
                headers,
                payload: &payload,
                offload: *offload,
                from,
            };
            self.execute_seen(run.action, frame, left_out);
        }
    }

    /// Does to a frame what its flow says, and shows it to those who look at its sender.
    pub(crate) fn execute_seen(
        &mut self,
        action: Action,
        frame: InHand<'_>,
        left_out: &LeftOutLists,
    ) {
        let from = frame.from;
        let of_sender = |watch: &Watch| watch.is_of(from, Way::In, &self.program);
        let seen = self.watch.as_deref().is_some_and(of_sender);
        if !seen {
            return self.execute(action, frame, left_out);
        }
        let (headers, payload, offload) = (frame.headers.clone(), frame.payload, frame.offload);
        self.lost_at_sender = None;
        self.execute(action, frame, left_out);
        let lost = match action {
            Action::Drop(reason) => Some(reason),
            _ => self.lost_at_sender.take(),
        };
        let shown = Shown {
            headers: headers.as_slice(),
            rest: Rest::Leased(payload),
            offload,
        };
        self.show(from, Way::In, shown, lost);
    }

    /// Shows a frame to those who look at the port, and has copies go where a mirror says.
    #[cold]
    pub(crate) fn show(
        &mut self,
        port: PortId,
        way: Way,
        frame: Shown<'_>,
        lost: Option<DropReason>,
    ) {
        if let Some(watch) = &mut self.watch {
            // Each copy is shown once, as its receiver gets it or does not.
            if let Some(mirror) = watch.copying() {
                self.counters.add_copy(mirror, frame.len() as u64, lost);
            }
            watch.show(port, way, frame, lost, &self.program);
        }
        while let Some(to) = self.watch.as_mut().and_then(|watch| watch.begin_copy()) {
            self.copy_to(to, port, frame);
            if let Some(watch) = &mut self.watch {
                watch.end_copy();
            }
        }
    }

    /// Delivers a copy of a frame as it is, tag and all, to where a mirror says.
    fn copy_to(&mut self, to: PortId, from: PortId, frame: Shown<'_>) {
        let mut headers = HeaderBuf::copy_of(frame.headers);
        let mut offload = frame.checked_offload();
        let had_tag = headers.vlan().is_some();
        // It is put on again as any other that a receiver wants.
        let tag = strip_tag(&mut headers, &mut offload);
        frame.rest.with_payload(|payload| {
            let copy = InHand {
                headers: &mut headers,
                payload,
                offload,
                from,
            };
            self.deliver(to, had_tag.then_some(tag.vid), tag, copy);
        });
    }

    /// Counts a frame that its sender or the policy is the cause of losing.
    #[cold]
    pub(super) fn lose_at_sender(&mut self, from: PortId, reason: DropReason) {
        self.count_lost(from, reason, 1);
        self.lost_at_sender = Some(reason);
    }

    /// Counts a frame that its receiver is the cause of losing.
    #[cold]
    pub(super) fn lose_at_receiver(&mut self, to: PortId, reason: DropReason, frame: &InHand<'_>) {
        self.counters.add_drops(to, reason, 1);
        if self.watch.is_some() {
            let out = Outgoing {
                headers: frame.headers.as_slice(),
                payload: frame.payload,
                offload: frame.offload,
            };
            self.show_out(to, &out, Some(reason));
        }
    }

    /// Shows a frame as its receiver was to get it.
    #[cold]
    #[inline(never)]
    pub(super) fn show_out(&mut self, to: PortId, out: &Outgoing<'_>, lost: Option<DropReason>) {
        let shown = Shown {
            headers: out.headers,
            rest: Rest::Leased(out.payload),
            offload: out.offload,
        };
        self.show(to, Way::Out, shown, lost);
    }
}
