//! Random walks near valid connections: a seed says each packet of a trace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::hash::SplitMix64;

use crate::frames::{self, ACK, Ends, FIN, PSH, RST, SYN, Tcp};
use crate::ours::From;

/// A packet of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: From,
    pub(crate) bytes: Vec<u8>,
    /// Whether the kernel holds it back, since more of its datagram comes.
    pub(crate) held: bool,
    /// TCP flags; zero of another packet.
    pub(crate) flags: u8,
    /// TCP sequence and acknowledgement number.
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Whether it has TCP options.
    pub(crate) options: bool,
    /// Whether it acknowledges selectively.
    pub(crate) selective: bool,
    /// In words.
    pub(crate) text: String,
}

/// A trace, in two parts with time between them.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) parts: [Vec<Packet>; 2],
}

/// One end of a TCP connection.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// Next sequence number.
    next: u32,
    /// Highest acknowledgement sent.
    acked: u32,
    /// The limit that the other side has said.
    limit: u32,
    window: u16,
    scale: u8,
    sack: bool,
}

struct Walk {
    random: SplitMix64,
    /// Addresses and ports from side A to side B.
    ends: Ends,
    /// Of side A and side B.
    tcp: [End; 2],
    packets: Vec<Packet>,
    id: u16,
}

/// The trace of a seed. `number` makes addresses that no other trace has.
pub(crate) fn trace(seed: u64, number: u32) -> Trace {
    // Traces of near numbers have nothing in common.
    let start = SplitMix64(seed).number() ^ SplitMix64(u64::from(number) << 32).number();
    let mut random = SplitMix64(start);
    let (host, v6) = (number + 1, random.below(2) == 0);
    let address = |side: u16| -> IpAddr {
        if v6 {
            let [high, low] = [(host >> 16) as u16, host as u16];
            Ipv6Addr::new(0xfd00 | side, 0, 0, 0, 0, 0, high, low).into()
        } else {
            Ipv4Addr::new(10, side as u8, (host >> 8) as u8, host as u8).into()
        }
    };
    let ends = Ends {
        src: (address(1), 1000),
        dst: (address(2), 80),
    };
    let kind = random.below(10);
    let mut walk = Walk {
        random,
        ends,
        tcp: [End::default(); 2],
        packets: Vec::new(),
        id: 1,
    };
    walk.start();
    if kind < 7 {
        walk.open();
    } else {
        walk.middle();
    }
    let part = |walk: &mut Walk| {
        let steps = 6 + walk.random.below(20);
        for _ in 0..steps {
            match kind {
                0..7 => walk.tcp_step(),
                7 => walk.udp_step(),
                8 => walk.icmp_step(),
                _ => match walk.random.below(3) {
                    0 => walk.udp_step(),
                    1 => walk.icmp_step(),
                    _ => walk.tcp_step(),
                },
            }
        }
        std::mem::take(&mut walk.packets)
    };
    let first = part(&mut walk);
    let second = part(&mut walk);
    Trace {
        parts: [first, second],
    }
}

const SIDES: [From; 2] = [From::A, From::B];

impl Walk {
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn ends_of(&self, side: usize) -> Ends {
        if side == 0 {
            self.ends
        } else {
            self.ends.reversed()
        }
    }

    fn push(&mut self, side: usize, bytes: Vec<u8>, text: String) {
        self.packets.push(Packet {
            from: SIDES[side],
            bytes,
            held: false,
            flags: 0,
            seq: 0,
            ack: 0,
            options: false,
            selective: false,
            text,
        });
    }

    fn segment(&mut self, side: usize, tcp: &Tcp) {
        let ends = self.ends_of(side);
        let text = tcp.to_string();
        self.push(side, frames::tcp(ends, tcp), text);
        if let Some(packet) = self.packets.last_mut() {
            packet.flags = tcp.flags;
            (packet.seq, packet.ack) = (tcp.seq, tcp.ack);
            packet.options = !tcp.options.is_empty();
            packet.selective = tcp.options.get(2) == Some(&5);
        }
    }

