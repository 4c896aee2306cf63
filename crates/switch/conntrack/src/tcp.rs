//! TCP as a switch between its ends sees it.
//!
//! ```text
//!            SYN                SYN/ACK                ACK
//!   (none) ------> SYN_SENT <----------> SYN_RECV --------------> ESTABLISHED <--+
//!      |              | SYN of the           ^                        |          | pick-up:
//!      |              | other side           | SYN/ACK                | FIN      | a segment from
//!      |              +----------> SYN_SENT2-+                        v          | the middle
//!      +----------------------------------------------------------------------- -+
//!                                                                  FIN_WAIT
//!      SYN: a new connection                                 ACK |         | FIN of the other
//!   <------------- TIME_WAIT <-------- LAST_ACK <------------+   v         v
//!   <----+             ^   ACK           ^     FIN of the    | CLOSE_WAIT  LAST_ACK
//!        |             |                 |     other side    +-----+
//!      CLOSE <------ reset in the window, of either side, in every state
//! ```
//! Solid lines are segments in the window. A segment that a state does not expect, and that its
//! receiver may answer with a reset or a challenge (RFC 5961), passes and changes nothing: a SYN
//! within a connection, an acknowledgement that answers a SYN. The answer then says if the
//! connection is over. A SYN between the ends of a denied connection opens a new one, whatever the
//! state.
//!
//! Sources: RFC 9293 for the states of the ends; van Rooij, Real Stateful TCP Packet Filtering in
//! IP Filter (2001), for windows; `nf_conntrack_proto_tcp.c` of Linux for the states here. The
//! differences from it:
//! * A FIN that is sent again is not taken for one of the other side.
//! * In closing states a reset outside of the window passes, but ends nothing.
//! * An invalid segment changes nothing at all.
//! * A segment that is judged twice is judged alike.

use wire::tcp;

use crate::machine::{Outcome, Step};
use crate::progress::{Flags, Predecessor, Progress, Side, TcpState};
use crate::segment::{Kind, Segment, before};
use crate::timeouts::{Millis, Settings, Timeout};
use crate::{Direction, Invalid};

mod window;

pub(crate) use window::ACK_WINDOW;
use window::{Window, in_window};

/// The noted scale of a SYN that has none: the longest shift is 14.
const NO_SCALE: u8 = 15;

/// A segment, its kind, and its place.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    segment: &'a Segment,
    kind: Kind,
    direction: Direction,
    /// Whether windows are not checked, whatever the side says.
    liberal: bool,
}

/// The effect that a state has on a segment.
enum Effect {
    /// If it is in the window, this is the state.
    To(TcpState),
    /// It passes, and is noted.
    Noted,
    /// It opens a new connection between the same ends.
    Reopens,
    Invalid,
}

/// The state of a connection that this segment opens: its word, and its sides.
pub(crate) fn open(
    segment: &Segment,
    now: Millis,
    settings: &Settings,
) -> Result<(Progress, [Side; 2]), Invalid> {
    let kind = segment.kind().ok_or(Invalid::Flags)?;
    let (mut original, mut reply) = (Side::new(now), Side::new(now));
    let (state, last) = match kind {
        Kind::Syn => {
            original.begin(segment);
            (TcpState::SynSent, Predecessor::Syn)
        }
        Kind::Ack if settings.pick_up => {
            original.begin_within(segment);
            original.flags = Flags::SACK | Flags::LIBERAL;
            reply.flags = original.flags;
            (TcpState::Established, Predecessor::Ack)
        }
        Kind::Ack => return Err(Invalid::PickUp),
        Kind::SynAck | Kind::Fin | Kind::Rst => return Err(Invalid::NoConnection),
    };
    let arrival = Arrival {
        segment,
        kind,
        direction: Direction::Original,
        liberal: !settings.strict,
    };
    match in_window(&arrival, TcpState::None, &mut original, &reply) {
        Window::Invalid(why) => return Err(why),
        Window::Inside | Window::Passes => {}
    }
    let progress = Progress::default()
        .with_tcp(state)
        .with_last(last, Direction::Original);
    Ok((progress, [original, reply]))
}

