//! Protocols with frames that are judged by nothing but their tuple.
//!
//! ```text
//! UDP      new --> sent --answer--> answered --a frame after two seconds--> stream
//!                  udp              udp                                     udp_stream
//! queries  new --> asked --answer--> answered
//!                  icmp, icmpv6
//! others   new --> sent --answer--> answered
//!                  generic
//! ```
//! Below the states stand their timeouts. Sources: RFC 4787 for UDP, which wants longer timeouts
//! for flows of several frames; RFC 792 and RFC 4443 for queries.

use crate::Direction;
use crate::machine::{Outcome, Step};
use crate::progress::{Progress, Side};
use crate::timeouts::Millis;

/// A UDP flow that lasts for longer is more than a question and its answer.
pub(crate) const STREAM_AFTER: Millis = 2000;

/// Judges a frame. `age` is that of the connection; only `streams` become more than answered.
#[inline]
pub(crate) fn judge(
    streams: bool,
    direction: Direction,
    progress: Progress,
    own: &Side,
    (now, age): (Millis, Millis),
) -> Step {
    let mut progress = progress;
    if streams && progress.is_replied() && age > STREAM_AFTER {
        progress = progress.with(Progress::ASSURED);
    }
    if direction == Direction::Reply {
        progress = progress.with(Progress::REPLIED);
    }
    Step {
        progress,
        own: Side { used: now, ..*own },
        outcome: Outcome::Known,
    }
}
