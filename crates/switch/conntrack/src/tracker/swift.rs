//! The short way of most frames: those of connections that stand. They change nothing but the side
//! that they come from.
//!
//! It does what [`Tracking::judge`] does, without a look at what such a frame cannot change; or it
//! declines, and has changed nothing. Random frames compare the two, in the tests.

use wire::flow::{Ct, CtState};

use crate::Direction;
use crate::datagram::STREAM_AFTER;
use crate::judgement::{Ingress, Port};
use crate::progress::{Flags, Progress, Side, place};
use crate::segment::{Brief, after, before};
use crate::table::content::Content;
use crate::table::entry::SideLine;
use crate::table::links::EntryRef;
use crate::timeouts::Millis;
use crate::tuple::Tuple;

use super::{Place, Probe, Tracking};

/// A connection that stands, and the direction of consecutive frames. Valid until its batch ends.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    found: EntryRef<'a>,
    far: Port,
    mark: u8,
    protocol: Protocol,
    clock: Clock,
}

/// The protocol of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// TCP in the state that acknowledgements leave as it is.
    Tcp,
    /// UDP that was answered, and either is a stream or is not old enough for that.
    Udp,
}

/// The time of a batch, and the shortest timeout.
#[derive(Clone, Copy, Debug)]
struct Clock {
    now: Millis,
    shortest: Millis,
}

impl Clock {
    /// Returns whether a connection with a frame at this time is not over, whatever its state.
    #[inline(always)]
    const fn is_fresh(self, used: Millis) -> bool {
        self.now.wrapping_sub(used) < self.shortest
    }
}

impl<'a> Run<'a> {
    /// Begins a run of frames of one tuple from one port; `None` when its connection is not known,
    /// or does not stand.
    #[inline(always)]
    #[must_use]
    pub fn begin(
        session: &Tracking<'a>,
        (tuple, probe): (&Tuple, Probe),
        from: Ingress,
        epoch: u16,
    ) -> Option<Self> {
        if probe.word.is_free() {
            return None;
        }
        let batch = &session.batch;
        let found = batch.shared.links.check(probe.word, tuple)?;
        let (ends, content) = (found.ends(), Content::of(found.life));
        let far = ends.beyond(found.direction, from.port)?;
        if found.life.is_second() || content.epoch() != epoch || !batch.is_of_zone(found.entry) {
            return None;
        }
        Some(Run {
            found,
            far,
            mark: ends.mark() as u8,
            protocol: protocol_of(session, tuple, content.progress(), &found)?,
            clock: Clock {
                now: batch.now,
                shortest: batch.shortest(),
            },
        })
    }

    /// The field of flow keys.
    #[inline(always)]
    #[must_use]
    pub const fn ct(&self) -> Ct {
        let reply = match self.found.direction {
            Direction::Original => CtState::empty(),
            Direction::Reply => CtState::REPLY,
        };
        let state = CtState::TRACKED.union(CtState::ESTABLISHED).union(reply);
        Ct::new(state, self.mark)
    }

    /// The place of the connection.
    #[inline(always)]
    #[must_use]
    pub fn place(&self) -> Place {
        Place::of(&self.found)
    }

    /// The port of the other side.
    #[inline(always)]
    #[must_use]
    pub const fn far(&self) -> Port {
        self.far
    }

    /// Returns whether the frames are datagrams, else they are segments.
    #[inline(always)]
    #[must_use]
    pub fn is_udp(&self) -> bool {
        self.protocol == Protocol::Udp
    }

    /// Judges datagrams. Returns whether they are of the connection; else they are judged in the
    /// long way.
    #[inline(always)]
    #[must_use]
    pub fn pass_datagrams(&self) -> bool {
        let own = self.found.entry.line(self.found.direction);
        let passes = self.protocol == Protocol::Udp && self.clock.is_fresh(own.used());
        if passes {
            own.set_used(self.clock.now);
        }
        passes
    }

