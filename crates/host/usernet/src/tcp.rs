//! One TCP flow: the guest's half of a connection. The other half is a socket of the host.
//!
//! No payload is held. What the guest sends is acknowledged when the kernel has taken it, so a
//! segment behind a gap is dropped and asked for again. What the guest is to get stays in the
//! socket until the guest has acknowledged it, so what is lost is peeked again.
//!
//! There is no congestion control towards the guest: the way is a queue of the same machine, whose
//! free buffers are the bound, besides the guest's window (RFC 9293, section 3.8).

use wire::tcp::{ACK, FIN, SYN};

use crate::Nanos;
use crate::action::{Action, Failure, Headers, Payload};
use crate::flow::{FlowId, FlowState};
use crate::headers::{Ends, RST, Segment};
use crate::services::UndeliveredPacket;
use crate::times::Times;

mod challenge;
mod opening;
mod path;
mod sending;
mod sequence;
mod timer;

use challenge::Challenges;
use path::Path;
use sequence::{after, before};
use timer::Timer;

/// Our shift of windows: 16 MiB, the largest send buffer that kernels give by default is 4 MiB.
const SCALE: u8 = 8;
/// Free bytes of the send buffer below this number: an event opens the window again.
const LOW_ROOM: u32 = 4096;
/// How long segments that arrive late are answered after both ends have closed.
const LATE: Nanos = 2_000_000_000;
/// Duplicate acknowledgements that tell a loss (RFC 5681, section 3.2).
const DUPLICATES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The host's socket connects.
    Connecting,
    /// A SYN went to the guest, for an accepted socket.
    SynSent,
    /// The SYN-ACK went to the guest.
    SynReceived,
    /// Established, halves closed or not.
    Open,
    /// Both halves are closed, and the socket too.
    Late,
    /// To be forgotten.
    Closed,
}

/// A segment of the guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u16,
    pub(crate) window: u16,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) payload: Payload,
}

/// Towards the guest.
#[derive(Clone, Copy, Debug, Default)]
struct Sending {
    iss: u32,
    /// First byte that the guest has not acknowledged: the first in the socket.
    una: u32,
    /// Next byte to send.
    nxt: u32,
    /// Behind the last byte that was ever sent.
    max: u32,
    /// The guest's window, and the segment that set it (RFC 9293, section 3.10.7.4).
    window: u32,
    window_set: (u32, u32),
    mss: u16,
    duplicates: u8,
    /// End of a fast retransmission.
    recover: Option<u32>,
    /// One segment at `una` will be sent again, or a probe of a closed window.
    again: bool,
    /// The socket may have bytes that were not peeked.
    readable: bool,
    urgent: Urgent,
    /// Place of the FIN, when the peer's end was found.
    end: Option<u32>,
    /// The driver knows that it may ask.
    announced: bool,
    /// Segments that were sent again, probes of a closed window not counted.
    retransmissions: u32,
}

/// Urgent data of the peer. A read that does not begin in front of it stops there (tcp(7)), so that
/// a peek of what follows finds nothing, or an end that is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Urgent {
    /// The peer has never sent any.
    #[default]
    Never,
    /// It has.
    Seen,
    /// A peek may have stopped there: one is due when all before it is acknowledged, or when more
    /// has come.
    Stopped,
}

/// From the guest.
#[derive(Clone, Copy, Debug, Default)]
struct Receiving {
    irs: u32,
    nxt: u32,
    /// Right edge of the window that was advertised; it never moves back.
    edge: u32,
    /// Free bytes of the send buffer.
    room: u32,
    pending: Option<Pending>,
    /// The guest's FIN was taken.
    closed: bool,
    /// The driver reports room.
    awaiting: bool,
    lost: LostBytes,
}

/// Bytes of one segment or more that the driver is to send, and has not reported yet.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    len: u32,
    /// The guest's FIN follows them.
    fin: bool,
    /// Segments behind a gap: an acknowledgement for each is due with that of these bytes.
    behind: u8,
}

/// Bytes that the guest sent to the process before, and that did not get to the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LostBytes {
    #[default]
    Nothing,
    /// No segment has come since the flow was restored.
    Unknown,
    /// All bytes before this one.
    Before(u32),
}

/// A flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) ends: Ends,
    pub(crate) state: State,
    connected: bool,
    /// Shifts of the guest's windows and of ours.
    scale: Option<(u8, u8)>,
    /// Longest segment that the guest may send, for its SYN.
    own_mss: u16,
    super_frames: bool,
    /// Hops that packets of the host's socket may go, if they are fewer than usual.
    pub(crate) hops: Option<u8>,
    sending: Sending,
    path: Path,
    receiving: Receiving,
    challenges: Challenges,
    timer: Timer,
    /// When bytes moved last, or the state changed.
    progress: Nanos,
}

