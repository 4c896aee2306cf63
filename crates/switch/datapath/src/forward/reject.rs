//! The budget of replies to rejected frames (TCP reset, ICMP unreachable), which the switch itself
//! sends: later frames of a flow cause no upcall.
//!
//! A reply is a frame as any other and costs more than the rejected one. Therefore each worker
//! bounds their number per port and second.

use wire::vlan::CAP;

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
    pub(crate) fn has_room(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.since) >= SECOND {
            *self = Self {
                since: now,
                frames: 0,
            };
        }
        self.frames < PER_SECOND
    }

    /// Counts a reply.
    pub(crate) fn note_reply(&mut self) {
        self.frames += 1;
    }
}