    /// Judges a segment. Returns whether it is of the connection; else it is judged in the long
    /// way.
    #[inline(always)]
    #[must_use]
    pub fn pass_segment(&self, segment: Brief) -> bool {
        self.protocol == Protocol::Tcp && pass_one(self.lines(), segment, self.clock)
    }

    /// Judges segments. Returns the number of those from the first one on that are of the
    /// connection; the others are judged in the long way.
    #[inline(always)]
    pub fn pass_segments(&self, segments: impl Iterator<Item = Brief>) -> usize {
        match self.protocol {
            Protocol::Tcp => pass_many(self.lines(), segments, self.clock),
            Protocol::Udp => 0,
        }
    }

    /// The lines of its own side and of the other one.
    #[inline(always)]
    fn lines(&self) -> (&'a SideLine, &'a SideLine) {
        let (entry, direction) = (self.found.entry, self.found.direction);
        (entry.line(direction), entry.line(direction.other()))
    }

    /// Counts frames of a run, as the thread that serves their queue does.
    #[inline(always)]
    pub fn count(&self, packets: u64, bytes: u64) {
        self.lines().0.count(packets, bytes);
    }
}

/// Judges one segment. Not inlined: it needs all registers.
#[inline(never)]
fn pass_one((own, other): (&SideLine, &SideLine), segment: Brief, clock: Clock) -> bool {
    pass((own, other), std::iter::once(segment), clock) > 0
}

/// Judges segments as [`pass`] does. Not inlined for the same reason.
#[inline(never)]
fn pass_many(
    lines: (&SideLine, &SideLine),
    segments: impl Iterator<Item = Brief>,
    clock: Clock,
) -> usize {
    pass(lines, segments, clock)
}

/// Judges segments, and writes what those that pass have shown. Returns the number of these.
#[inline(always)]
fn pass(
    (own, other): (&SideLine, &SideLine),
    segments: impl Iterator<Item = Brief>,
    clock: Clock,
) -> usize {
    let Some(mut sides) = Sides::new(own, other, clock) else {
        return 0;
    };
    let mut passed = 0;
    for segment in segments {
        if !sides.pass(segment) {
            break;
        }
        passed += 1;
    }
    if passed > 0 {
        sides.store(clock.now);
    }
    passed
}

/// Returns the protocol of a run, if its connection is in the state for one.
#[inline(always)]
fn protocol_of(
    session: &Tracking<'_>,
    tuple: &Tuple,
    progress: Progress,
    found: &EntryRef<'_>,
) -> Option<Protocol> {
    match tuple.protocol() {
        wire::tcp::PROTOCOL => progress.is_steady().then_some(Protocol::Tcp),
        wire::udp::PROTOCOL => {
            let age = session.batch.now.wrapping_sub(found.entry.created());
            let settled = progress.is_assured() || age <= STREAM_AFTER;
            let stands = progress.is_replied() && !progress.is_denied();
            (stands && settled).then_some(Protocol::Udp)
        }
        _ => None,
    }
}

/// The sides of a run's connection, with the numbers that its segments are compared with. Words are
/// read where they are needed, and written if they may have changed.
#[derive(Clone, Copy, Debug)]
struct Sides<'a> {
    line: &'a SideLine,
    /// As they were before the run.
    flags: Flags,
    first_end: u32,
    end: u32,
    window: u32,
    max_ack: u32,
    /// The limit of what the other side may send.
    allowed: u32,
    /// The fewest bytes of the other side that an acknowledgement of the run was short of.
    missing: u32,
    /// Of the last segment.
    last_end: u32,
    last_ack: u32,
    last_window: u16,
    bounds: Bounds,
}

/// Numbers that the segments of a run are compared with.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The limit of what it may send, and the greatest window of the other side.
    limit: u32,
    other_window: u32,
    /// The end of the other side. An acknowledgement that is short of it by more is late.
    other_end: u32,
    most: u32,
    scale: u32,
}

