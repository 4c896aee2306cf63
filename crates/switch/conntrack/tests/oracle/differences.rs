//! The intended differences between our tracker and the kernel's.
//!
//! These are not met here, or not by these settings: established TCP is kept for 24 hours, not for
//! five days; there is no shorter timeout after three retransmissions, and no reassembly of
//! fragments; checksums are checked of segments that open or close; SCTP, DCCP, UDP-Lite and GRE
//! are tracked by addresses; there are no helpers; group addresses and redirects of neighbour
//! discovery are not tracked; a connection belongs to its ports; and what is known to the kernel
//! and not answered yet is new, here established, since rules have let it in.
//!
//! After one of the others a trace is about two connections that differ, so it ends there.
//!
//! * [`RESET`]: the kernel closes a connection in FIN_WAIT, CLOSE_WAIT, LAST_ACK, TIME_WAIT and
//!   CLOSE by any reset, whatever its sequence number is. A half-closed connection may still
//!   carry data for hours, so that one that is not exact must not end it. It passes, without
//!   effect.
//! * [`NO_ACK`]: before there is a connection, the kernel takes a reset that acknowledges nothing
//!   for the answer to nothing, whatever its sequence number is. And the acknowledgement number
//!   of a reset without the flag counts, also as the answer to a SYN, and so does its window.
//! * [`FIN`]: the kernel takes a FIN that is sent again for that of the other side. A segment
//!   that is judged twice must be judged alike.
//! * [`OVERRUN`]: a sender that overruns the window is known to the kernel by its last segment,
//!   not by its highest: an acknowledgement of all is invalid after a retransmission. And here
//!   its bytes count as not acknowledged at once, there with the next segment.
//! * [`RAISED`]: each time that a segment goes beyond the window, the kernel counts its bytes
//!   once more. Here they count once.
//! * [`OPENED_TWICE`]: a second SYN of the reply side lets the original side send, to the kernel;
//!   here it has the effect of the first one.
//! * [`POISONED`]: of an invalid segment the kernel takes the first sequence number of a side, so
//!   that an answer to a SYN with a wrong acknowledgement excludes the right one. Here an invalid
//!   segment changes nothing.
//! * [`PROBED`]: if the first segment of a side that is met in its middle acknowledges one byte
//!   too much selectively, the kernel counts that byte as sent, as it does for the answer to a
//!   probe. Here it must be an acknowledgement.
//! * [`DOUBTED`]: the kernel shortens the timeout when both sides have sent an invalid FIN or
//!   reset. Here an invalid segment changes nothing.
//! * [`QUOTE`]: the kernel takes addresses and ports of a quoted packet from where they should
//!   be, whatever its version, lengths and type of header say. Here the quoted headers must be
//!   right.
//! * [`FOLLOWS`]: the kernel takes a reset right after the last segment of its sender for exact,
//!   if the other side has sent nothing since. Here also if it has: the threads that serve both
//!   directions write no common word for each segment.
//! * [`RESTARTED`]: a SYN/ACK of the original side with another sequence number than its SYN has
//!   the kernel start that side anew, and scale its windows also if the other side does not scale
//!   (RFC 7323, 2.2 wants both). Here it is invalid. A SYN with another sequence number and without
//!   options leaves those of the first one in effect, here it does not.
//! * [`CHALLENGED`]: in LAST_ACK the kernel takes the first acknowledgement after a SYN for a
//!   challenge, and the second one for that of the FIN. Here both are judged alike.
//! * [`NOTED`]: after a reset that is not exact a connection has ten seconds, to the kernel until
//!   the next segment in the window. Here also a SYN within the connection ends that.
//! * [`PICKED_UP`]: in a connection that was met in its middle, the kernel does not see the
//!   window of a segment that is in none, so that the last one before counts for the timeout, and
//!   for a reset after the last bytes.

use conntrack::progress::place;
use conntrack::{Invalid, Progress, Side, TcpState};

use crate::frames::{ACK, FIN as FIN_FLAG, PSH, RST, SYN};
use crate::walk::Packet;

/// A reset outside of the window, in a closing state.
pub(crate) const RESET: &str = "a wrong reset in a closing state";
/// A reset that acknowledges nothing.
pub(crate) const NO_ACK: &str = "a reset that acknowledges nothing";
/// A second FIN of the same side.
pub(crate) const FIN: &str = "a FIN once more";
/// An acknowledgement of bytes that were sent beyond the window.
pub(crate) const OVERRUN: &str = "bytes beyond the window";

