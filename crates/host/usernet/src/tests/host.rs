//! A model of the host's sockets, and of the driver that carries out actions.

use std::collections::VecDeque;

use wire::{MacAddr, Sum, arp, build::PacketBuilder, checksum, virtio::net::NetHeader};

use super::GATEWAY;
use crate::{
    Action, FlowId, Headers, Nanos, Payload, PeekResult, SocketEvent, Translator, Verdict,
};

/// One connected socket: the host's end, and the server behind it.
#[derive(Debug, Default)]
pub(super) struct Socket {
    /// The bytes that the server has read.
    pub(super) read: Vec<u8>,
    /// Bytes in the send buffer.
    pub(super) queued: VecDeque<u8>,
    /// Size of the send buffer.
    pub(super) buffer: usize,
    /// The bytes that the server sends in all, and how much of it has been discarded.
    pub(super) script: Vec<u8>,
    pub(super) discarded: usize,
    /// How much has arrived.
    pub(super) arrived: usize,
    pub(super) shut: bool,
    /// The server closes when it has read so much.
    pub(super) closes_after: usize,
    pub(super) closed: Option<bool>,
    pub(super) awaits_room: bool,
    /// Place of an urgent byte in what the server sends.
    pub(super) urgent: Option<usize>,
}

impl Socket {
    fn room(&self) -> u32 {
        (self.buffer - self.queued.len()) as u32
    }

    /// Takes bytes of the guest, as many as there is room for.
    fn take(&mut self, bytes: &[u8]) -> u32 {
        let taken = bytes.len().min(self.room() as usize);
        self.queued.extend(&bytes[..taken]);
        taken as u32
    }

    fn has_ended(&self) -> bool {
        self.arrived == self.script.len() && self.read.len() >= self.closes_after
    }

    /// Reads without consuming, from the first byte on, as a driver does on a kernel without peek
    /// offsets: so the read stops in front of an urgent byte.
    fn peek(&self, offset: u32, len: u32) -> (PeekResult, Vec<u8>) {
        let start = self.discarded + offset as usize;
        assert!(start <= self.arrived, "peeked behind what has arrived");
        let end = self.arrived.min(start + len as usize);
        let stop = self.urgent.filter(|urgent| *urgent > self.discarded);
        let end = stop.map_or(end, |stop| end.min(stop)).max(start);
        let bytes = self.script[start..end].to_vec();
        let peeked = match bytes.len() {
            0 if self.has_ended() => PeekResult::End,
            0 => PeekResult::Empty,
            len => PeekResult::Bytes(len as u32),
        };
        (peeked, bytes)
    }
}

/// The driver, with at most one socket.
pub(super) struct Host {
    pub(super) translator: Translator,
    pub(super) now: Nanos,
    pub(super) socket: Socket,
    pub(super) flow: Option<FlowId>,
    pub(super) ready: bool,
    /// Bytes of frames that leave by one call, if they do.
    pub(super) waiting: Option<Vec<u8>>,
    /// Frames for the guest.
    pub(super) frames: Vec<Vec<u8>>,
    pub(super) verdict: Verdict,
}

impl Host {
    pub(super) fn new(translator: Translator, now: Nanos, socket: Socket) -> Self {
        Self {
            translator,
            now,
            socket,
            flow: None,
            ready: false,
            waiting: None,
            frames: Vec::new(),
            verdict: Verdict::Done,
        }
    }

    /// A frame of the guest.
    pub(super) fn frame(&mut self, frame: &[u8]) {
        let mut out = Vec::new();
        let headers = &frame[..frame.len().min(wire::SNAPSHOT)];
        let net = NetHeader::default();
        self.verdict = self
            .translator
            .frame(self.now, headers, frame.len(), &net, &mut out);
        if self.verdict == Verdict::Service {
            self.answer_arp(frame);
        }
        self.act(out, frame);
    }

    fn answer_arp(&mut self, frame: &[u8]) {
        let Ok(request) = arp::ArpView::new_checked(&frame[14..]) else {
            return;
        };
        let to: MacAddr = request.sender_mac();
        let answer = PacketBuilder::new(GATEWAY, to);
        let answer = answer.arp(arp::REPLY, request.target_ip(), to, request.sender_ip());
        self.frames.push(answer.build());
    }