impl<'a> Sides<'a> {
    /// Reads the sides of a run of TCP; `None` when its frames are judged in the long way.
    #[inline(always)]
    fn new(line: &'a SideLine, other: &SideLine, clock: Clock) -> Option<Self> {
        if !clock.is_fresh(line.used()) {
            return None;
        }
        // No other words of the two are looked at.
        let read = |line: &SideLine| Side {
            end: line.word(place::END),
            window: line.word(place::WINDOW),
            raised: line.word(place::RAISED),
            allowed: line.word(place::ALLOWED),
            ..Side::default().with_small(line.word(place::SMALL))
        };
        let (own, other) = (read(line), read(other));
        let known = Flags::ACKED | Flags::ALLOWED;
        let max_ack = line.word(place::MAX_ACK);
        let most = own.greatest_window(&other).max(crate::tcp::ACK_WINDOW);
        let stands = own.window != 0
            && other.window != 0
            && own.flags.contains(known)
            && other.flags.contains(Flags::ALLOWED)
            // No probe of the window was acknowledged.
            && max_ack != other.end.wrapping_add(1)
            && !after(own.end, other.allowed)
            && most <= i32::MAX as u32;
        if !stands {
            return None;
        }
        Some(Self {
            line,
            flags: own.flags,
            first_end: own.end,
            end: own.end,
            window: own.window,
            max_ack,
            allowed: own.allowed,
            missing: u32::MAX,
            last_end: 0,
            last_ack: 0,
            last_window: 0,
            bounds: Bounds {
                limit: other.allowed,
                other_window: other.greatest_window(&own),
                other_end: other.end,
                most,
                scale: own.scale(&other),
            },
        })
    }

    /// Judges the next segment: an acknowledgement that is well within the windows passes. Else
    /// nothing has changed. These are the conditions and the steps of `tcp::window`; that for
    /// late acknowledgements is stricter, because the window may have grown since the run began.
    #[inline(always)]
    fn pass(&mut self, segment: Brief) -> bool {
        let bounds = &self.bounds;
        let (seq, ack) = (segment.seq(), segment.ack());
        let end = seq.wrapping_add(segment.payload());
        // Neither early nor late.
        let missing = bounds.other_end.wrapping_sub(ack);
        let inside = segment.is_ack()
            && missing <= bounds.most
            && !after(seq, bounds.limit)
            && !before(end, self.end.wrapping_sub(bounds.other_window));
        // What goes beyond the limit raises the window.
        if !inside || after(end, bounds.limit) {
            return false;
        }
        self.end = later(end, self.end);
        let window = u32::from(segment.window()) << bounds.scale;
        let allowed = ack.wrapping_add(window);
        self.allowed = match before(allowed, self.allowed) {
            // A window of zero is probed with one byte.
            false => allowed.wrapping_add(u32::from(window == 0)),
            true => self.allowed,
        };
        self.window = self.window.max(window);
        self.missing = self.missing.min(missing);
        (self.last_end, self.last_ack) = (end, ack);
        self.last_window = segment.window();
        true
    }

    /// Writes its own side after a run of one segment or more.
    #[inline(always)]
    fn store(&self, now: Millis) {
        let line = self.line;
        let mut flags = self.flags;
        flags.set(Flags::OPEN, self.last_window != 0);
        if self.end != self.first_end {
            flags |= Flags::SENT;
        }
        let other_end = self.bounds.other_end;
        if self.missing == 0 {
            line.set_word(place::ALL_ACKED, other_end);
        }
        let acked = later(other_end.wrapping_sub(self.missing), self.max_ack);
        line.set_word(place::END, self.end);
        line.set_word(place::WINDOW, self.window);
        line.set_word(place::ALLOWED, self.allowed);
        line.set_word(place::MAX_ACK, acked);
        line.set_word(place::LAST_END, self.last_end);
        line.set_word(place::LAST_ACK, self.last_ack);
        if flags != self.flags {
            let changed = u32::from((flags ^ self.flags).bits()) << place::FLAGS;
            line.set_word(place::SMALL, line.word(place::SMALL) ^ changed);
        }
        line.set_used(now);
    }
}

/// The later one of two sequence numbers, without a branch.
#[inline(always)]
const fn later(a: u32, b: u32) -> u32 {
    match after(a, b) {
        true => a,
        false => b,
    }
}