/// More bytes beyond the window.
pub(crate) const RAISED: &str = "bytes beyond the window once more";
/// A second SYN in a simultaneous open.
pub(crate) const OPENED_TWICE: &str = "a second SYN of the reply side";
/// An invalid segment in a connection that is being opened.
pub(crate) const POISONED: &str = "an invalid segment before the first one";
/// A selective acknowledgement of one byte too much.
pub(crate) const PROBED: &str = "one byte too much in a selective acknowledgement";
/// Invalid ends of both sides.
pub(crate) const DOUBTED: &str = "invalid FIN or reset";
/// Quoted headers that contradict themselves.
pub(crate) const QUOTE: &str = "damaged headers in a quote";

/// A reset after the last bytes of its sender.
pub(crate) const FOLLOWS: &str = "a reset after the last bytes";
/// A SYN/ACK of the original side.
pub(crate) const RESTARTED: &str = "another SYN/ACK of the original side";

/// A second challenge.
pub(crate) const CHALLENGED: &str = "a second challenge in LAST_ACK";
/// A segment that is noted after a reset.
pub(crate) const NOTED: &str = "a SYN after a reset";
/// Windows of a connection that was met in its middle.
pub(crate) const PICKED_UP: &str = "the last window after a pick-up";

/// The events of a trace that a later difference may come from.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// A segment passed without effect, beyond the window perhaps.
    passed: bool,
    /// A segment passed that was beyond the window.
    overran: bool,
    /// A selective acknowledgement of one byte too much, in the first segment of a side.
    probed: bool,
    /// A segment went beyond the window.
    raised: bool,
    /// An invalid segment of a side that is not known yet.
    poisoned: bool,
    /// An invalid FIN or reset.
    doubted: bool,
    /// A SYN/ACK of the original side, or a SYN without options.
    restarted: bool,
    /// A second SYN of the reply side.
    opened_twice: bool,
    /// A reset that acknowledges nothing.
    unacknowledged: bool,
    /// An acknowledgement passed in LAST_ACK.
    challenged: bool,
    /// The last segment in the window was a reset.
    reset: bool,
    /// After that one was noted.
    noted: bool,
    /// Windows are not known.
    liberal: bool,
    /// A reset of such a connection.
    liberal_reset: bool,
    /// Whether the last segment that was accepted came from the original side.
    from_original: bool,
}

/// A packet, and our connection before and after it.
#[derive(Clone, Copy)]
pub(crate) struct Observation<'a> {
    pub(crate) packet: &'a Packet,
    pub(crate) before: Option<Connection>,
    pub(crate) after: Option<Connection>,
    /// Ours and the kernel's.
    pub(crate) verdicts: (&'a str, &'a str),
    pub(crate) why: Option<Invalid>,
}

type Connection = (Progress, [Side; 2]);

/// When each side was last used.
fn used(connection: &Connection) -> [u32; 2] {
    connection.1.map(|side| side.used)
}