/// Judges a segment of a known connection. `own` is the side that it comes from.
#[inline]
pub(crate) fn judge(
    segment: &Segment,
    direction: Direction,
    progress: Progress,
    sides: (&Side, &Side),
    now: Millis,
    settings: &Settings,
) -> Step {
    let (own, other) = sides;
    let unchanged = |outcome| Step {
        progress,
        own: *own,
        outcome,
    };
    let Some(kind) = segment.kind() else {
        return unchanged(Outcome::Invalid(Invalid::Flags));
    };
    let arrival = Arrival {
        segment,
        kind,
        direction,
        liberal: !settings.strict,
    };
    if kind == Kind::Ack && progress.is_steady() {
        return step_steadily(&arrival, progress, sides, now);
    }
    if kind == Kind::Syn && progress.is_denied() {
        return unchanged(Outcome::Reopens);
    }
    let mut step = unchanged(Outcome::Known);
    let mut other = *other;
    step.settle(&arrival, &mut other);
    let step = match next(&arrival, step.progress) {
        Effect::Invalid => Err(Invalid::State),
        Effect::Reopens => return unchanged(Outcome::Reopens),
        Effect::Noted if answers_noted(&arrival, step.progress, &other) => {
            step.renew(&arrival, other, now)
        }
        Effect::Noted => Ok(step.note(&arrival)),
        Effect::To(_) if kind == Kind::Rst => step.reset(&arrival, &other, now),
        Effect::To(_) if is_challenge(&arrival, step.progress) => Ok(step.seen(&arrival)),
        Effect::To(state) => step.proceed(&arrival, state, &other, now),
    };
    match step {
        Ok(step) if step.outcome == Outcome::Known => step,
        // Nothing of it will be left.
        Ok(step) => unchanged(step.outcome),
        Err(why) => unchanged(Outcome::Invalid(why)),
    }
}

/// An acknowledgement of an established connection, as nearly all segments are: it changes its own
/// side alone. A short way to what the other ways would find.
#[inline]
fn step_steadily(
    arrival: &Arrival<'_>,
    progress: Progress,
    (before, other): (&Side, &Side),
    now: Millis,
) -> Step {
    let mut step = Step {
        progress,
        own: *before,
        outcome: Outcome::Known,
    };
    match in_window(arrival, TcpState::Established, &mut step.own, other) {
        Window::Inside => step.own.used = now,
        Window::Passes => {}
        Window::Invalid(why) => {
            step.own = *before;
            step.outcome = Outcome::Invalid(why);
        }
    }
    step
}

/// The state that a segment leads to, if it is in the window.
#[inline]
fn next(arrival: &Arrival<'_>, progress: Progress) -> Effect {
    use TcpState::{
        Close, CloseWait, Established, FinWait, LastAck, SynRecv, SynSent, SynSent2, TimeWait,
    };
    let state = progress.tcp();
    let original = arrival.direction == Direction::Original;
    if state == TcpState::None {
        return Effect::Invalid;
    }
    match arrival.kind {
        Kind::Ack => match state {
            Established => Effect::To(Established),
            SynSent | SynSent2 if original => Effect::Invalid,
            SynSent | SynSent2 => Effect::Noted,
            SynRecv if original || progress.has(Progress::SIMULTANEOUS) => Effect::To(Established),
            FinWait | CloseWait => Effect::To(CloseWait),
            LastAck | TimeWait => Effect::To(TimeWait),
            SynRecv | Close | TcpState::None => Effect::To(state),
        },
        Kind::Syn => match (state, original) {
            (SynSent, true) => Effect::To(SynSent),
            (SynSent2, _) | (SynSent, false) => Effect::To(SynSent2),
            (TimeWait, _) | (Close, true) => reopening(arrival, progress),
            (_, true) => Effect::Noted,
            (_, false) => Effect::Invalid,
        },
        Kind::SynAck => match (state, original) {
            (SynRecv | SynSent2, true) | (SynSent | SynSent2, false) => Effect::To(SynRecv),
            (_, true) => Effect::Invalid,
            (_, false) => Effect::Noted,
        },
        Kind::Fin => match state {
            SynSent | SynSent2 | TcpState::None => Effect::Invalid,
            SynRecv | Established => Effect::To(FinWait),
            FinWait | CloseWait if progress.has(Progress::fin(arrival.direction)) => {
                Effect::To(state)
            }
            FinWait | CloseWait | LastAck => Effect::To(LastAck),
            TimeWait | Close => Effect::To(state),
        },
        Kind::Rst => Effect::To(Close),
    }
}

/// A SYN after the end of a connection: a new one, if the old one was closed by a FIN, or by a
/// reset of the side that opens it (RFC 9293, 3.10.7.4; RFC 1122, 4.2.2.13).
fn reopening(arrival: &Arrival<'_>, progress: Progress) -> Effect {
    let reset_by_it = progress.last() == (Predecessor::Rst, arrival.direction);
    if progress.is_closed() || reset_by_it {
        Effect::Reopens
    } else {
        Effect::Noted
    }
}