    /// The sides have their numbers.
    fn start(&mut self) {
        let near_wrap = self.chance(4);
        for side in 0..2 {
            let start = if near_wrap {
                (self.below(4000) as u32).wrapping_sub(2000)
            } else {
                self.random.number() as u32
            };
            let window = self.pick(&[1000, 1000, 5000, 0, 1, 65_535]);
            self.tcp[side] = End {
                next: start,
                acked: 0,
                limit: start,
                window,
                scale: 0,
                sack: false,
            };
        }
    }

    /// Begins a connection in one of its ways.
    fn open(&mut self) {
        match self.below(8) {
            0 => {}
            1 => {
                self.syn(0, false);
                self.syn(1, false);
                self.syn_again(0, true);
                self.syn_again(1, true);
            }
            2 => self.middle(),
            3 => self.syn(0, false),
            4 => {
                self.syn(0, false);
                self.syn(1, true);
            }
            _ => {
                self.syn(0, false);
                self.syn(1, true);
                self.ack(0);
            }
        }
    }

    /// The sides are in the middle of a connection.
    fn middle(&mut self) {
        for side in 0..2 {
            let window = u32::from(self.tcp[side].window);
            let next = self.tcp[side].next;
            self.tcp[1 - side].acked = next;
            self.tcp[side].limit = next.wrapping_add(window);
        }
    }