impl Differences {
    /// The difference that this packet makes.
    pub(crate) fn of(&mut self, seen: &Observation<'_>) -> Option<&'static str> {
        let (ours, kernels) = seen.verdicts;
        if seen.why == Some(Invalid::Quote) && kernels.starts_with("related") {
            return Some(QUOTE);
        }
        let (Some(before), Some(after)) = (seen.before, seen.after) else {
            return (ours != kernels).then(|| self.later(seen)).flatten();
        };
        let known = seen.why.is_none();
        let (old, new) = (before.0.tcp(), after.0.tcp());
        let flags = seen.packet.flags;
        let opening = matches!(old, TcpState::SynSent | TcpState::SynSent2);
        let nothing = flags & ACK == 0 || seen.packet.ack == 0;
        if flags & RST != 0 && opening && nothing && before.0.is_replied() && new != TcpState::Close
        {
            return Some(NO_ACK);
        }
        let closed = matches!(old, TcpState::FinWait | TcpState::CloseWait);
        let closing = closed
            || matches!(
                old,
                TcpState::LastAck | TcpState::TimeWait | TcpState::Close
            );
        if flags & RST != 0 && closing && known && used(&before) == used(&after) {
            return Some(RESET);
        }
        if flags & (FIN_FLAG | RST) == FIN_FLAG && closed && known && old == new {
            return Some(FIN);
        }
        if ours != kernels {
            return self.later(seen);
        }
        let original = ours != "reply";
        let established = old == TcpState::Established && before.0.is_assured();
        if flags & RST != 0 && established && new == TcpState::Close {
            // Where the other side expects it, and the end of the last
            // acknowledgement of its sender.
            let (own, other) = (usize::from(!original), usize::from(original));
            let exact = before.1[other].words()[place::MAX_ACK] == seen.packet.seq;
            let last = before.1[own].words()[place::LAST_END] == seen.packet.seq;
            if !(exact || last && self.from_original == original) {
                return Some(FOLLOWS);
            }
        }
        if flags != 0 && known && before != after {
            self.from_original = original;
        }
        if flags != 0 {
            self.note(seen, before, after);
        }
        None
    }

    /// The difference that a disagreement comes from.
    fn later(&self, seen: &Observation<'_>) -> Option<&'static str> {
        let syn_ack = seen.packet.flags & (SYN | ACK) == SYN | ACK;
        let opening = seen
            .before
            .is_some_and(|(progress, _)| progress.tcp() == TcpState::SynRecv);
        if syn_ack && opening && seen.why == Some(Invalid::Sequence) {
            return Some(RESTARTED);
        }
        let unflagged = seen.packet.flags & (RST | ACK) == RST && seen.packet.ack != 0;
        if unflagged {
            return Some(NO_ACK);
        }
        if self.overran || self.passed && seen.verdicts.1 == "invalid" {
            return Some(OVERRUN);
        }
        if self.probed {
            return Some(PROBED);
        }
        if self.raised && seen.why == Some(Invalid::Sequence) {
            return Some(RAISED);
        }
        if self.challenged {
            return Some(CHALLENGED);
        }
        if self.liberal_reset {
            return Some(PICKED_UP);
        }
        if self.opened_twice {
            return Some(OPENED_TWICE);
        }
        if self.restarted {
            return Some(RESTARTED);
        }
        let window = matches!(seen.why, Some(Invalid::Sequence | Invalid::Acknowledgement));
        if self.unacknowledged && window {
            return Some(NO_ACK);
        }
        if self.doubted {
            return Some(DOUBTED);
        }
        self.poisoned.then_some(POISONED)
    }

    /// The difference that other entries come from.
    pub(crate) fn of_entries(&self) -> Option<&'static str> {
        if self.liberal {
            return Some(PICKED_UP);
        }
        if self.challenged {
            return Some(CHALLENGED);
        }
        if self.noted {
            return Some(NOTED);
        }
        if self.overran {
            return Some(OVERRUN);
        }
        if self.doubted {
            return Some(DOUBTED);
        }
        self.poisoned.then_some(POISONED)
    }

    fn note(&mut self, seen: &Observation<'_>, before: Connection, after: Connection) {
        let known = seen.why.is_none();
        let passed = known && used(&before) == used(&after);
        if known && !passed {
            self.reset = seen.packet.flags & RST != 0;
        }
        let last_ack = before.0.tcp() == TcpState::LastAck;
        self.challenged |= passed && last_ack && seen.packet.flags & !PSH == ACK;
        self.noted |= self.reset && passed && before.0 != after.0;
        self.passed |= passed;
        // A side's first segment has a window.
        let unknown = |connection: &Connection| {
            connection
                .1
                .iter()
                .any(|side| side.words()[place::WINDOW] == 0)
        };
        self.probed |= unknown(&before) && seen.packet.selective;
        let ends = |connection: &Connection| connection.1.map(|side| side.words()[place::END]);
        self.overran |= passed && ends(&before) != ends(&after);
        let raised = |side: &Side| side.words()[place::RAISED] != 0;
        self.raised |= after.1.iter().any(raised);
        let flags = after
            .1
            .map(|side| side.words()[place::SMALL] >> place::FLAGS);
        self.liberal |= flags.iter().any(|flags| flags & 4 != 0);
        self.liberal_reset |= self.liberal && known && seen.packet.flags & RST != 0;
        let syn_ack = seen.packet.flags & (SYN | ACK) == SYN | ACK;
        let syn = seen.packet.flags & (SYN | ACK | RST) == SYN;
        self.restarted |= known && syn_ack && seen.verdicts.0 == "original";
        let both_open = before.0.tcp() == TcpState::SynSent2;
        self.opened_twice |= known && syn && both_open && seen.verdicts.0 == "reply";
        self.restarted |= known && syn && !seen.packet.options;
        let nothing = seen.packet.flags & ACK == 0 || seen.packet.ack == 0;
        self.unacknowledged |= known && seen.packet.flags & RST != 0 && nothing;
        let opening = matches!(before.0.tcp(), TcpState::SynSent | TcpState::SynRecv);
        let window = matches!(seen.why, Some(Invalid::Sequence | Invalid::Acknowledgement));
        self.poisoned |= window && (opening || unknown(&before));
        let ends = seen.packet.flags & (FIN_FLAG | RST) != 0;
        self.doubted |= !known && ends && before.0.is_assured();
    }
}
