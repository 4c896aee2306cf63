//! Frames for many.

use policy::SegmentId;
use port::{DropReason, Port, PortId};
use wire::vlan::VlanTci;

use super::{Fabric, InHand};

impl<P: Port> Fabric<P> {
    /// Gives a frame to all of its segment but who is left out. Such a frame that has to be cut is summed up once for all of them.
    #[inline(never)]
    pub(super) fn flood(
        &mut self,
        segment: SegmentId,
        left_out: &[PortId],
        priority: VlanTci,
        frame: InHand<'_>,
    ) {
        if self.is_storm(&frame) {
            self.lose_at_sender(frame.from, DropReason::Storm);
            return;
        }
        let is_cut = frame.offload.gso.is_some();
        if is_cut {
            self.fitter.keep_sums(true);
        }
        let members = self.program.members(segment).len();
        let mut receivers = 0;
        for at in 0..members {
            let member = self.program.members(segment)[at];
            if member.port == frame.from {
                continue;
            }
            if left_out.binary_search(&member.port).is_ok() {
                self.lose_at_receiver(member.port, DropReason::LeftOut, &frame);
                continue;
            }
            receivers += 1;
            let again = InHand {
                headers: &mut *frame.headers,
                ..frame
            };
            self.deliver(member.port, member.tag, priority, again);
        }
        if is_cut {
            self.fitter.keep_sums(false);
        }
        if receivers == 0 {
            self.lose_at_sender(frame.from, DropReason::NoReceiver);
        }
    }
}