    fn options(&mut self, side: usize) -> Vec<u8> {
        let mut options = Vec::new();
        self.tcp[side].scale = 0;
        if self.chance(2) {
            let shift = self.pick(&[0, 1, 7, 14, 15]);
            self.tcp[side].scale = shift.min(14);
            options.extend([3, 3, shift, 1]);
        }
        self.tcp[side].sack = self.chance(2);
        if self.tcp[side].sack {
            options.extend([4, 2, 1, 1]);
        }
        if self.chance(4) {
            options.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        match self.below(12) {
            0 => options.extend([5, 1, 1, 1]),
            1 => options.extend([2, 4, 5]),
            2 => options.extend([9, 40, 1, 1]),
            _ => {}
        }
        options
    }

    fn syn(&mut self, side: usize, ack: bool) {
        let options = self.options(side);
        let other = self.tcp[1 - side];
        let own = self.tcp[side];
        let tcp = Tcp {
            flags: if ack { SYN | ACK } else { SYN },
            seq: own.next,
            ack: if ack { other.next } else { 0 },
            window: own.window,
            options,
            ..Tcp::default()
        };
        self.tcp[side].next = own.next.wrapping_add(1);
        if ack {
            self.tcp[side].acked = other.next;
            self.tcp[1 - side].limit = other.next.wrapping_add(own.window.into());
        }
        self.segment(side, &tcp);
    }

    fn syn_again(&mut self, side: usize, ack: bool) {
        self.tcp[side].next = self.tcp[side].next.wrapping_sub(1);
        self.syn(side, ack);
    }

    fn sent(&mut self, side: usize, tcp: Tcp) {
        let shift = if self.tcp[0].scale > 0 && self.tcp[1].scale > 0 {
            self.tcp[side].scale
        } else {
            0
        };
        let window = u32::from(tcp.window) << shift;
        if tcp.flags & ACK != 0 {
            self.tcp[side].acked = tcp.ack;
            self.tcp[1 - side].limit = tcp.ack.wrapping_add(window.max(1));
        }
        self.segment(side, &tcp);
    }

    fn ack(&mut self, side: usize) {
        let (own, other) = (self.tcp[side], self.tcp[1 - side]);
        let tcp = Tcp {
            flags: ACK,
            seq: own.next,
            ack: other.next,
            window: own.window,
            ..Tcp::default()
        };
        self.sent(side, tcp);
    }

    /// A segment of a side, mostly such as it should be.
    fn plain(&mut self, side: usize) -> Tcp {
        let (own, other) = (self.tcp[side], self.tcp[1 - side]);
        let window = match self.below(12) {
            0 => 0,
            1 => self.random.number() as u16,
            _ => own.window,
        };
        let mut options = Vec::new();
        if self.chance(6) {
            options.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        Tcp {
            flags: ACK,
            seq: own.next,
            ack: if self.chance(4) {
                own.acked
            } else {
                other.next
            },
            window,
            options,
            ..Tcp::default()
        }
    }

    fn tcp_step(&mut self) {
        let side = self.below(2) as usize;
        match self.below(40) {
            0..9 => {
                let mut tcp = self.plain(side);
                tcp.flags |= PSH;
                tcp.payload = self.pick(&[1, 10, 100, 1000, 1400, 3000]);
                self.tcp[side].next = tcp.seq.wrapping_add(tcp.payload as u32);
                self.sent(side, tcp);
            }
            9..17 => {
                let tcp = self.plain(side);
                self.sent(side, tcp);
            }
            17..20 => self.again(),
            20..23 => {
                let mut tcp = self.plain(side);
                tcp.flags |= FIN;
                tcp.payload = self.pick(&[0, 0, 10]);
                self.tcp[side].next = tcp.seq.wrapping_add(tcp.payload as u32 + 1);
                self.sent(side, tcp);
            }
            23..26 => self.reset(side),
            26..28 => self.new_syn(side),
            28 => {
                let ack = self.tcp[1 - side].next;
                self.tcp[side].next = self.random.number() as u32;
                self.tcp[1 - side].next = ack;
                self.syn(side, true);
            }
            29..33 => self.edge(side),
            33..35 => self.ack_edge(side),
            35 => self.selective(side),
            36 => self.odd_flags(side),
            37 => self.wrong_checksum(side),
            _ => self.error(),
        }
    }

    /// A packet once more.
    fn again(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        let recent = self.packets.len().min(6);
        let at = self.packets.len() - 1 - self.below(recent as u64) as usize;
        let mut packet = self.packets[at].clone();
        packet.text = format!("again: {}", packet.text);
        if !packet.text.contains("piece") {
            self.packets.push(packet);
        }
    }

    fn reset(&mut self, side: usize) {
        let (own, other) = (self.tcp[side], self.tcp[1 - side]);
        let seq = match self.below(8) {
            0..3 => own.next,
            3 => other.acked,
            4 => own.next.wrapping_add(self.pick(&[1, 100, 900, 100_000])),
            5 => other.acked.wrapping_sub(self.pick(&[1, 100, 70_000])),
            6 => 0,
            _ => self.random.number() as u32,
        };
        let (flags, ack) = match self.below(4) {
            0 => (RST, 0),
            1 => (RST | ACK, 0),
            2 => (RST | ACK, own.acked),
            _ => (RST | ACK, other.next),
        };
        let tcp = Tcp {
            flags,
            seq,
            ack,
            window: self.pick(&[0, own.window]),
            ..Tcp::default()
        };
        self.segment(side, &tcp);
    }

    fn new_syn(&mut self, side: usize) {
        let answered = self.chance(2);
        if self.chance(4) {
            self.syn_again(side, false);
        } else {
            let own = self.tcp[side].next;
            self.tcp[side].next = match self.below(3) {
                0 => own.wrapping_add(self.pick(&[10, 100_000])),
                _ => self.random.number() as u32,
            };
            self.syn(side, false);
        }
        if answered {
            match self.below(4) {
                0 | 1 => {
                    if self.chance(2) {
                        self.tcp[1 - side].next = self.random.number() as u32;
                    }
                    self.syn(1 - side, true);
                }
                2 => self.ack(1 - side),
                _ => {
                    let tcp = Tcp {
                        flags: RST | ACK,
                        ack: self.tcp[side].next,
                        ..Tcp::default()
                    };
                    self.segment(1 - side, &tcp);
                }
            }
            if self.chance(2) {
                self.ack(side);
            }
        }
    }

    /// Data at an edge of the window.
    fn edge(&mut self, side: usize) {
        let mut tcp = self.plain(side);
        let (own, other) = (self.tcp[side], self.tcp[1 - side]);
        tcp.payload = self.pick(&[0, 1, 10, 1400]);
        let near = self.pick(&[0u32, 1, 2, u32::MAX, u32::MAX - 1]);
        let other_window = u32::from(other.window) << other.scale;
        tcp.seq = match self.below(5) {
            0 => own.limit,
            1 => own.limit.wrapping_sub(tcp.payload as u32),
            2 => own
                .next
                .wrapping_sub(other_window)
                .wrapping_sub(tcp.payload as u32),
            3 => own
                .limit
                .wrapping_add(other_window)
                .wrapping_sub(tcp.payload as u32),
            _ => own.next.wrapping_add(self.random.number() as u32 >> 8),
        };
        tcp.seq = tcp.seq.wrapping_add(near);
        let end = tcp.seq.wrapping_add(tcp.payload as u32);
        if (end.wrapping_sub(own.next) as i32) > 0 && self.chance(2) {
            self.tcp[side].next = end;
        }
        self.segment(side, &tcp);
    }

    /// An acknowledgement at an edge of what was sent.
    fn ack_edge(&mut self, side: usize) {
        let mut tcp = self.plain(side);
        let other = self.tcp[1 - side];
        let near = self.pick(&[0u32, 1, 2, u32::MAX, u32::MAX - 1]);
        let from = self.pick(&[0, 66_000, 66_001, 1000, 1 << 24]);
        tcp.ack = other.next.wrapping_sub(from).wrapping_add(near);
        self.segment(side, &tcp);
    }

    fn selective(&mut self, side: usize) {
        let mut tcp = self.plain(side);
        let (own, other) = (self.tcp[side], self.tcp[1 - side]);
        tcp.ack = own.acked;
        let near = self.pick(&[0u32, 1, 1000, u32::MAX]);
        let right = other.next.wrapping_add(near);
        tcp.options = vec![1, 1, 5, 10];
        tcp.options.extend(right.wrapping_sub(10).to_be_bytes());
        tcp.options.extend(right.to_be_bytes());
        if self.chance(3) {
            tcp.options[3] = self.pick(&[18, 9, 2, 1]);
        }
        self.segment(side, &tcp);
    }

    fn odd_flags(&mut self, side: usize) {
        let mut tcp = self.plain(side);
        tcp.flags = self.random.number() as u8;
        self.segment(side, &tcp);
    }

    /// Of a segment that opens or closes.
    fn wrong_checksum(&mut self, side: usize) {
        let mut tcp = self.plain(side);
        tcp.flags = self.pick(&[SYN, SYN | ACK, FIN | ACK, RST]);
        tcp.wrong_checksum = true;
        self.segment(side, &tcp);
    }

    /// An ICMP error about a packet of the trace.
    fn error(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        let recent = self.packets.len().min(10);
        let at = self.packets.len() - 1 - self.below(recent as u64) as usize;
        let quoted = self.packets[at].clone();
        let v4 = self.ends.src.0.is_ipv4();
        let header = if v4 { 20 } else { 40 };
        let mut inner = quoted.bytes.clone();
        inner.truncate(match self.below(6) {
            0 => header + 8,
            1 => header + 4,
            2 => header + 3,
            3 => header,
            4 => header - 1,
            _ => 68,
        });
        if self.chance(4) && !inner.is_empty() {
            let at = self.below(inner.len().min(header + 4) as u64) as usize;
            inner[at] ^= 1 << self.below(8);
        }
        let quoted_side = usize::from(quoted.from == From::B);
        let side = if self.chance(5) {
            quoted_side
        } else {
            1 - quoted_side
        };
        let (kind, code) = match (v4, self.below(4)) {
            (true, 0) => (11, 0),
            (true, 1) => (12, 0),
            (true, _) => (3, self.pick(&[0, 1, 3, 4])),
            (false, 0) => (3, 0),
            (false, 1) => (2, 0),
            (false, 2) => (4, 1),
            (false, _) => (1, 4),
        };
        let mut rest = vec![0; 4];
        rest.extend(&inner);
        let text = format!(
            "error {kind} quotes {} bytes of: {}",
            inner.len(),
            quoted.text
        );
        let ends = self.ends_of(side);
        self.push(side, frames::icmp(ends, kind, code, &rest), text);
    }

    fn udp_step(&mut self) {
        let side = self.below(2) as usize;
        let mut ends = self.ends_of(side);
        (ends.src.1, ends.dst.1) = if side == 0 { (5000, 53) } else { (53, 5000) };
        if self.chance(5) {
            ends.src.1 ^= 1;
        }
        match self.below(10) {
            0..6 => {
                let len = self.below(100) as usize;
                let bytes = frames::udp_bytes(ends, len, None);
                let text = format!("UDP {}-{} {len}", ends.src.1, ends.dst.1);
                self.push(side, frames::ip(ends, 17, &bytes), text);
            }
            6 => {
                let length = self.pick(&[0, 7, 8, 100]);
                let bytes = frames::udp_bytes(ends, 20, Some(length));
                let text = format!("UDP {}-{} length {length}", ends.src.1, ends.dst.1);
                self.push(side, frames::ip(ends, 17, &bytes), text);
            }
            7 => self.fragments(side, ends),
            8 => self.again(),
            _ => self.error(),
        }
    }

    /// A datagram in pieces, which come in their order.
    fn fragments(&mut self, side: usize, ends: Ends) {
        let bytes = frames::udp_bytes(ends, 100 + self.below(100) as usize, None);
        self.id += 1;
        let cut = 8 * (1 + self.below(8) as usize);
        let pieces = [0..cut, cut..cut + 24, cut + 24..bytes.len()];
        let last = pieces.len() - 1;
        for (number, range) in pieces.into_iter().enumerate() {
            let place = ((range.start / 8) as u16, number != last, self.id);
            let text = format!("UDP {}-{} piece {range:?}", ends.src.1, ends.dst.1);
            let packet = frames::piece(ends, 17, &bytes[range], Some(place));
            self.push(side, packet, text);
            let held = self.packets.len() - 1;
            self.packets[held].held = number != last;
        }
    }

    fn icmp_step(&mut self) {
        let side = self.below(2) as usize;
        let ends = self.ends_of(side);
        let v4 = ends.src.0.is_ipv4();
        let (ask, answer) = match (v4, self.below(6)) {
            (true, 0) => (13, 14),
            (true, 1) => (15, 16),
            (true, 2) => (17, 18),
            (true, _) => (8, 0),
            (false, 0) => (139, 140),
            (false, _) => (128, 129),
        };
        let identifier = self.pick(&[7u16, 7, 7, 8, 0]);
        let mut rest = identifier.to_be_bytes().to_vec();
        rest.extend([0, 1]);
        rest.extend([0; 12]);
        let code = if self.chance(8) { 1 } else { 0 };
        match self.below(12) {
            0..5 => {
                let text = format!("query {ask} {identifier}");
                self.push(side, frames::icmp(ends, ask, code, &rest), text);
            }
            5..9 => {
                let text = format!("answer {answer} {identifier}");
                self.push(side, frames::icmp(ends, answer, code, &rest), text);
            }
            9 => {
                let kind = self.pick(&[1, 2, 6, 9, 10, 19, 40, 200, 150, 255]);
                let error_v6 = !v4 && kind < 128;
                if !error_v6 {
                    let text = format!("ICMP {kind}");
                    self.push(side, frames::icmp(ends, kind, 0, &rest), text);
                }
            }
            10 => self.error(),
            _ => {
                let protocol = self.pick(&[50, 51, 4, 200]);
                if protocol != 51 || v4 {
                    let text = format!("protocol {protocol}");
                    self.push(side, frames::ip(ends, protocol, &[0; 24]), text);
                }
            }
        }
    }
}
