//! Senders of rejected frames are told so, by the switch itself: the next frame of the flow has no answer of control to wait for.
//!
//! What a sender is told is a frame to it as any other, and costs more than the frame that it sent: so there are only so many a
//! second for each port, from each worker.

use port::{Offload, Payload, Port, PortId};
use wire::SNAPSHOT;
use wire::vlan::{CAP, HeaderBuf, VlanTci};

use crate::fabric::{Fabric, InHand};

/// Frames that tell one port's guest of rejected ones, a second at most. (Linux sends a thousand ICMP messages a second by default, to
/// all; `icmp_msgs_per_sec`, ip-sysctl.)
pub(crate) const PER_SECOND: u32 = 200;
// All of what is told fits into the buffer for headers.
const _: () = assert!(wire::reject::MAX <= CAP && wire::question::MAX <= CAP);
const SECOND: u64 = 1_000_000_000;

/// What of a port's second is used up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    since: u64,
    frames: u32,
}

impl Told {
    /// Whether one more may be told at a time in nanoseconds.
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
    /// Tells the sender of a frame, which came with this tag, that it is rejected.
    #[cold]
    pub(crate) fn refuse(&mut self, tag: VlanTci, frame: &InHand<'_>) {
        let (from, now) = (frame.from, self.now);
        if !self.slot(from).is_some_and(|slot| slot.told.has_room(now)) {
            return;
        }
        let headers = frame.headers.as_slice();
        let whole = headers.len() + frame.payload.len() as usize;
        let (held, end) = (headers.len().min(SNAPSHOT), whole.min(SNAPSHOT));
        let mut bytes = [0; SNAPSHOT];
        bytes[..held].copy_from_slice(&headers[..held]);
        frame.payload.cursor().read(&mut bytes[held..end]);
        // It allocates, as often as this port may be told: not for what has no answer.
        let Some(told) = wire::reject::refusal(&bytes[..end], whole) else {
            return;
        };
        if let Some(slot) = self.slot(from) {
            slot.told.frames += 1;
        }
        self.give_own(from, Some(tag.vid), &told);
    }

    /// Gives a port an untagged frame of our own, which fits into the buffer for headers, as a frame with this tag was answered
    /// that came from there.
    pub(crate) fn give_own(&mut self, to: PortId, tag: Option<u16>, frame: &[u8]) {
        let mut headers = HeaderBuf::default();
        headers.fill(frame.len()).copy_from_slice(frame);
        let own = InHand {
            headers: &mut headers,
            payload: &Payload::empty(),
            offload: Offload::default(),
            from: to,
        };
        let tag = tag.filter(|vid| *vid != 0);
        self.deliver(to, tag, VlanTci::new(0), own);
    }
}