    pub(super) fn act(&mut self, actions: Vec<Action>, frame: &[u8]) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let mut out = Vec::new();
            match action {
                Action::Connect(flow, _) => {
                    self.flow = Some(flow);
                    let room = self.socket.room();
                    self.report(flow, SocketEvent::Connected { room }, &mut out);
                }
                Action::Send(_, Payload { start, len }) => {
                    let bytes = &frame[start as usize..(start + len) as usize];
                    match &mut self.waiting {
                        Some(waiting) => waiting.extend(bytes),
                        None => self.send(bytes, &mut out),
                    }
                }
                Action::Discard(_, bytes) => {
                    self.socket.discarded += bytes as usize;
                    assert!(self.socket.discarded <= self.socket.arrived);
                }
                Action::Ready(_) => self.ready = true,
                Action::Frame(headers) => self.push(headers, &[]),
                Action::AwaitRoom(_) => self.socket.awaits_room = true,
                Action::Shutdown(_) => self.socket.shut = true,
                Action::Close { reset, .. } => {
                    let bytes = self.waiting.as_mut().map(std::mem::take);
                    self.socket.take(&bytes.unwrap_or_default());
                    self.socket.closed = Some(reset);
                }
                Action::Keep(_) | Action::Probe(..) | Action::Ask(..) | Action::Notify(..) => {}
                Action::OpenUdp(..) | Action::SendTo { .. } => unreachable!("TCP alone"),
            }
            for action in out.into_iter().rev() {
                actions.push_front(action);
            }
        }
    }

    /// Bytes of the guest go to the socket.
    fn send(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let Some(flow) = self.flow else { return };
        let taken = self.socket.take(bytes);
        let room = self.socket.room();
        self.report(flow, SocketEvent::Sent { taken, room }, out);
    }

    /// Sends the bytes that wait.
    pub(super) fn flush(&mut self) {
        let Some(waiting) = self.waiting.as_mut().map(std::mem::take) else {
            return;
        };
        if !waiting.is_empty() {
            let mut out = Vec::new();
            self.send(&waiting, &mut out);
            self.act(out, &[]);
        }
    }

    fn report(&mut self, flow: FlowId, event: SocketEvent, out: &mut Vec<Action>) {
        self.translator.socket(self.now, flow, event, out);
    }

    /// A socket event from outside of the translator.
    pub(super) fn event(&mut self, event: SocketEvent) {
        let Some(flow) = self.flow else { return };
        let mut out = Vec::new();
        self.report(flow, event, &mut out);
        self.act(out, &[]);
    }

    /// Completes the checksum, as a receiver of virtio would take it as given.
    fn push(&mut self, headers: Headers, payload: &[u8]) {
        let mut frame = headers.bytes().to_vec();
        let net = headers.net();
        let sum = Sum::of(payload);
        checksum::complete_partial(&mut frame, net.csum_start, net.csum_offset, sum).unwrap();
        frame.extend(payload);
        self.frames.push(frame);
    }

    /// Peeks up to `most` frames.
    pub(super) fn serve(&mut self, most: usize) {
        let Some(flow) = self.flow else { return };
        for _ in 0..most {
            if !self.ready {
                return;
            }
            let Some(peek) = self.translator.peek(self.now, flow) else {
                self.ready = false;
                return;
            };
            let (peeked, bytes) = self.socket.peek(peek.offset, peek.len);
            let mut out = Vec::new();
            let headers = self
                .translator
                .peeked(self.now, flow, peek, peeked, &mut out);
            if let Some(headers) = headers {
                assert_eq!(headers.bytes().len(), usize::from(peek.headers));
                self.push(headers, &bytes);
            }
            self.act(out, &[]);
        }
    }

    /// The server reads `read` bytes and sends `sent`; deadlines pass.
    pub(super) fn step(&mut self, read: usize, sent: usize) {
        let socket = &mut self.socket;
        let read = read.min(socket.queued.len());
        socket.read.extend(socket.queued.drain(..read));
        let room = socket.room();
        if read > 0 && socket.awaits_room && room as usize >= socket.buffer / 3 {
            socket.awaits_room = false;
            self.event(SocketEvent::Room { room });
        }
        let sent = if self.flow.is_some() { sent } else { 0 };
        let socket = &mut self.socket;
        let arrived = socket.script.len().min(socket.arrived + sent);
        let is_new = arrived > socket.arrived || socket.has_ended();
        let is_urgent = (socket.arrived..arrived).any(|at| Some(at) == socket.urgent);
        socket.arrived = arrived;
        if is_urgent {
            self.event(SocketEvent::Urgent);
        } else if is_new {
            self.event(SocketEvent::Readable);
        }
        if self
            .translator
            .deadline()
            .is_some_and(|deadline| deadline <= self.now)
        {
            let mut out = Vec::new();
            self.translator.expire(self.now, &mut out);
            self.act(out, &[]);
        }
    }
}
