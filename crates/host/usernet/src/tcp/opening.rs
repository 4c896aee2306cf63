//! How a flow begins: a SYN of either side, or the record of a predecessor.

use wire::tcp::{ACK, SYN};

use super::challenge::Challenges;
use super::path::Path;
use super::timer::Timer;
use super::{Context, Flow, Incoming, LostBytes, RST, Receiving, SCALE, Sending, State, Urgent};
use crate::Nanos;
use crate::action::Action;
use crate::headers::{Ends, Segment};
use crate::progress::Progress;
use crate::record::{LEAST_MSS, MAX_SCALE, Record};
use crate::times::Times;

/// Segments that a guest is to take when it names no size (RFC 9293, section 3.7.1), IPv4 and IPv6.
const DEFAULT_MSS: [u16; 2] = [536, 1220];

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
        flow.progress = context.now;
        flow.timer.begin(context.now, context.times.half_open);
        flow.send_syn(context);
        flow
    }

    /// The caller connects the socket. `hops` is the limit of its packets, if it is not the usual
    /// one.
    pub(crate) fn begin(&mut self, now: Nanos, times: &Times, hops: Option<u8>) {
        self.hops = hops;
        self.progress = now;
        self.timer.begin(now, times.half_open);
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
            hops: None,
            sending,
            path: Path::new(ends.guest.is_ipv4()),
            receiving: Receiving::default(),
            challenges: Challenges::default(),
            timer: Timer::default(),
            progress: 0,
        }
    }

    /// A flow from its record and its socket. The guest is asked for its window.
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
        flow.progress = context.now;
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
        receiving.lost = LostBytes::Unknown;
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
        // The peer may have sent some to the predecessor.
        sending.urgent = Urgent::Seen;
        flow.timer.restored(context.now);
        flow.send_probe(context);
        flow.pump(context);
        flow
    }

    /// The part that outlives the process.
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
    pub(super) fn send_syn(&mut self, context: &mut Context<'_>) {
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
        self.sending.retransmissions += u32::from(self.sending.max != self.sending.iss);
        self.sending.nxt = self.sending.iss.wrapping_add(1);
        self.sending.max = self.sending.nxt;
        self.timer.start(context.now);
    }

    pub(super) fn segment_in_syn_sent(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        let acks = segment.flags & ACK != 0;
        if !acks || segment.ack != self.sending.nxt {
            if acks && segment.flags & RST == 0 {
                context.act(Action::Frame(self.ends.reset(segment.ack)));
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

    pub(super) fn establish(&mut self, segment: &Incoming, context: &mut Context<'_>) {
        self.state = State::Open;
        self.progress = context.now;
        self.sending.una = self.sending.nxt;
        self.sending.window_set = (segment.seq, segment.ack);
        self.sending.readable = true;
        let silence = self.silence(&context.times);
        self.timer.established(context.now, silence);
        context.act(Action::Keep(context.id));
    }
}
