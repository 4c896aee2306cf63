//! One TCP flow: the guest's half of a connection whose other half is a socket of the host.
//!
//! No payload is held. What the guest sends is acknowledged when the kernel has taken it, so a
//! segment behind a gap is dropped and asked for again. What the guest is to get stays in the
//! socket until the guest has acknowledged it, so what is lost is peeked again.
//!
//! There is no congestion control towards the guest: the way is a queue of the same machine, whose
//! free buffers are the bound, besides the guest's window (RFC 9293, section 3.8).

use wire::tcp::{ACK, FIN, PSH, SYN};

use crate::Nanos;
use crate::action::{Action, FlowId, Headers, Payload, Peek, Peeked};
use crate::headers::{Ends, Segment};
use crate::record::{LEAST_MSS, MAX_SCALE, Progress, Record};

mod sequence;
mod timer;

use sequence::{after, before};
use timer::Timer;

/// Reset.
pub(crate) const RST: u16 = 4;
/// Our shift of windows: 16 MiB, the largest send buffer that kernels give by default is 4 MiB.
const SCALE: u8 = 8;
/// Segments that a guest is to take when it names no size (RFC 9293, section 3.7.1), IPv4 and IPv6.
const DEFAULT_MSS: [u16; 2] = [536, 1220];
/// Below so many free bytes of the send buffer the window is opened again by an event.
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
    /// One segment at `una` is to be sent again, or a probe of a closed window.
    again: bool,
    /// The socket may have bytes that were not peeked.
    readable: bool,
    /// Place of the FIN, when the peer's end was found.
    end: Option<u32>,
    /// The driver knows that it may ask.
    announced: bool,
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
    /// Bytes with the driver, and whether a FIN follows them.
    pending: Option<(u32, bool)>,
    /// The guest's FIN was taken.
    closed: bool,
    /// The driver reports room.
    awaiting: bool,
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
    sending: Sending,
    receiving: Receiving,
    timer: Timer,
}

/// The moment, and the actions of a call.
pub(crate) struct Context<'a> {
    pub(crate) id: FlowId,
    pub(crate) now: Nanos,
    pub(crate) out: &'a mut Vec<Action>,
}

impl Context<'_> {
    fn act(&mut self, action: Action) {
        self.out.push(action);
    }
}

impl Flow {
    /// A flow that a guest's SYN opens; the caller connects the socket.
    pub(crate) fn opened(ends: Ends, syn: &Incoming, iss: u32, own_mss: u16, big: bool) -> Self {
        let mut flow = Self::new(ends, iss, own_mss, big);
        flow.receive_syn(syn);
        flow
    }

    /// A flow of an accepted socket: a SYN goes to the guest.
    pub(crate) fn accepted(
        ends: Ends,
        iss: u32,
        own_mss: u16,
        big: bool,
        room: u32,
        context: &mut Context<'_>,
    ) -> Self {
        let mut flow = Self::new(ends, iss, own_mss, big);
        flow.state = State::SynSent;
        flow.receiving.room = room;
        flow.send_syn(context);
        flow
    }

    fn new(ends: Ends, iss: u32, own_mss: u16, super_frames: bool) -> Self {
        let sending = Sending {
            iss,
            una: iss,
            nxt: iss,
            max: iss,
            mss: DEFAULT_MSS[usize::from(ends.guest.is_ipv6())],
            ..Sending::default()
        };
        Self {
            ends,
            state: State::Connecting,
            connected: true,
            scale: None,
            own_mss,
            super_frames,
            sending,
            receiving: Receiving::default(),
            timer: Timer::default(),
        }
    }

