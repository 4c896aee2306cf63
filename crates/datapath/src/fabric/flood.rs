//! Delivery of a frame to all members of a segment.

use policy::SegmentId;
use port::{DropReason, Port, PortId};
use wire::vlan::VlanTci;

use super::{Fabric, FrameInTransit};

impl<P: Port> Fabric<P> {
    /// Delivers a frame to all members of its segment except the excluded ones. The payload
    /// checksums of a TSO frame are computed once for all receivers.
    #[inline(never)]
    pub(super) fn flood(
        &mut self,
        segment: SegmentId,
        excluded: &[PortId],
        priority: VlanTci,
        frame: FrameInTransit<'_>,
    ) {
        if self.exceeds_storm_limit(&frame) {
            self.drop_at_sender(frame.from, DropReason::StormControl);
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
            if excluded.binary_search(&member.port).is_ok() {
                self.drop_at_receiver(member.port, DropReason::AclExcluded, &frame);
                continue;
            }
            receivers += 1;
            let again = FrameInTransit {
                headers: &mut *frame.headers,
                ..frame
            };
            self.deliver(member.port, member.tag, priority, again);
        }
        if is_cut {
            self.fitter.keep_sums(false);
        }
        if receivers == 0 {
            self.drop_at_sender(frame.from, DropReason::NoReceiver);
        }
    }
}