/// Whether a SYN/ACK answers a SYN of the original side that was noted, within a connection or
/// after it: then both ends agree on a new connection.
fn answers_noted(arrival: &Arrival<'_>, progress: Progress, other: &Side) -> bool {
    arrival.kind == Kind::SynAck
        && arrival.direction == Direction::Reply
        && progress.last() == (Predecessor::Syn, Direction::Original)
        && arrival.segment.ack == other.last_end
}

/// Whether an acknowledgement is a challenge that answers a SYN (RFC 5961, 4.2), and so does not
/// acknowledge the last FIN.
fn is_challenge(arrival: &Arrival<'_>, progress: Progress) -> bool {
    arrival.kind == Kind::Ack
        && progress.tcp() == TcpState::LastAck
        && arrival.direction == Direction::Reply
        && progress.last() == (Predecessor::Syn, Direction::Original)
}

/// Steps of a connection by one segment. A refusal leaves the connection as it was.
impl Step {
    /// Makes what a noted SYN says count, once it was answered: for good by frames of its own side,
    /// for this judgement by those of the other.
    #[inline]
    fn settle(&mut self, arrival: &Arrival<'_>, other: &mut Side) {
        if self.progress.has(Progress::RENEWED) {
            match arrival.direction {
                Direction::Original => {
                    self.own.take_noted();
                    self.progress = self.progress.without(Progress::RENEWED);
                }
                Direction::Reply => other.take_noted(),
            }
        }
    }

    /// A segment that passes. The connection is as it was, but has been answered.
    #[inline]
    fn seen(mut self, arrival: &Arrival<'_>) -> Self {
        if arrival.direction == Direction::Reply {
            self.progress = self.progress.with(Progress::REPLIED);
        }
        self
    }

    /// A segment that passes. Its answer will say if the connection is over.
    fn note(mut self, arrival: &Arrival<'_>) -> Self {
        let segment = arrival.segment;
        let last = match arrival.kind {
            Kind::Syn => Predecessor::Syn,
            Kind::SynAck => Predecessor::SynAck,
            Kind::Ack | Kind::Fin | Kind::Rst => Predecessor::HalfOpen,
        };
        // No answer depends on the numbers of a SYN/ACK.
        if last != Predecessor::SynAck {
            self.own.last_end = segment.end();
            self.own.last_ack = segment.ack;
        }
        if arrival.kind == Kind::Syn && arrival.direction == Direction::Original {
            self.own.note(segment);
            self.progress = self.progress.without(Progress::SIMULTANEOUS);
        }
        self.progress = self.progress.with_last(last, arrival.direction);
        self.seen(arrival)
    }

    /// A SYN/ACK that answers a noted SYN: both sides start anew.
    fn renew(
        mut self,
        arrival: &Arrival<'_>,
        mut other: Side,
        now: Millis,
    ) -> Result<Self, Invalid> {
        other.take_noted();
        self.own = Side {
            flags: self.own.flags & Flags::LIBERAL,
            ..Side::new(self.own.used)
        };
        let fins = Progress::fin(Direction::Original) | Progress::fin(Direction::Reply);
        let before = self.progress;
        self.progress = self.progress.without(fins).with(Progress::RENEWED);
        self.checked(arrival, (before, TcpState::SynRecv), &other, now)
    }

    /// A segment that leads to `state`, if it is in the window.
    #[inline]
    fn proceed(
        self,
        arrival: &Arrival<'_>,
        state: TcpState,
        other: &Side,
        now: Millis,
    ) -> Result<Self, Invalid> {
        let before = self.progress;
        self.checked(arrival, (before, state), other, now)
    }

    /// The step of a segment that is in the window, and what else is not invalid.
    #[inline]
    fn checked(
        mut self,
        arrival: &Arrival<'_>,
        (before, state): (Progress, TcpState),
        other: &Side,
        now: Millis,
    ) -> Result<Self, Invalid> {
        match in_window(arrival, before.tcp(), &mut self.own, other) {
            Window::Inside => Ok(self.accept(arrival, state, now)),
            Window::Passes => Ok(self.seen(arrival)),
            Window::Invalid(why) => Err(why),
        }
    }