    /// A flow of which a record and its socket are left. The guest is asked for its window.
    pub(crate) fn restored(
        ends: Ends,
        record: &Record,
        progress: &Progress,
        own_mss: u16,
        big: bool,
        context: &mut Context<'_>,
    ) -> Self {
        let mut flow = Self::new(ends, record.iss, own_mss, big);
        flow.state = State::Open;
        flow.connected = record.connected;
        flow.scale = record.scale;
        let closed = u32::from(progress.guest_closed);
        let taken = (progress.taken as u32).wrapping_add(1 + closed);
        let receiving = &mut flow.receiving;
        receiving.irs = record.irs;
        receiving.nxt = record.irs.wrapping_add(taken);
        receiving.edge = receiving.nxt;
        receiving.room = progress.room;
        receiving.closed = progress.guest_closed;
        let sending = &mut flow.sending;
        sending.una = record
            .iss
            .wrapping_add(1)
            .wrapping_add(progress.given as u32);
        sending.nxt = sending.una;
        // The predecessor may have sent all that waits, and the FIN.
        let last = sending.una.wrapping_add(progress.unread);
        sending.end = progress.peer_closed.then_some(last);
        sending.max = last.wrapping_add(u32::from(progress.peer_closed));
        sending.mss = record.mss;
        sending.window = u32::from(record.mss);
        sending.window_set = (flow.receiving.nxt, sending.una);
        sending.readable = true;
        flow.send_probe(context);
        flow.pump(context);
        flow
    }

