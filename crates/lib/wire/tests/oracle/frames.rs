//! Random frames: well-formed ones from the builder, and the same with bytes changed.

use proptest::{collection::vec, option, prelude::*};
use wire::{
    EtherType, MacAddr, VlanTci,
    build::{PacketBuilder, TcpFields},
};

/// A frame of any kind, with at most `max_payload` bytes behind its headers.
pub(crate) fn builder(max_payload: usize) -> impl Strategy<Value = PacketBuilder> {
    assemble(transport(), max_payload)
}

/// A frame whose transport header, if it has one, is the builder's own and so has a right checksum.
pub(crate) fn checksummed(max_payload: usize) -> impl Strategy<Value = PacketBuilder> {
    assemble(prop_oneof![3 => tcp_or_udp(), 1 => icmp()], max_payload)
}

fn assemble(
    transport: impl Strategy<Value = Transport>,
    max_payload: usize,
) -> impl Strategy<Value = PacketBuilder> {
    let payload = vec(any::<u8>(), 0..=max_payload);
    (ethernet(), network(), transport, payload).prop_map(|(b, network, transport, payload)| {
        transport.apply(network.apply(b)).payload(&payload)
    })
}

/// A whole datagram with TCP or UDP, tagged or not, with options and extensions.
pub(crate) fn segmentable(max_payload: usize) -> impl Strategy<Value = PacketBuilder> {
    let network = (
        any::<bool>(),
        any::<u8>(),
        any::<u16>(),
        vec(vec(any::<u8>(), 0..20), 0..2),
    );
    let payload = (0..=max_payload, any::<u8>());
    (ethernet(), network, tcp_or_udp(), payload).prop_map(
        |(b, (v4, tos, id, extensions), transport, (len, start))| {
            let b = b.tos(tos).ip_id(id);
            let b = if v4 {
                b.ipv4([10, 1, 2, 3], [192, 168, 0, 9])
            } else {
                b.ipv6([0x20; 16], [0xfe; 16])
            };
            let b = extensions.iter().fold(b, |b, e| b.extension(60, e));
            let payload: Vec<u8> = (0..len)
                .map(|i| start.wrapping_add((i * 31 + i / 251) as u8))
                .collect();
            transport.apply(b).payload(&payload)
        },
    )
}

/// A built frame with up to four bytes changed, cut or padded.
pub(crate) fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((0usize..100, any::<u8>()), 0..4);
    (builder(30), changes, option::weighted(0.3, 0usize..150)).prop_map(|(b, changes, len)| {
        let mut frame = b.build();
        for (at, v) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = v;
            }
        }
        if let Some(len) = len {
            frame.resize(len, 0xa5);
        }
        frame
    })
}

fn ethernet() -> impl Strategy<Value = PacketBuilder> {
    let tci = any::<u16>().prop_map(VlanTci::from_bits);
    (any::<[u8; 6]>(), any::<[u8; 6]>(), option::of(tci)).prop_map(|(src, dst, tci)| {
        let b = PacketBuilder::new(MacAddr(src), MacAddr(dst));
        tci.into_iter().fold(b, PacketBuilder::vlan)
    })
}

#[derive(Clone, Debug)]
enum Network {
    Raw(u16),
    Arp(u16, [u8; 4], [u8; 4]),
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16], Vec<Vec<u8>>),
}

#[derive(Clone, Debug)]
struct Common {
    network: Network,
    tos: u8,
    ttl: u8,
    id: u16,
    fragment: Option<(u16, bool)>,
}

fn network() -> impl Strategy<Value = Common> {
    let kind = prop_oneof![
        1 => any::<u16>().prop_map(Network::Raw),
        1 => any::<(u16, [u8; 4], [u8; 4])>().prop_map(|(op, a, b)| Network::Arp(op, a, b)),
        4 => any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| Network::V4(a, b)),
        4 => (any::<([u8; 16], [u8; 16])>(), vec(vec(any::<u8>(), 0..20), 0..3))
            .prop_map(|((a, b), e)| Network::V6(a, b, e)),
    ];
    let fragment = option::weighted(0.2, (prop_oneof![Just(0), 0u16..0x2000], any::<bool>()));
    (kind, any::<u8>(), any::<u8>(), any::<u16>(), fragment).prop_map(
        |(network, tos, ttl, id, fragment)| Common {
            network,
            tos,
            ttl,
            id,
            fragment,
        },
    )
}

impl Common {
    fn apply(self, b: PacketBuilder) -> PacketBuilder {
        let mut b = b.tos(self.tos).ttl(self.ttl).ip_id(self.id);
        if let Some((offset, more)) = self.fragment {
            b = b.fragment(offset, more);
        }
        match self.network {
            Network::Raw(t) => b.ethertype(EtherType(t)),
            Network::Arp(op, sender, target) => b.arp(op, sender, MacAddr::ZERO, target),
            Network::V4(src, dst) => b.ipv4(src, dst),
            Network::V6(src, dst, extensions) => extensions
                .iter()
                .fold(b.ipv6(src, dst), |b, e| b.extension(60, e)),
        }
    }
}

#[derive(Clone, Debug)]
enum Transport {
    Raw(u8),
    Tcp(TcpFields),
    Udp(u16, u16),
    Icmp(u8, u8, [u8; 4]),
}

fn tcp_or_udp() -> impl Strategy<Value = Transport> {
    let tcp = (
        any::<(u16, u16, u32, u32)>(),
        0u16..0x200,
        vec(any::<u8>(), 0..=40),
    )
        .prop_map(|((src_port, dst_port, seq, ack), flags, options)| {
            Transport::Tcp(TcpFields {
                src_port,
                dst_port,
                seq,
                ack,
                flags,
                options,
            })
        });
    prop_oneof![
        tcp,
        any::<(u16, u16)>().prop_map(|(a, b)| Transport::Udp(a, b))
    ]
}

fn icmp() -> impl Strategy<Value = Transport> {
    any::<(u8, u8, [u8; 4])>().prop_map(|(kind, code, rest)| Transport::Icmp(kind, code, rest))
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![
        1 => any::<u8>().prop_map(Transport::Raw),
        6 => tcp_or_udp(),
        2 => icmp(),
    ]
}

impl Transport {
    fn apply(self, b: PacketBuilder) -> PacketBuilder {
        match self {
            Self::Raw(p) => b.protocol(p),
            Self::Tcp(t) => b.tcp(t),
            Self::Udp(src, dst) => b.udp(src, dst),
            Self::Icmp(kind, code, rest) => b.icmp(kind, code, rest),
        }
    }
}
