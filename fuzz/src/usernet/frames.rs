//! Frames of the guest, relative to where its flows are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::build::{PacketBuilder, TcpFields};
use wire::tcp::TcpView;
use wire::{EtherType, MacAddr};

use super::{GATEWAY, Step};

/// Station of the guest.
pub(super) const GUEST: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 15]);
/// Ports of the guest.
const PORTS: usize = 4;

/// The positions of the flows as the guest knows them: for each port, the next byte to it, and the
/// next byte that it is to send.
#[derive(Default)]
pub(super) struct Guest([(u32, u32); PORTS]);

/// The end of the guest that a step means.
pub(super) fn guest(step: Step) -> SocketAddr {
    let ip: IpAddr = match step.0[1] & 4 {
        0 => Ipv4Addr::new(10, 0, 2, 15).into(),
        _ => Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 15).into(),
    };
    SocketAddr::new(ip, 1000 + u16::from(step.0[1] % PORTS as u8))
}

/// The other end: outside, the gateway, the DNS server, or what is never allowed.
pub(super) fn peer(step: Step) -> SocketAddr {
    let (v4, v6) = match step.0[1] >> 3 & 7 {
        0..=3 => ([192, 0, 2, 1], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
        4 => ([10, 0, 2, 2], [0xfd00, 1, 0, 0, 0, 0, 0, 2]),
        5 => ([10, 0, 2, 3], [0xfd00, 1, 0, 0, 0, 0, 0, 3]),
        6 => ([127, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 1]),
        _ => ([169, 254, 169, 254], [0xfe80, 0, 0, 0, 0, 0, 0, 1]),
    };
    let ip: IpAddr = match step.0[1] & 4 {
        0 => Ipv4Addr::from(v4).into(),
        _ => Ipv6Addr::from(v6).into(),
    };
    let ports = [80, 53, 67, 547];
    SocketAddr::new(ip, ports[usize::from(step.0[1] >> 6)])
}

impl Guest {
    /// A segment to the guest.
    pub(super) fn hear(&mut self, tcp: &TcpView<'_>, payload: u32) {
        let flags = u32::from(tcp.flags() & 1 != 0) + u32::from(tcp.flags() & 2 != 0);
        let next = tcp.seq().wrapping_add(payload).wrapping_add(flags);
        self.0[usize::from(tcp.dst_port()) % PORTS] = (next, tcp.ack());
    }

    /// The frame of a step.
    pub(super) fn frame(&self, step: Step) -> Vec<u8> {
        let kind = step.0[0];
        let mut frame = self.builder(step).build();
        // Bytes are changed, or cut off.
        if kind & 0x80 != 0 {
            let place = usize::from(step.0[5]) % frame.len();
            frame[place] = step.0[6];
        }
        if kind & 0x40 != 0 {
            frame.truncate(usize::from(step.0[5]));
        }
        frame
    }

    fn builder(&self, step: Step) -> PacketBuilder {
        let (guest, peer) = (guest(step), peer(step));
        let packet = PacketBuilder::new(GUEST, GATEWAY);
        let packet = packet.ttl(if step.0[6] == 1 { 1 } else { 64 });
        let packet = match (guest.ip(), peer.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => packet.ipv4(from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => packet.ipv6(from, to),
            _ => packet,
        };
        let len = usize::from(step.0[5]) * 4;
        match step.0[0] % 4 {
            0 | 1 => {
                let (ack, seq) = self.0[usize::from(guest.port()) % PORTS];
                let near = |number: u32, by: u8| number.wrapping_add_signed(i32::from(by as i8));
                let fields = TcpFields {
                    src_port: guest.port(),
                    dst_port: peer.port(),
                    seq: near(seq, step.0[3]),
                    ack: near(ack, step.0[4]),
                    flags: step.0[2].into(),
                    options: vec![2, 4, 5, step.0[7], 1, 3, 3, 7],
                };
                packet.tcp(fields).payload(&vec![7; len])
            }
            2 => {
                let packet = packet.udp(guest.port(), peer.port());
                match step.0[2] & 3 {
                    0 => packet.payload(&vec![7; len]),
                    1 => packet.payload(&question(step)),
                    _ => packet.payload(&dhcp(step)),
                }
            }
            _ if step.0[7] & 1 != 0 => self.error(packet, step),
            _ => service(packet, step),
        }
    }

    /// An ICMP error about a packet to the guest.
    fn error(&self, packet: PacketBuilder, step: Step) -> PacketBuilder {
        let (guest, peer) = (guest(step), peer(step));
        let quoted = PacketBuilder::new(GATEWAY, GUEST);
        let quoted = match (peer.ip(), guest.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => quoted.ipv4(from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => quoted.ipv6(from, to),
            _ => quoted,
        };
        let (next, _) = self.0[usize::from(guest.port()) % PORTS];
        let quoted = match step.0[7] & 2 {
            0 => quoted.tcp(TcpFields {
                src_port: peer.port(),
                dst_port: guest.port(),
                seq: next.wrapping_sub(step.number(4)),
                ..TcpFields::default()
            }),
            _ => quoted.udp(peer.port(), guest.port()),
        };
        let quoted = quoted.payload(&[7; 100]).build();
        let mtu = [0, 0, step.0[5], step.0[6]];
        packet
            .icmp(step.0[2], step.0[3], mtu)
            .payload(&quoted[14..])
    }
}

/// A question for `vmN.internal`, or for a name outside.
fn question(step: Step) -> Vec<u8> {
    let header = [0, step.0[3], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let domain = match step.0[4] & 1 {
        0 => &b"\x07example\x00"[..],
        _ => &b"\x08internal\x00"[..],
    };
    let kind = [0, step.0[4] >> 1, 0, 1];
    [&header[..], b"\x03vm1", domain, &kind].concat()
}

fn dhcp(step: Step) -> Vec<u8> {
    let mut body = vec![0; 240];
    body[..3].copy_from_slice(&[1, 1, 6]);
    body[28..34].copy_from_slice(&GUEST.0);
    body[236..].copy_from_slice(&[99, 130, 83, 99]);
    // An address that it has, a relay, options elsewhere, parts of options, or none of a type.
    let bits = step.0[5];
    if bits & 1 != 0 {
        body[12..16].copy_from_slice(&[10, 0, 2, step.0[4]]);
    }
    if bits & 2 != 0 {
        body[24..28].copy_from_slice(&[10, 0, 2, step.0[6]]);
    }
    if bits & 4 != 0 {
        body[108..117].copy_from_slice(&[53, 1, step.0[3], 52, 1, 2, 50, step.0[6], 10]);
        body.extend([52, 1, 1]);
    }
    if bits & 8 == 0 {
        body.extend([53, 1, step.0[3]]);
    }
    match bits & 16 {
        0 => body.extend([50, 4, 10, 0, 2, step.0[4], 255]),
        _ => body.extend([50, 2, 10, 0, 54, step.0[6], 50, 2, 2, step.0[4]]),
    }
    body
}

/// ICMP, ARP, or a message of neighbour discovery.
fn service(packet: PacketBuilder, step: Step) -> PacketBuilder {
    match step.0[2] {
        0 => PacketBuilder::new(GUEST, MacAddr::BROADCAST)
            .arp_request([10, 0, 2, 15], [10, 0, 2, step.0[3]]),
        1 => PacketBuilder::new(GUEST, GATEWAY)
            .ethertype(EtherType::ARP)
            .payload(&[0, 1, 8, 0, 6, 4, 0, step.0[3]]),
        kind => packet
            .ttl(255)
            .icmp(kind, step.0[3], [0; 4])
            .payload(&vec![step.0[4]; usize::from(step.0[5])]),
    }
}
