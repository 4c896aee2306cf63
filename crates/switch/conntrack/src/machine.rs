//! One connection and one frame: what the frame is to it, and what it makes of it.
//!
//! Pure functions: the caller reads words, and stores those that come back. `judge` may run twice
//! for one frame, as for a retransmission, with the result of once.

use crate::packet::Message;
use crate::progress::{Progress, Side};
use crate::timeouts::{Millis, Settings, Timeout};
use crate::{Direction, Invalid, datagram, tcp};

/// The judgement of a frame of a known connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It belongs to the connection.
    Known,
    /// It belongs to the connection, and refuses it: the caller forgets the connection when the
    /// frame leaves.
    Refused,
    /// It opens a new connection between the same ends, in place of this one.
    Reopens,
    /// It cannot belong to the connection.
    Invalid(Invalid),
}

/// The connection after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The word of both directions; unchanged but for a few frames.
    pub progress: Progress,
    /// The side that the frame comes from.
    pub own: Side,
    /// The judgement.
    pub outcome: Outcome,
}

/// The connection of a frame, without its sides.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The direction of the frame.
    pub direction: Direction,
    /// The word of both directions.
    pub progress: Progress,
    /// When it was committed.
    pub created: Millis,
}

/// A new connection by this frame: its word, and its sides, the original one first.
///
/// # Errors
/// The frame opens none.
#[inline]
pub fn open(
    message: &Message,
    now: Millis,
    settings: &Settings,
) -> Result<(Progress, [Side; 2]), Invalid> {
    match message {
        Message::Tcp(segment) => tcp::open(segment, now, settings),
        Message::Answer => Err(Invalid::NoConnection),
        Message::Error => Err(Invalid::Unrelated),
        Message::Udp | Message::Request | Message::Other => {
            Ok((Progress::default(), [Side::new(now); 2]))
        }
    }
}

/// Judges a frame of a known connection. `own` is the side that it comes from.
#[inline]
#[must_use]
pub fn judge(
    message: &Message,
    known: Context,
    (own, other): (&Side, &Side),
    now: Millis,
    settings: &Settings,
) -> Step {
    let Context {
        direction,
        progress,
        created,
    } = known;
    match message {
        Message::Tcp(segment) => {
            tcp::judge(segment, direction, progress, (own, other), now, settings)
        }
        // It says something about the connection, and is no part of it.
        Message::Error => Step {
            progress,
            own: *own,
            outcome: Outcome::Known,
        },
        Message::Udp | Message::Request | Message::Answer | Message::Other => {
            let streams = matches!(message, Message::Udp);
            let age = now.wrapping_sub(created);
            datagram::judge(streams, direction, progress, own, (now, age))
        }
    }
}

/// Milliseconds until a connection expires; `None` when it has. `protocol` is its tuple's, `v6` the
/// version of its addresses.
#[must_use]
pub fn remaining(
    (protocol, v6): (u8, bool),
    progress: Progress,
    sides: [&Side; 2],
    now: Millis,
    settings: &Settings,
) -> Option<Millis> {
    // Another thread's clock may be a little ahead.
    let ages = sides.map(|side| (now.wrapping_sub(side.used) as i32).max(0) as Millis);
    let age = ages[0].min(ages[1]);
    let timeout = match protocol {
        wire::tcp::PROTOCOL => {
            let both = ages[0] == ages[1];
            let recent = match ages[0] < ages[1] {
                _ if both => &sides[..],
                true => &sides[..1],
                false => &sides[1..],
            };
            tcp::timeout(progress, sides, recent, settings)
        }
        _ => timeout_without_windows((protocol, v6), progress, settings),
    };
    timeout.checked_sub(age).filter(|left| *left > 0)
}

/// The timeout of a connection of another protocol than TCP.
#[inline]
pub(crate) fn timeout_without_windows(
    (protocol, v6): (u8, bool),
    progress: Progress,
    settings: &Settings,
) -> Millis {
    settings.timeouts.get(match protocol {
        wire::udp::PROTOCOL if progress.is_assured() => Timeout::UdpStream,
        wire::udp::PROTOCOL => Timeout::Udp,
        wire::icmp::PROTOCOL_V4 if !v6 => Timeout::Icmp,
        wire::icmp::PROTOCOL_V6 if v6 => Timeout::Icmpv6,
        _ => Timeout::Generic,
    })
}