/// The moment, and the actions of a call.
pub(crate) struct Context<'a> {
    pub(crate) id: FlowId,
    pub(crate) now: Nanos,
    pub(crate) times: Times,
    pub(crate) out: &'a mut Vec<Action>,
}

impl Context<'_> {
    fn act(&mut self, action: Action) {
        self.out.push(action);
    }
}

impl Receiving {
    /// Next byte of the guest, after those that are pending.
    fn expected(&self) -> u32 {
        let pending = self.pending.map_or(0, |pending| pending.len);
        self.nxt.wrapping_add(pending)
    }

    /// The guest's FIN was taken, or is pending.
    fn is_closing(&self) -> bool {
        self.closed || self.pending.is_some_and(|pending| pending.fin)
    }
}

impl Flow {
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.timer.deadline
    }

    /// Whether it is one of the guest's that is not yet established.
    pub(crate) fn is_half_open(&self) -> bool {
        matches!(self.state, State::Connecting | State::SynReceived)
    }

    /// The state for people.
    pub(crate) fn shown(&self) -> FlowState {
        match self.state {
            State::Connecting | State::SynSent | State::SynReceived => FlowState::HalfOpen,
            State::Open if self.receiving.closed || self.sending.end.is_some() => {
                FlowState::HalfClosed
            }
            State::Open => FlowState::Established,
            State::Late | State::Closed => FlowState::TimeWait,
        }
    }

    /// Whether the host's socket has connected, or else was accepted.
    pub(crate) fn has_connected(&self) -> bool {
        self.connected
    }

    /// Returns whether a SYN may take the place of this flow. Frames of a guest come in order, so a
    /// SYN is no late one of another flow, whatever its number, and a guest that chooses ports and
    /// numbers at random need not wait (RFC 9293, section 3.6.1, accepts higher numbers only). One
    /// with the number of this flow is the flow's own: after a crash a batch may come twice.
    pub(crate) fn may_reopen(&self, syn: &Incoming) -> bool {
        self.state == State::Late && syn.seq != self.receiving.irs
    }

    /// Shift of our windows.
    fn own_scale(&self) -> u8 {
        self.scale.map_or(0, |(_, own)| own)
    }

    /// Moves the edge of the window as far as the send buffer has room, and returns the field.
    fn advertise(&mut self) -> u16 {
        let shift = self.own_scale();
        let room = self.receiving.room.min(u32::from(u16::MAX) << shift) >> shift << shift;
        let edge = self.receiving.nxt.wrapping_add(room);
        if after(edge, self.receiving.edge) {
            self.receiving.edge = edge;
        }
        let open = self.receiving.edge.wrapping_sub(self.receiving.nxt);
        (open >> shift).min(u32::from(u16::MAX)) as u16
    }

    fn headers(&mut self, seq: u32, flags: u16, payload: u32) -> Headers {
        let window = self.advertise();
        let packets = payload.div_ceil(self.sending.mss.into()).max(1);
        self.ends.tcp(&Segment {
            seq,
            ack: self.receiving.nxt,
            flags: flags | ACK,
            window,
            options: None,
            payload,
            mss: self.sending.mss,
            id: self.path.next_id(packets),
        })
    }

    fn send_ack(&mut self, context: &mut Context<'_>) {
        let headers = self.headers(self.sending.nxt, 0, 0);
        context.act(Action::Frame(headers));
    }

    /// Has the guest show where it stands, a bounded number of times.
    fn challenge(&mut self, context: &mut Context<'_>) {
        if self.challenges.take(context.now) {
            self.send_ack(context);
        }
    }

    /// A byte that the guest has: it answers with where it stands (RFC 9293, section 3.8.4).
    fn send_probe(&mut self, context: &mut Context<'_>) {
        let headers = self.headers(self.sending.una.wrapping_sub(1), 0, 0);
        context.act(Action::Frame(headers));
        let silence = self.silence(&context.times);
        self.timer.keep_alive(context.now, silence);
    }

    /// How long both ends may be silent before they are probed.
    fn silence(&self, times: &Times) -> Nanos {
        match self.receiving.closed || self.sending.end.is_some() {
            true => times.half_closed,
            false => times.established,
        }
    }

    /// Tells the guest that the connection is gone.
    fn send_reset(&mut self, context: &mut Context<'_>) {
        let sending = &self.sending;
        let seq = match self.state {
            State::Connecting => 0,
            State::SynSent | State::SynReceived => sending.nxt,
            // The next byte that the guest expects, if nothing was lost. If something was, it
            // answers a reset in its window with where it stands, and gets another (RFC 5961,
            // section 3.2).
            _ => {
                let sent = sending.max.wrapping_sub(sending.una);
                sending.una.wrapping_add(sent.min(sending.window))
            }
        };
        let headers = self.headers(seq, RST, 0);
        context.act(Action::Frame(headers));
    }

    /// Closes the socket with a reset.
    fn reset_peer(&mut self, context: &mut Context<'_>) {
        context.act(Action::Close {
            flow: context.id,
            reset: true,
        });
        self.state = State::Closed;
    }

    /// The guest has forgotten the connection, or is gone. When nothing but the acknowledgement of
    /// our FIN is missing, both streams are whole, and the socket closes as it would with it
    /// (RFC 9293, section 3.10.7.4: a reset in LAST-ACK).
    fn guest_is_gone(&mut self, context: &mut Context<'_>) {
        let is_whole = self.receiving.closed && self.sending.end == Some(self.sending.una);
        context.act(Action::Close {
            flow: context.id,
            reset: !is_whole,
        });
        self.state = State::Closed;
    }

    /// The host's socket is connected.
    pub(crate) fn socket_connected(&mut self, room: u32, context: &mut Context<'_>) {
        if self.state == State::Connecting {
            self.state = State::SynReceived;
            self.progress = context.now;
            self.receiving.room = room;
            self.send_syn(context);
        }
    }

    /// The host's socket could not be connected. An error of the way comes to the guest as from a
    /// router, silence as silence, anything else as a reset.
    pub(crate) fn connect_failed(&mut self, failure: Failure, context: &mut Context<'_>) {
        let notice = match failure {
            Failure::Unreachable(notice) => Some(notice),
            Failure::Silent => None,
            _ => return self.socket_failed(context),
        };
        if self.state != State::Connecting {
            return self.socket_failed(context);
        }
        if let Some(notice) = notice {
            let of = UndeliveredPacket {
                station: self.ends.station,
                guest: self.ends.guest,
                peer: self.ends.peer,
                syn: Some(self.receiving.irs),
            };
            context.act(Action::Notify(of, notice));
        }
        context.act(Action::Close {
            flow: context.id,
            reset: false,
        });
        self.state = State::Closed;
    }

    /// The station of the guest does not answer: the peer has waited long enough.
    pub(crate) fn guest_is_absent(&mut self, context: &mut Context<'_>) {
        if self.state == State::SynSent {
            self.reset_peer(context);
        }
    }

    /// The host's socket failed, or its peer reset it.
    pub(crate) fn socket_failed(&mut self, context: &mut Context<'_>) {
        if !matches!(self.state, State::Late | State::Closed) {
            context.act(Action::Close {
                flow: context.id,
                reset: false,
            });
            self.send_reset(context);
            self.state = State::Closed;
        }
    }

    /// The socket has something to read.
    pub(crate) fn socket_readable(&mut self, context: &mut Context<'_>) {
        self.sending.readable = true;
        if self.sending.urgent == Urgent::Stopped {
            self.sending.urgent = Urgent::Seen;
        }
        self.pump(context);
    }

    /// The peer has sent urgent data.
    pub(crate) fn socket_urgent(&mut self, context: &mut Context<'_>) {
        if self.sending.urgent == Urgent::Never {
            self.sending.urgent = Urgent::Seen;
        }
        self.socket_readable(context);
    }

    /// The socket takes bytes again.
    pub(crate) fn socket_room(&mut self, room: u32, context: &mut Context<'_>) {
        self.receiving.room = room;
        self.receiving.awaiting = false;
        if self.state == State::Open && !self.receiving.closed {
            self.send_ack(context);
            self.watch_room(context);
        }
    }

    /// Has the driver report room where there is little.
    fn watch_room(&mut self, context: &mut Context<'_>) {
        if self.receiving.room < LOW_ROOM && !self.receiving.awaiting && !self.receiving.closed {
            self.receiving.awaiting = true;
            context.act(Action::AwaitRoom(context.id));
        }
    }

    /// Bytes of the segments that were pending went to the socket.
    pub(crate) fn socket_sent(&mut self, taken: u32, room: u32, context: &mut Context<'_>) {
        let Some(pending) = self.receiving.pending.take() else {
            return;
        };
        let taken = taken.min(pending.len);
        self.receiving.nxt = self.receiving.nxt.wrapping_add(taken);
        self.receiving.room = room;
        if taken > 0 {
            self.progress = context.now;
        }
        if taken == pending.len && pending.fin {
            self.receive_fin(context);
        }
        for _ in 0..=pending.behind {
            self.send_ack(context);
        }
        self.tell_loss(context);
        self.watch_room(context);
        self.finish(context);
    }

    fn receive_fin(&mut self, context: &mut Context<'_>) {
        self.receiving.nxt = self.receiving.nxt.wrapping_add(1);
        self.receiving.closed = true;
        self.progress = context.now;
        context.act(Action::Shutdown(context.id));
        // A shorter silence counts with this.
        let silence = self.silence(&context.times);
        self.timer.heard(context.now, silence);
    }

    /// A segment of the guest.
    pub(crate) fn segment(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        match self.state {
            State::Closed => {}
            State::Connecting => {
                if segment.flags & RST != 0 && segment.seq == self.receiving.nxt {
                    self.reset_peer(context);
                }
            }
            State::SynSent => self.segment_in_syn_sent(segment, context),
            State::Late => {
                if segment.flags & RST == 0
                    && segment.payload.len + u32::from(segment.flags & FIN) > 0
                {
                    self.send_ack(context);
                }
            }
            State::SynReceived | State::Open => self.segment_in_open(segment, context),
        }
    }

    fn segment_in_open(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let nxt = self.receiving.nxt;
        if segment.flags & RST != 0 {
            return self.receive_reset(segment, context);
        }
        if segment.flags & SYN != 0 {
            if self.state == State::SynReceived && segment.seq == self.receiving.irs {
                return self.send_syn(context);
            }
            // RFC 5961, section 4.
            return self.challenge(context);
        }
        // A segment behind any window of ours, or far in front of it. One without payload is
        // answered a bounded number of times, so that two ends that disagree do not answer each
        // other without end.
        let furthest = nxt.wrapping_add(u32::from(u16::MAX) << self.own_scale());
        if after(segment.seq, furthest) || before(segment.seq, nxt.wrapping_sub(1 << 30)) {
            return match segment.payload.len {
                0 => self.challenge(context),
                _ => self.send_ack(context),
            };
        }
        if segment.flags & ACK == 0 {
            return;
        }
        if self.state == State::SynReceived {
            if segment.ack != self.sending.nxt {
                return context.act(Action::Frame(self.ends.reset(segment.ack)));
            }
            self.establish(segment, context);
        }
        // An acknowledgement of what was never sent, or one that is older than any window (RFC
        // 5961, section 5).
        let oldest = self.sending.una.wrapping_sub(1 << 30);
        if after(segment.ack, self.sending.max) || before(segment.ack, oldest) {
            return self.challenge(context);
        }
        let silence = self.silence(&context.times);
        self.timer.heard(context.now, silence);
        self.receive_ack(segment, context);
        self.find_loss(segment, context);
        self.receive_payload(segment, context);
        self.finish(context);
        if self.state == State::Open {
            self.pump(context);
        }
    }

    /// The first segment after a restart shows what was lost before it. What comes behind a gap is
    /// lost, too.
    fn find_loss(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let is_behind = after(segment.seq, self.receiving.expected());
        let end = segment.seq.wrapping_add(segment.payload.len);
        match self.receiving.lost {
            LostBytes::Nothing => {}
            LostBytes::Unknown if is_behind => {
                self.receiving.lost = LostBytes::Before(end);
                // It may tell another window, and then is no duplicate.
                self.send_ack(context);
                self.tell_loss(context);
            }
            LostBytes::Unknown => self.receiving.lost = LostBytes::Nothing,
            LostBytes::Before(before) if is_behind && after(end, before) => {
                self.receiving.lost = LostBytes::Before(end);
            }
            LostBytes::Before(_) => {}
        }
    }

    /// Has the guest send the next lost segment at once, and not after its time-out: there are
    /// stacks that send one and no more for each loss that they learn of (RFC 5681, section
    /// 3.2).
    fn tell_loss(&mut self, context: &mut Context<'_>) {
        let LostBytes::Before(end) = self.receiving.lost else {
            return;
        };
        if !before(self.receiving.nxt, end) {
            self.receiving.lost = LostBytes::Nothing;
            return;
        }
        for _ in 0..DUPLICATES {
            self.send_ack(context);
        }
    }

    /// A reset counts at the next byte alone; elsewhere in the window it is challenged (RFC 5961,
    /// section 3).
    fn receive_reset(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let expected = self.receiving.expected();
        let at = segment.seq.wrapping_sub(expected);
        if at == 0 {
            self.guest_is_gone(context);
        } else if at < self.receiving.edge.wrapping_sub(expected) {
            self.challenge(context);
        }
    }

    fn receive_ack(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let window = u32::from(segment.window) << self.scale.map_or(0, |(guest, _)| guest);
        let sending = &mut self.sending;
        let is_duplicate = segment.ack == sending.una
            && sending.max != sending.una
            && segment.payload.len == 0
            && segment.flags & FIN == 0
            && window == sending.window;
        let (seq, ack) = sending.window_set;
        let was_closed = sending.window == 0;
        if !before(segment.seq, seq) && !before(segment.ack, ack) {
            sending.window = window;
            sending.window_set = (segment.seq, segment.ack);
        }
        let has_opened = was_closed && sending.window > 0;
        if after(segment.ack, sending.una) {
            self.acknowledge(segment.ack, context);
        } else if is_duplicate {
            sending.duplicates = sending.duplicates.saturating_add(1);
            if sending.duplicates == DUPLICATES && sending.recover.is_none() {
                sending.recover = Some(sending.max);
                sending.again = true;
                self.timer.forget_sample();
            }
        }
        if has_opened {
            // The byte of a probe, and all else that was sent into the closed window, is sent
            // again at once: the guest has not taken it.
            self.sending.nxt = self.sending.una;
            self.timer.reopened(context.now);
        }
    }

    fn acknowledge(&mut self, ack: u32, context: &mut Context<'_>) {
        let sending = &mut self.sending;
        let fin = u32::from(sending.end.is_some_and(|end| after(ack, end)));
        let bytes = ack.wrapping_sub(sending.una).wrapping_sub(fin);
        sending.una = ack;
        self.progress = context.now;
        if before(sending.nxt, ack) {
            sending.nxt = ack;
        }
        sending.duplicates = 0;
        // A partial acknowledgement tells the next loss (RFC 6582, section 3.2).
        sending.recover = sending.recover.filter(|recover| before(ack, *recover));
        sending.again = sending.recover.is_some();
        if sending.urgent == Urgent::Stopped && sending.nxt == ack {
            sending.urgent = Urgent::Seen;
            sending.readable = true;
        }
        self.timer.acknowledged(ack, context.now);
        if bytes > 0 {
            context.act(Action::Discard(context.id, bytes));
        }
        if self.sending.una == self.sending.max {
            let silence = self.silence(&context.times);
            self.timer.idle(context.now, silence);
        }
    }

    fn receive_payload(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let fin = segment.flags & FIN != 0;
        let len = segment.payload.len;
        if len == 0 && !fin {
            // A probe: a byte that we have is announced.
            if before(segment.seq, self.receiving.nxt) {
                self.challenge(context);
            }
            return;
        }
        let expected = self.receiving.expected();
        let skip = expected.wrapping_sub(segment.seq);
        let open = self.receiving.edge.wrapping_sub(expected);
        let is_old = skip > len || (skip == len && !fin);
        if is_old || self.receiving.is_closing() {
            return self.receive_elsewhere(segment, context);
        }
        let rest = len - skip;
        let take = rest.min(open);
        if rest > 0 && take == 0 {
            self.send_ack(context);
            return self.watch_room(context);
        }
        let pending = self.receiving.pending.get_or_insert_default();
        pending.len += take;
        pending.fin = fin && take == rest;
        if take > 0 {
            let payload = Payload {
                start: segment.payload.start + skip,
                len: take,
            };
            context.act(Action::Send(context.id, payload));
        } else if pending.len == 0 {
            self.socket_sent(0, self.receiving.room, context);
        }
    }

    /// A segment that does not begin where the next bytes do, or that comes behind the end. It is
    /// answered with where the flow stands, behind pending bytes when it shows a gap.
    fn receive_elsewhere(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let is_behind = after(segment.seq, self.receiving.expected());
        match &mut self.receiving.pending {
            Some(pending) if is_behind => {
                pending.behind = pending.behind.saturating_add(1).min(DUPLICATES);
            }
            _ => self.send_ack(context),
        }
    }

    /// Both halves are closed: the socket can go.
    fn finish(&mut self, context: &mut Context<'_>) {
        let sent = self
            .sending
            .end
            .is_some_and(|end| self.sending.una == end.wrapping_add(1));
        if sent && self.receiving.closed && self.state == State::Open {
            context.act(Action::Close {
                flow: context.id,
                reset: false,
            });
            self.state = State::Late;
            self.timer.deadline = Some(context.now + LATE);
        }
    }
}