    /// A reset. What it ends must be what its sender means: a wrong sequence number ends nothing
    /// (RFC 5961, 3.2).
    fn reset(self, arrival: &Arrival<'_>, other: &Side, now: Millis) -> Result<Self, Invalid> {
        let (segment, progress) = (arrival.segment, self.progress);
        let (state, close) = (progress.tcp(), TcpState::Close);
        let (last, last_direction) = progress.last();
        // Before there is a connection, acknowledgements of the reply side are all that is noted.
        let opening = matches!(state, TcpState::SynSent | TcpState::SynSent2);
        let noting = match opening {
            true => Direction::Reply,
            false => last_direction,
        };
        let noted = match noting == arrival.direction {
            true => &self.own,
            false => other,
        };
        let after_syn = last == Predecessor::Syn;
        let acknowledges = segment.has(tcp::ACK) && segment.ack != 0;
        // It answers what was let through: a SYN within the connection, or an acknowledgement of
        // half a connection.
        let by_ack = acknowledges && segment.ack == noted.last_end;
        let answers = match last {
            Predecessor::Syn => {
                by_ack && progress.is_replied() && last_direction != arrival.direction
            }
            Predecessor::HalfOpen => {
                by_ack || state == TcpState::SynSent && segment.seq == noted.last_ack
            }
            _ => false,
        };
        // After a SYN the ends may have other numbers.
        let acked = other.flags.contains(Flags::ACKED) && !after_syn;
        if answers && !acked {
            return Ok(self.accept(arrival, close, now));
        }
        // Where its receiver expects it; or right after the last bytes of its sender, which may be
        // on their way.
        let follows = last == Predecessor::Ack && self.own.flags.contains(Flags::ACKED);
        let exact = other.flags.contains(Flags::ACKED) && segment.seq == other.max_ack
            || follows && segment.seq == self.own.last_end;
        if state.is_closing() {
            // The ends may have a new connection already, so that it passes in any case.
            let mut own = self.own;
            return Ok(match in_window(arrival, state, &mut own, other) {
                Window::Inside if exact || segment.seq == self.own.end => {
                    self.accept(arrival, close, now)
                }
                _ => self.seen(arrival),
            });
        }
        let established = state == TcpState::Established && progress.is_assured();
        // One of zero refuses what was let through before the connection was established.
        let early = acked && before(segment.seq, other.max_ack);
        if early && (established || segment.seq != 0) {
            return Err(Invalid::Reset);
        }
        // Its receiver will challenge one that is not exact, and an answer ends the connection.
        let next = if acked && established && !exact {
            state
        } else {
            close
        };
        self.checked(arrival, (progress, next), other, now)
    }

    /// A segment of the connection, which is now in `state`.
    #[inline]
    fn accept(mut self, arrival: &Arrival<'_>, state: TcpState, now: Millis) -> Self {
        let old = self.progress;
        let from = old.tcp();
        let last = match arrival.kind {
            Kind::Ack => Predecessor::Ack,
            Kind::Syn => Predecessor::Syn,
            Kind::SynAck => Predecessor::SynAck,
            Kind::Fin => Predecessor::Fin,
            Kind::Rst => Predecessor::Rst,
        };
        let mut progress = old.with_tcp(state).with_last(last, arrival.direction);
        if arrival.kind == Kind::Fin
            && matches!(
                state,
                TcpState::FinWait | TcpState::LastAck | TcpState::CloseWait
            )
        {
            progress = progress.with(Progress::fin(arrival.direction));
        }
        if state == TcpState::SynSent2 {
            progress = progress.with(Progress::SIMULTANEOUS);
        }
        if old.is_replied() {
            let opened = matches!(from, TcpState::SynRecv | TcpState::Established);
            if opened && state == TcpState::Established {
                progress = progress.with(Progress::ASSURED);
            }
            self.own.used = now;
        } else if arrival.kind == Kind::Rst {
            self.outcome = Outcome::Refused;
        } else if arrival.kind != Kind::Syn || from != TcpState::SynSent {
            // A SYN that is sent again and again keeps nothing alive.
            self.own.used = now;
        }
        self.progress = progress;
        self.seen(arrival)
    }
}

