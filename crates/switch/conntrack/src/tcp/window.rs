//! Sequence windows: whether a segment can belong to its connection.
//!
//! Van Rooij's four conditions, with the changes of `nf_conntrack` for RFC 9293. For a segment with
//! sequence numbers `seq` to `end` that acknowledges `ack`, its sender S and its receiver R:
//! 1. `seq` is not beyond what R has let S send.
//! 2. `end` is not before the end of S by more than the greatest window of R.
//! 3. `ack`, or the highest edge of a selective acknowledgement, is not beyond the end of R.
//! 4. It is not before the end of R by more than the greatest window of S, or [`ACK_WINDOW`].
//!
//! What fails the first or the third is invalid. What fails the second or the fourth is old, and
//! passes without effect.

use wire::tcp;

use super::Arrival;
use crate::progress::{Flags, Side, TcpState};
use crate::segment::{Kind, after, before};
use crate::{Direction, Invalid};

/// An acknowledgement may be this late at least: bytes of an unscaled window, and some more.
pub(crate) const ACK_WINDOW: u32 = 66_000;

/// The place of a segment.
pub(super) enum Window {
    /// In the window: it may change the state.
    Inside,
    /// A segment of the connection that is late, or that overruns the window a little: its receiver
    /// decides, and nothing else depends on it.
    Passes,
    Invalid(Invalid),
}

/// Checks a segment, and moves the side that it comes from.
#[inline]
pub(super) fn in_window(
    arrival: &Arrival<'_>,
    state: TcpState,
    own: &mut Side,
    other: &Side,
) -> Window {
    let segment = arrival.segment;
    let (mut seq, mut end) = (segment.seq, segment.end());
    let (mut ack, mut sack) = (segment.ack, segment.ack);
    if other.flags.contains(Flags::SACK) {
        sack = segment.sack;
    }
    if own.window == 0 || segment.has(tcp::SYN) {
        begin(arrival, state, own, other);
    }
    let reset = arrival.kind == Kind::Rst;
    // Some stacks set the flag in a reset that acknowledges nothing.
    if !segment.has(tcp::ACK) || reset && ack == 0 {
        ack = own.end_of(other);
        sack = ack;
    }
    if reset && seq == 0 && state == TcpState::SynSent {
        // It refuses a SYN: its sender has no sequence number yet.
        (seq, end) = (own.end, own.end);
    }
    let liberal = arrival.liberal || own.flags.contains(Flags::LIBERAL);
    // The SYN of a simultaneous open says nothing about the other side.
    let lone = arrival.kind == Kind::Syn && arrival.direction == Direction::Reply;
    match check(own, other, [seq, end, sack]) {
        Ok(()) if lone => {}
        Ok(()) => advance(arrival, own, other, [end, ack, sack]),
        Err(_) if liberal => {}
        Err(place) => return place,
    }
    if arrival.kind == Kind::Ack {
        own.flags.set(Flags::OPEN, segment.window != 0);
    }
    Window::Inside
}

/// Starts a side with its first segment, or with a SYN that is later than its first one.
fn begin(arrival: &Arrival<'_>, state: TcpState, own: &mut Side, other: &Side) {
    let segment = arrival.segment;
    let first = own.window == 0;
    if first && !segment.has(tcp::SYN) {
        own.begin_within(segment);
        if segment.has(tcp::ACK) && segment.ack == other.end.wrapping_add(1) {
            // Probably the answer to a probe, which repeats the last byte (RFC 9293, 3.8.4).
            own.max_ack = segment.ack;
            own.flags |= Flags::ACKED;
        }
        return;
    }
    let opening = matches!(state, TcpState::SynSent | TcpState::SynRecv);
    if first || opening && after(segment.end(), own.end) {
        own.begin(segment);
    }
}

/// The four conditions.
#[inline]
fn check(own: &mut Side, other: &Side, numbers: [u32; 3]) -> Result<(), Window> {
    let [seq, end, sack] = numbers;
    let limit = own.limit(other);
    let other_end = own.end_of(other);
    let own_window = own.greatest_window(other);
    let other_window = other.greatest_window(own);
    let late_ack = {
        let most = own_window.max(ACK_WINDOW);
        !after(sack, other_end.wrapping_sub(most).wrapping_sub(1))
    };
    let recent = after(end, own.end.wrapping_sub(other_window).wrapping_sub(1));
    let early_ack = after(sack, other_end);
    if after(seq, limit) {
        let overrun = end.wrapping_sub(limit).wrapping_add(1);
        let legal = other_window != 0 && recent && overrun <= other_window;
        if !legal || late_ack || early_ack {
            return Err(Window::Invalid(Invalid::Sequence));
        }
        // A sender that counts on a window which the other side has not announced here. Its bytes
        // will be acknowledged if they are taken.
        if after(end, own.end) {
            own.end = end;
        }
        own.flags |= Flags::SENT;
        return Err(Window::Passes);
    }
    if early_ack {
        return Err(Window::Invalid(Invalid::Acknowledgement));
    }
    if other_window != 0 && !recent || late_ack {
        return Err(Window::Passes);
    }
    Ok(())
}

/// Moves the side of a segment that is in the window.
#[inline]
fn advance(arrival: &Arrival<'_>, own: &mut Side, other: &Side, numbers: [u32; 3]) {
    let segment = arrival.segment;
    let [end, ack, sack] = numbers;
    let mut window = u32::from(segment.window);
    if !segment.has(tcp::SYN) {
        window <<= own.scale(other);
    }
    let (limit, other_limit) = (own.limit(other), other.limit(own));
    let other_window = other.greatest_window(own);
    own.window = own.window.max(window.wrapping_add(sack.wrapping_sub(ack)));
    // Bytes beyond the limit were taken into account, once.
    let known = if after(own.end, limit) {
        own.end
    } else {
        limit
    };
    if other_window != 0 && after(end, known) {
        own.raised = other_window.wrapping_add(end.wrapping_sub(known));
    }
    if after(end, own.end) {
        own.end = end;
        own.flags |= Flags::SENT;
    }
    let acknowledges = segment.has(tcp::ACK);
    if acknowledges && (!own.flags.contains(Flags::ACKED) || after(ack, own.max_ack)) {
        own.max_ack = ack;
        own.flags |= Flags::ACKED;
    }
    let allowed = sack.wrapping_add(window);
    if acknowledges && other.window != 0 && !before(allowed, other_limit) {
        // A window of zero is probed with one byte.
        own.allowed = allowed.wrapping_add(u32::from(window == 0));
        own.flags |= Flags::ALLOWED;
    }
    if ack == own.end_of(other) {
        own.all_acked = other.end;
    }
    if arrival.kind == Kind::Ack {
        own.last_end = end;
        own.last_ack = ack;
    }
}