    /// What outlives the process.
    pub(crate) fn record(&self) -> Record {
        Record {
            guest: self.ends.guest,
            peer: self.ends.peer,
            station: self.ends.station,
            connected: self.connected,
            iss: self.sending.iss,
            irs: self.receiving.irs,
            mss: self.sending.mss,
            scale: self.scale,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.timer.deadline
    }

    pub(crate) fn is_half_open(&self) -> bool {
        matches!(
            self.state,
            State::Connecting | State::SynReceived | State::SynSent
        )
    }

    /// A SYN may take the place of this flow (RFC 9293, section 3.6.1).
    pub(crate) fn may_reopen(&self, syn: &Incoming) -> bool {
        self.state == State::Late && after(syn.seq, self.receiving.nxt)
    }

    fn receive_syn(&mut self, syn: &Incoming) {
        self.receiving.irs = syn.seq;
        self.receiving.nxt = syn.seq.wrapping_add(1);
        self.receiving.edge = self.receiving.nxt;
        if let Some(mss) = syn.mss {
            self.sending.mss = mss.clamp(LEAST_MSS, self.own_mss.max(LEAST_MSS));
        }
        self.scale = syn.scale.map(|scale| (scale.min(MAX_SCALE), SCALE));
        self.sending.window = u32::from(syn.window);
        self.sending.window_set = (syn.seq, self.sending.una);
    }

    /// The SYN, or the SYN-ACK.
    fn send_syn(&mut self, context: &mut Context<'_>) {
        let accepts = self.state == State::SynReceived;
        let window = self.receiving.room.min(u32::from(u16::MAX)) as u16;
        self.receiving.edge = self.receiving.nxt.wrapping_add(u32::from(window));
        // A SYN offers to scale; the answer scales if the guest offered it (RFC 7323, 2.2).
        let scale = (!accepts || self.scale.is_some()).then_some(SCALE);
        let segment = Segment {
            seq: self.sending.iss,
            ack: if accepts { self.receiving.nxt } else { 0 },
            flags: if accepts { SYN | ACK } else { SYN },
            window,
            options: Some((self.own_mss, scale)),
            ..Segment::default()
        };
        context.act(Action::Frame(self.ends.tcp(&segment)));
        self.sending.nxt = self.sending.iss.wrapping_add(1);
        self.sending.max = self.sending.nxt;
        self.timer.start(context.now);
    }

    /// Moves the edge of the window as far as the send buffer has room, and returns the field.
    fn advertise(&mut self) -> u16 {
        let shift = self.scale.map_or(0, |(_, own)| own);
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
        self.ends.tcp(&Segment {
            seq,
            ack: self.receiving.nxt,
            flags: flags | ACK,
            window,
            options: None,
            payload,
            mss: self.sending.mss,
        })
    }

    fn send_ack(&mut self, context: &mut Context<'_>) {
        let headers = self.headers(self.sending.nxt, 0, 0);
        context.act(Action::Frame(headers));
    }

    /// A byte that the guest has: it answers with where it stands (RFC 9293, section 3.8.4).
    fn send_probe(&mut self, context: &mut Context<'_>) {
        let headers = self.headers(self.sending.una.wrapping_sub(1), 0, 0);
        context.act(Action::Frame(headers));
        self.timer.keep_alive(context.now);
    }

    /// Tells the guest that the connection is gone, and forgets it.
    fn reset_guest(&mut self, context: &mut Context<'_>) {
        let seq = if self.state == State::Connecting {
            0
        } else {
            self.sending.nxt
        };
        let headers = self.headers(seq, RST, 0);
        context.act(Action::Frame(headers));
        self.state = State::Closed;
    }

    /// Closes the socket with a reset.
    fn reset_peer(&mut self, context: &mut Context<'_>) {
        context.act(Action::Close {
            flow: context.id,
            reset: true,
        });
        self.state = State::Closed;
    }

    /// The host's socket is connected.
    pub(crate) fn socket_connected(&mut self, room: u32, context: &mut Context<'_>) {
        if self.state == State::Connecting {
            self.state = State::SynReceived;
            self.receiving.room = room;
            self.send_syn(context);
        }
    }

    /// The host's socket failed, or its peer reset it.
    pub(crate) fn socket_failed(&mut self, context: &mut Context<'_>) {
        if !matches!(self.state, State::Late | State::Closed) {
            context.act(Action::Close {
                flow: context.id,
                reset: false,
            });
            self.reset_guest(context);
        }
    }

    /// The socket has something to read.
    pub(crate) fn socket_readable(&mut self, context: &mut Context<'_>) {
        self.sending.readable = true;
        self.pump(context);
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

    /// Bytes of a segment went to the socket.
    pub(crate) fn socket_sent(&mut self, taken: u32, room: u32, context: &mut Context<'_>) {
        let Some((len, fin)) = self.receiving.pending.take() else {
            return;
        };
        let taken = taken.min(len);
        self.receiving.nxt = self.receiving.nxt.wrapping_add(taken);
        self.receiving.room = room;
        if taken == len && fin {
            self.receive_fin(context);
        }
        self.send_ack(context);
        self.watch_room(context);
        self.finish(context);
    }

    fn receive_fin(&mut self, context: &mut Context<'_>) {
        self.receiving.nxt = self.receiving.nxt.wrapping_add(1);
        self.receiving.closed = true;
        context.act(Action::Shutdown(context.id));
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

    fn segment_in_syn_sent(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let acks = segment.flags & ACK != 0;
        if !acks || segment.ack != self.sending.nxt {
            if acks && segment.flags & RST == 0 {
                let headers = self.ends.tcp(&Segment {
                    seq: segment.ack,
                    flags: RST,
                    ..Segment::default()
                });
                context.act(Action::Frame(headers));
            }
            return;
        }
        if segment.flags & RST != 0 {
            return self.reset_peer(context);
        }
        if segment.flags & SYN == 0 {
            return;
        }
        self.receive_syn(segment);
        self.connected = false;
        self.establish(segment, context);
        self.send_ack(context);
        self.pump(context);
    }

    fn establish(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        self.state = State::Open;
        self.sending.una = self.sending.nxt;
        self.sending.window_set = (segment.seq, segment.ack);
        self.sending.readable = true;
        self.timer.idle(context.now);
        context.act(Action::Keep(context.id));
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
            // A challenge (RFC 5961, section 4).
            return self.send_ack(context);
        }
        if segment.flags & ACK == 0 {
            return;
        }
        if self.state == State::SynReceived {
            if segment.ack != self.sending.nxt {
                let seq = segment.ack;
                let headers = self.headers(seq, RST, 0);
                return context.act(Action::Frame(headers));
            }
            self.establish(segment, context);
        }
        // An acknowledgement of what was never sent, or one that is older than any window (RFC
        // 5961, section 5), and a segment behind the window.
        let oldest = self.sending.una.wrapping_sub(1 << 30);
        if after(segment.ack, self.sending.max)
            || before(segment.ack, oldest)
            || after(segment.seq, self.receiving.edge)
            || before(segment.seq, nxt.wrapping_sub(1 << 30))
        {
            return self.send_ack(context);
        }
        self.timer.heard(context.now);
        self.receive_ack(segment, context);
        self.receive_payload(segment, context);
        self.finish(context);
        if self.state == State::Open {
            self.pump(context);
        }
    }

    /// A reset counts at the next byte alone; elsewhere in the window it is challenged (RFC 5961,
    /// section 3).
    fn receive_reset(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let at = segment.seq.wrapping_sub(self.receiving.nxt);
        if at == 0 {
            self.reset_peer(context);
        } else if at < self.receiving.edge.wrapping_sub(self.receiving.nxt) {
            self.send_ack(context);
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
        if !before(segment.seq, seq) && !before(segment.ack, ack) {
            sending.window = window;
            sending.window_set = (segment.seq, segment.ack);
        }
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
    }

    fn acknowledge(&mut self, ack: u32, context: &mut Context<'_>) {
        let sending = &mut self.sending;
        let fin = u32::from(sending.end.is_some_and(|end| after(ack, end)));
        let bytes = ack.wrapping_sub(sending.una).wrapping_sub(fin);
        sending.una = ack;
        if before(sending.nxt, ack) {
            sending.nxt = ack;
        }
        sending.duplicates = 0;
        // A partial acknowledgement tells the next loss (RFC 6582, section 3.2).
        sending.recover = sending.recover.filter(|recover| before(ack, *recover));
        sending.again = sending.recover.is_some();
        self.timer.acknowledged(ack, context.now);
        if bytes > 0 {
            context.act(Action::Discard(context.id, bytes));
        }
        if self.sending.una == self.sending.max {
            self.timer.idle(context.now);
        }
    }

    fn receive_payload(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let fin = segment.flags & FIN != 0;
        let len = segment.payload.len;
        if len == 0 && !fin {
            // A probe: a byte that we have is announced.
            if before(segment.seq, self.receiving.nxt) {
                self.send_ack(context);
            }
            return;
        }
        let skip = self.receiving.nxt.wrapping_sub(segment.seq);
        let open = self.receiving.edge.wrapping_sub(self.receiving.nxt);
        let is_old = skip > len || (skip == len && !fin);
        if is_old || self.receiving.closed || self.receiving.pending.is_some() {
            return self.send_ack(context);
        }
        let rest = len - skip;
        let take = rest.min(open);
        if rest == 0 {
            self.receive_fin(context);
            return self.send_ack(context);
        }
        if take == 0 {
            self.send_ack(context);
            return self.watch_room(context);
        }
        self.receiving.pending = Some((take, fin && take == rest));
        let payload = Payload {
            start: segment.payload.start + skip,
            len: take,
        };
        context.act(Action::Send(context.id, payload));
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

    /// What to peek next.
    pub(crate) fn peek(&mut self, now: Nanos) -> Option<Peek> {
        let wanted = self.wanted();
        if wanted.is_none() {
            self.sending.announced = false;
            self.watch_window(now);
        }
        wanted
    }

    fn wanted(&self) -> Option<Peek> {
        if self.state != State::Open {
            return None;
        }
        let sending = &self.sending;
        let peek = |offset: u32, len: u32| {
            let headers = self.ends.tcp_len();
            (len > 0).then_some(Peek {
                offset,
                len,
                headers,
            })
        };
        let last = sending.end.unwrap_or(sending.max);
        let sent = if before(last, sending.una) {
            0
        } else {
            last.wrapping_sub(sending.una)
        };
        let mss = u32::from(sending.mss);
        if sending.again {
            let limit = if sending.window == 0 {
                1
            } else {
                mss.min(sending.window)
            };
            let known = if sent == 0 && sending.readable {
                limit
            } else {
                sent
            };
            return peek(0, known.min(limit));
        }
        let offset = sending.nxt.wrapping_sub(sending.una);
        let open = sending.window.saturating_sub(offset);
        let left = match sending.end {
            Some(_) => sent.saturating_sub(offset),
            None if sending.readable => u32::MAX,
            None => sent.saturating_sub(offset),
        };
        // No small segment while others are on their way (RFC 9293, section 3.8.6.2.1).
        if open < mss.min(left) && offset > 0 {
            return None;
        }
        let most = if self.super_frames {
            self.ends.longest() / mss * mss
        } else {
            mss
        };
        peek(offset, open.min(most).min(left))
    }

    /// What was peeked: the headers to put in front.
    pub(crate) fn peeked(
        &mut self,
        peek: Peek,
        peeked: Peeked,
        context: &mut Context<'_>,
    ) -> Option<Headers> {
        if self.state != State::Open {
            return None;
        }
        let seq = self.sending.una.wrapping_add(peek.offset);
        let again = std::mem::take(&mut self.sending.again);
        let len = match peeked {
            Peeked::Bytes(len) => len.min(peek.len),
            Peeked::Empty => {
                self.sending.readable = false;
                return None;
            }
            Peeked::End => {
                self.sending.readable = false;
                if before(seq, self.sending.max) {
                    return None;
                }
                self.sending.end = Some(seq);
                self.pump(context);
                return None;
            }
        };
        let end = seq.wrapping_add(len);
        if !again || after(end, self.sending.nxt) {
            self.sending.nxt = end;
        }
        if after(end, self.sending.max) {
            self.sending.max = end;
            self.timer.sample(end, context.now);
        }
        self.timer.start_if_idle(context.now);
        Some(self.headers(seq, PSH, len))
    }

    /// Announces what is to be peeked, and sends the FIN when it is next.
    fn pump(&mut self, context: &mut Context<'_>) {
        if self.state != State::Open {
            return;
        }
        if self.sending.end == Some(self.sending.nxt) {
            self.sending.again = false;
            let headers = self.headers(self.sending.nxt, FIN, 0);
            context.act(Action::Frame(headers));
            self.sending.nxt = self.sending.nxt.wrapping_add(1);
            self.sending.max = self.sending.nxt;
            self.timer.start_if_idle(context.now);
        }
        if self.wanted().is_some() {
            if !self.sending.announced {
                self.sending.announced = true;
                context.act(Action::Ready(context.id));
            }
        } else {
            self.watch_window(context.now);
        }
    }

    /// A closed window is probed, also when nothing is on its way (RFC 9293, section 3.8.6.1).
    fn watch_window(&mut self, now: Nanos) {
        if self.state == State::Open && self.sending.window == 0 && self.has_more() {
            self.timer.start_if_idle(now);
        }
    }

    fn has_more(&self) -> bool {
        self.sending.readable || self.sending.max != self.sending.una
    }

    /// The deadline has passed.
    pub(crate) fn expire(&mut self, context: &mut Context<'_>) {
        match self.state {
            State::Late | State::Closed => self.state = State::Closed,
            State::Connecting => self.timer.deadline = None,
            State::SynSent | State::SynReceived => {
                if self.timer.back_off(context.now, timer::SYN_TRIES) {
                    self.send_syn(context);
                } else {
                    self.reset_peer(context);
                }
            }
            State::Open => self.expire_open(context),
        }
    }

    fn expire_open(&mut self, context: &mut Context<'_>) {
        let is_shut_out = self.sending.window == 0 && self.sending.readable;
        let is_idle = self.sending.max == self.sending.una && !is_shut_out;
        if is_idle {
            if self.timer.tries < timer::PROBES {
                self.send_probe(context);
            } else {
                self.give_up(context);
            }
            return;
        }
        if !self.timer.back_off(context.now, timer::TRIES) {
            return self.give_up(context);
        }
        let sending = &mut self.sending;
        sending.duplicates = 0;
        sending.recover = None;
        sending.announced = false;
        sending.again = sending.window == 0;
        if sending.window > 0 || sending.end == Some(sending.una) {
            sending.nxt = sending.una;
        }
        self.pump(context);
    }

    fn give_up(&mut self, context: &mut Context<'_>) {
        let headers = self.headers(self.sending.nxt, RST, 0);
        context.act(Action::Frame(headers));
        self.reset_peer(context);
    }
}