/// The timeout of a connection that was last used by `recent`.
pub(crate) fn timeout(
    progress: Progress,
    sides: [&Side; 2],
    recent: &[&Side],
    settings: &Settings,
) -> Millis {
    let timeouts = &settings.timeouts;
    if progress.last().0 == Predecessor::Rst {
        return timeouts.get(Timeout::TcpClose);
    }
    // Its ends may not know of the denial: they hold on to it for longer than its state says.
    if progress.is_denied() {
        return timeouts.get(Timeout::TcpEstablished);
    }
    let state = progress.tcp();
    let usual = timeouts.get(match state {
        TcpState::None | TcpState::SynSent | TcpState::SynSent2 => Timeout::TcpSynSent,
        TcpState::SynRecv => Timeout::TcpSynRecv,
        TcpState::Established => Timeout::TcpEstablished,
        TcpState::FinWait => Timeout::TcpFinWait,
        TcpState::CloseWait => Timeout::TcpCloseWait,
        TcpState::LastAck => Timeout::TcpLastAck,
        TcpState::TimeWait => Timeout::TcpTimeWait,
        TcpState::Close => Timeout::TcpClose,
    });
    let [a, b] = sides;
    let unacknowledged = a.waits_for(b) || b.waits_for(a);
    // Met in its middle, and not seen to go on.
    let unsure = state == TcpState::Established && !progress.is_assured();
    if unacknowledged || unsure {
        usual.min(timeouts.get(Timeout::TcpUnacknowledged))
    } else if recent.iter().all(|side| !side.flags.contains(Flags::OPEN)) {
        usual.min(timeouts.get(Timeout::TcpMaxRetrans))
    } else {
        usual
    }
}

impl Side {
    /// Starts from a SYN.
    pub(crate) fn begin(&mut self, segment: &Segment) {
        let options = &segment.options;
        self.end = segment.end();
        self.base = self.end;
        self.window = u32::from(segment.window).max(1);
        self.flags &= Flags::LIBERAL;
        self.flags.set(Flags::SCALE, options.scale.is_some());
        self.flags.set(Flags::SACK, options.sack_permitted);
        self.scales = self.scales & 0xf0 | options.scale.unwrap_or_default();
    }

    /// Starts from another segment: it is in the middle of a connection, and this is all that is
    /// known of it.
    fn begin_within(&mut self, segment: &Segment) {
        self.end = segment.end();
        self.window = u32::from(segment.window).max(1);
        self.base = self.end.wrapping_add(self.window);
        // Its SYN may have scaled windows, so that those of the other side are as its SYN says.
        self.flags |= Flags::SCALE;
    }

    /// Notes what counts of a SYN that may be answered.
    fn note(&mut self, segment: &Segment) {
        let options = &segment.options;
        self.noted_window = segment.window;
        self.flags.set(Flags::NOTED_SACK, options.sack_permitted);
        self.scales = self.scales & 0xf | options.scale.unwrap_or(NO_SCALE) << 4;
    }

    /// Starts from the SYN that was noted.
    fn take_noted(&mut self) {
        let mut flags = self.flags & (Flags::NOTED_SACK | Flags::OPEN);
        flags.set(Flags::SACK, self.flags.contains(Flags::NOTED_SACK));
        let scale = self.scales >> 4;
        flags.set(Flags::SCALE, scale != NO_SCALE);
        *self = Self {
            end: self.last_end,
            base: self.last_end,
            window: u32::from(self.noted_window).max(1),
            last_end: self.last_end,
            last_ack: self.last_ack,
            noted_window: self.noted_window,
            flags,
            scales: self.scales & 0xf0 | scale,
            ..Self::new(self.used)
        };
    }

    /// Whether it has sent bytes that the other side has not acknowledged.
    #[inline]
    fn waits_for(&self, other: &Self) -> bool {
        self.flags.contains(Flags::SENT) && other.all_acked != self.end
    }

    /// The limit of what it may send.
    #[inline]
    pub(crate) fn limit(&self, other: &Self) -> u32 {
        // No comparison of both: a connection sends more than sequence numbers can compare.
        match other.flags.contains(Flags::ALLOWED) {
            true => other.allowed,
            false => self.base,
        }
    }

    /// The end of the other side: one more if this side has acknowledged that, see [`window`].
    #[inline]
    pub(crate) fn end_of(&self, other: &Self) -> u32 {
        let probed = self.flags.contains(Flags::ACKED) && self.max_ack == other.end.wrapping_add(1);
        other.end.wrapping_add(u32::from(probed))
    }

    /// Its greatest window; zero before its first segment.
    #[inline]
    pub(crate) fn greatest_window(&self, other: &Self) -> u32 {
        match self.window {
            0 => 0,
            window => window.max(other.raised),
        }
    }

    /// The shift of its windows: none unless both sides scale (RFC 7323, 2.2), as far as the other
    /// side is known.
    #[inline]
    pub(crate) fn scale(&self, other: &Self) -> u32 {
        let scaled = other.window == 0 || other.flags.contains(Flags::SCALE);
        match scaled && self.flags.contains(Flags::SCALE) {
            // Below 16, whatever is in memory that others write.
            true => u32::from(self.scales & 0xf),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests;
