//! Replies to rejected frames (TCP reset, ICMP unreachable), sent by the switch itself: later
//! frames of a flow cause no upcall.
//!
//! A reply is a frame as any other and costs more than the rejected one. Therefore each worker
//! bounds their number per port and second.

use port::{Offload, Payload, Port, PortId};
use wire::SNAPSHOT;
use wire::vlan::{CAP, HeaderBuf, VlanTci};

use crate::fabric::{Fabric, FrameInTransit};

/// Replies to rejected frames of one port at most, per second. (Linux sends at most a thousand ICMP
/// messages a second by default; `icmp_msgs_per_sec`, ip-sysctl.)
pub(crate) const PER_SECOND: u32 = 200;
// All generated frames fit into the header buffer.
const _: () = assert!(policy::reject::MAX <= CAP && policy::neighbour_request::MAX <= CAP);
const SECOND: u64 = 1_000_000_000;

/// Replies of a port in the current second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RejectBudget {
    since: u64,
    frames: u32,
}

impl RejectBudget {
    /// Returns whether a reply may be sent at `now`, in nanoseconds.
    fn has_room(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.since) >= SECOND {
            *self = Self {
                since: now,
                frames: 0,
            };
        }
        self.frames < PER_SECOND
    }
}

impl<P: Port> Fabric<P> {
    /// Sends the reply to a rejected frame, which came with this tag.
    #[cold]
    pub(crate) fn reject(&mut self, tag: VlanTci, frame: &FrameInTransit<'_>) {
        let (from, now) = (frame.from, self.now);
        if !self
            .slot(from)
            .is_some_and(|slot| slot.rejects.has_room(now))
        {
            return;
        }
        let headers = frame.headers.as_slice();
        let whole = headers.len() + frame.payload.len() as usize;
        let (held, end) = (headers.len().min(SNAPSHOT), whole.min(SNAPSHOT));
        let mut bytes = [0; SNAPSHOT];
        bytes[..held].copy_from_slice(&headers[..held]);
        frame.payload.cursor().read(&mut bytes[held..end]);
        // The reply is allocated, as often as the budget permits: checked before.
        let Some(reply) = policy::reject::refusal(&bytes[..end], whole) else {
            return;
        };
        if let Some(slot) = self.slot(from) {
            slot.rejects.frames += 1;
        }
        self.deliver_generated(from, Some(tag.vid), &reply);
    }

    /// Delivers an untagged frame that the switch generated, at most as long as the header buffer,
    /// in reply to a frame of this port with this tag.
    pub(crate) fn deliver_generated(&mut self, to: PortId, tag: Option<u16>, frame: &[u8]) {
        let mut headers = HeaderBuf::default();
        headers.fill(frame.len()).copy_from_slice(frame);
        let own = FrameInTransit {
            headers: &mut headers,
            payload: &Payload::empty(),
            offload: Offload::default(),
            from: to,
        };
        let tag = tag.filter(|vid| *vid != 0);
        self.deliver(to, tag, VlanTci::new(0), own);
    }
}
