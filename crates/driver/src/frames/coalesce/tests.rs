//! The frames that an interface makes of what is written to it, by the code that the switch cuts
//! with, are those that came.

use std::slice;

use proptest::prelude::*;
use wire::build::{PacketBuilder, TcpFields};
use wire::checksum::complete_partial;
use wire::segment::{GsoKind, Segmenter};
use wire::{MacAddr, VlanTci, tcp};

use super::*;
use wire::packet::Parsed;

/// A frame with its virtio header, and the flow whose order it must keep.
#[derive(Clone)]
struct Sent {
    header: NetHeader,
    frame: Vec<u8>,
    /// None: it may be of any flow.
    flow: Option<usize>,
}

impl Sent {
    fn bytes(&self) -> Vec<u8> {
        [&self.header.encode()[..], &self.frame].concat()
    }

    /// The frame as the last receiver sees it.
    fn completed(&self) -> Vec<u8> {
        let mut frame = self.frame.clone();
        if self.header.needs_csum() && self.header.gso_type == net::GSO_NONE {
            let NetHeader {
                csum_start,
                csum_offset,
                ..
            } = self.header;
            complete_partial(&mut frame, csum_start, csum_offset, Sum::new()).expect("a checksum");
        }
        without_meaning(&mut frame);
        frame
    }
}

/// Clears an identification that has no meaning, with the checksum over it. A checksum of TCP that
/// is zero may also be written as 0xffff, the same number.
fn without_meaning(frame: &mut [u8]) {
    let p = Parsed::parse(frame, frame.len());
    let l3 = usize::from(p.l3_offset);
    if frame.get(l3).is_some_and(|byte| byte >> 4 == 4) && frame[l3 + 6] & 0x40 != 0 {
        frame[l3 + 4..l3 + 6].fill(0);
        frame[l3 + 10..l3 + 12].fill(0);
    }
    if let (6, Some(l4)) = (p.l4_proto, p.l4_offset) {
        let at = usize::from(l4) + 16;
        if let Some(sum) = frame.get_mut(at..at + 2)
            && *sum == [0xff; 2]
        {
            sum.fill(0);
        }
    }
}

/// The frames in their new order, and what is sent for each group.
fn coalesced(sent: &[Sent], coalescer: &mut Coalescer) -> (Vec<usize>, Vec<Vec<u8>>) {
    let mut memory: Vec<Vec<u8>> = sent.iter().map(Sent::bytes).collect();
    let outgoing = (0..).zip(&mut memory).map(|(id, bytes)| {
        let len = bytes.len() as u32;
        bytes.resize(BUFFER as usize, 0x11);
        let buffer = bytes.as_mut_ptr();
        Outgoing { id, buffer, len }
    });
    let mut outgoing: Vec<Outgoing> = outgoing.collect();
    coalescer.arrange(&mut outgoing, true);
    let (mut rest, mut writes, mut pieces) = (&outgoing[..], Vec::new(), Vec::new());
    for group in coalescer.groups() {
        let (frames, behind) = rest.split_at(group.count);
        rest = behind;
        pieces.clear();
        coalescer.describe(group, frames, net::LEN, &mut pieces);
        let bytes = pieces.iter().flat_map(|piece| {
            // SAFETY: the pieces are of the group and of `memory`, which nothing writes.
            unsafe { slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
        });
        writes.push(bytes.copied().collect());
    }
    assert!(rest.is_empty());
    let order = outgoing.iter().map(|frame| usize::from(frame.id)).collect();
    (order, writes)
}

/// The frames that an interface makes of what is written to it.
fn cut(write: &[u8]) -> Vec<Vec<u8>> {
    let (header, frame) = write.split_first_chunk().expect("a header");
    let header = NetHeader::decode(header);
    let (headers, payload) = frame.split_at(header.hdr_len.into());
    let parsed = Parsed::parse(headers, frame.len());
    let kind = match (header.gso_type, parsed.l3) {
        (net::GSO_TCPV4, _) => GsoKind::Tcp4,
        (net::GSO_TCPV6, _) => GsoKind::Tcp6,
        (net::GSO_UDP_L4, wire::packet::L3::V4 { .. }) => GsoKind::Udp4,
        (net::GSO_UDP_L4, _) => GsoKind::Udp6,
        other => panic!("{other:?}"),
    };
    // What the kernel relies on: the sum over the pseudo-header of the whole.
    let l4 = parsed.l4_offset.expect("a transport header");
    assert_eq!(
        (header.flags, header.csum_start),
        (net::FLAG_NEEDS_CSUM, l4)
    );
    let field = usize::from(l4 + header.csum_offset);
    let pseudo = parsed
        .pseudo_header(parsed.l4_len().unwrap())
        .unwrap()
        .fold();
    assert_eq!(frame[field..field + 2], pseudo.to_be_bytes());
    let ip = &frame[parsed.l3_offset.into()..l4.into()];
    assert!(!kind.is_v4() || Sum::of(ip).finish() == 0);
    let gso = Segmenter::new(headers, payload.len(), header.gso_size, kind, false).expect("rules");
    let frames = gso.iter().map(|segment| {
        let mut out = vec![0; headers.len()];
        segment.write_headers(&mut out);
        let payload = &payload[segment.payload_range()];
        segment.finish_checksum(&mut out, Sum::of(payload));
        out.extend(payload);
        without_meaning(&mut out);
        out
    });
    frames.collect()
}

/// Checks a batch; returns the number of frames of each group.
fn check(sent: &[Sent], coalescer: &mut Coalescer) -> Vec<usize> {
    let (order, writes) = coalesced(sent, coalescer);
    let counts: Vec<usize> = coalescer.groups().iter().map(|group| group.count).collect();
    let mut left = order.iter();
    for (write, count) in writes.iter().zip(&counts) {
        let of: Vec<&Sent> = left.by_ref().take(*count).map(|id| &sent[*id]).collect();
        if let [single] = of[..] {
            assert_eq!(*write, single.bytes(), "a frame alone is as it was");
            continue;
        }
        let expected: Vec<_> = of.iter().map(|sent| sent.completed()).collect();
        assert_eq!(cut(write), expected);
    }
    assert!(left.next().is_none());
    for (at, id) in order.iter().enumerate() {
        for later in &order[at + 1..] {
            let (one, other) = (sent[*id].flow, sent[*later].flow);
            let ordered = one.is_none() || other.is_none() || one == other;
            assert!(!ordered || id < later, "{later} after {id}");
        }
    }
    let mut all = order;
    all.sort_unstable();
    assert!(all.into_iter().eq(0..sent.len()));
    counts
}

/// Difference of a frame from the one before it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Oddity {
    None,
    Id,
    Fixed,
    Forbidden,
    Ttl,
    Tos,
    Padding,
    Fragment,
    Extension,
    Options,
    Flags(u16),
    Gap,
    Super,
    Tag,
    IpChecksum,
    UdpLength,
    Icmp,
    Arp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Checksum {
    Partial,
    Complete,
    Wrong,
    WrongPartial,
    Missing,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    flow: usize,
    oddity: Oddity,
    checksum: Checksum,
    len: usize,
}

/// State of a flow's sender.
#[derive(Clone, Copy, Default)]
struct Sender {
    id: u16,
    seq: u32,
}

fn build(step: Step, sender: &mut Sender, fill: u8) -> Sent {
    let Step {
        flow,
        oddity,
        checksum,
        len,
    } = step;
    let (is_tcp, is_v6, is_tagged) = (flow % 2 == 0, flow % 4 > 1, flow > 3);
    let mac = MacAddr([2, 0, 0, 0, 0, flow as u8]);
    let mut b = PacketBuilder::new(mac, MacAddr([2; 6]));
    if oddity == Oddity::Arp {
        let frame = b.arp_request([1; 4], [2; 4]).build();
        return Sent {
            header: NetHeader::default(),
            frame,
            flow: None,
        };
    }
    b = if is_v6 {
        b.ipv6([1; 16], [flow as u8; 16])
    } else {
        b.ipv4([10, 0, 0, 1], [10, 0, 0, flow as u8])
    };
    if is_tagged != (oddity == Oddity::Tag) {
        b = b.vlan(VlanTci::new(7));
    }
    let payload: Vec<u8> = (0..len).map(|at| at as u8 ^ fill).collect();
    let mut fields = TcpFields {
        src_port: 1,
        dst_port: 2,
        seq: sender.seq,
        ack: 77,
        flags: tcp::ACK,
        options: vec![1; 12],
    };
    sender.seq = sender.seq.wrapping_add(len as u32);
    sender.id = sender.id.wrapping_add(u16::from(oddity != Oddity::Fixed));
    match oddity {
        Oddity::Id => sender.id = sender.id.wrapping_add(5),
        Oddity::Gap => fields.seq = fields.seq.wrapping_add(1),
        Oddity::Flags(flags) => fields.flags ^= flags,
        Oddity::Options => fields.options[0] = 0,
        Oddity::Ttl => b = b.ttl(3),
        Oddity::Tos => b = b.tos(8),
        Oddity::Padding => b = b.pad_to(150 + len),
        Oddity::Extension if is_v6 => b = b.extension(60, &[]),
        Oddity::Fragment => b = b.fragment(u16::from(fill & 1), true),
        Oddity::Forbidden | Oddity::Fixed if !is_v6 => b = b.fragment(0x4000, false),
        _ => {}
    }
    b = match oddity {
        Oddity::Icmp => b.echo_request(1, 2),
        _ if is_tcp => b.tcp(fields),
        _ => b.udp(1, 2),
    };
    b = b.ip_id(sender.id).payload(&payload);
    if matches!(checksum, Checksum::Partial | Checksum::WrongPartial) {
        b = b.partial_checksum();
    }
    spoil(b.build(), step, is_tcp)
}

/// Returns whether a frame shows its flow.
fn is_whole(p: &Parsed) -> bool {
    let transport = [tcp::PROTOCOL, wire::udp::PROTOCOL].contains(&p.l4_proto);
    transport && p.l4_offset.is_some() && p.fragment == wire::packet::Fragment::No
}

/// Makes a frame wrong where it is to be.
fn spoil(mut frame: Vec<u8>, step: Step, is_tcp: bool) -> Sent {
    let Step {
        flow,
        oddity,
        checksum,
        len,
    } = step;
    let p = Parsed::parse(&frame, frame.len());
    let (l3, whole) = (usize::from(p.l3_offset), is_whole(&p));
    let flow = whole.then_some(2 * flow + usize::from(p.vlan.is_some()));
    let mut header = NetHeader::default();
    let (Some(l4), true) = (p.l4_offset, whole) else {
        return Sent {
            header,
            frame,
            flow,
        };
    };
    let (at, csum_offset) = (usize::from(l4), if is_tcp { 16 } else { 6 });
    let field = at + csum_offset;
    match checksum {
        Checksum::Missing if !is_tcp => frame[field..field + 2].fill(0),
        Checksum::Wrong | Checksum::WrongPartial => frame[field] ^= 0x11,
        _ => {}
    }
    if matches!(checksum, Checksum::Partial | Checksum::WrongPartial) {
        header.flags = net::FLAG_NEEDS_CSUM;
        (header.csum_start, header.csum_offset) = (l4, csum_offset as u16);
    }
    match oddity {
        Oddity::Super if header.needs_csum() && len > 10 => {
            header.gso_type = if is_tcp {
                net::GSO_TCPV4
            } else {
                net::GSO_UDP_L4
            };
            (header.gso_size, header.hdr_len) = (10, p.header_len);
        }
        Oddity::IpChecksum if frame[l3] >> 4 == 4 => frame[l3 + 10] ^= 1,
        Oddity::UdpLength if !is_tcp => frame[at + 5] ^= 1,
        _ => {}
    }
    Sent {
        header,
        frame,
        flow,
    }
}

fn step() -> impl Strategy<Value = Step> {
    let odd = prop_oneof![
        prop::sample::select(vec![
            Oddity::Id,
            Oddity::Fixed,
            Oddity::Ttl,
            Oddity::Tos,
            Oddity::Padding,
            Oddity::Fragment,
            Oddity::Extension,
            Oddity::Options,
            Oddity::Gap,
            Oddity::Super,
            Oddity::Tag,
            Oddity::IpChecksum,
            Oddity::UdpLength,
            Oddity::Icmp,
            Oddity::Arp,
        ]),
        (0..8).prop_map(|bit| Oddity::Flags(1u16 << bit)),
    ];
    let oddity = prop_oneof![
        8 => Just(Oddity::None),
        2 => Just(Oddity::Forbidden),
        2 => Just(Oddity::Flags(tcp::PSH)),
        2 => odd,
    ];
    let checksum = prop_oneof![
        6 => Just(Checksum::Partial),
        6 => Just(Checksum::Complete),
        1 => Just(Checksum::Wrong),
        1 => Just(Checksum::WrongPartial),
        1 => Just(Checksum::Missing),
    ];
    let len = prop_oneof![8 => Just(22), 2 => Just(21), 1 => 0..80usize, 1 => Just(1448)];
    (0..8usize, oddity, checksum, len).prop_map(|(flow, oddity, checksum, len)| Step {
        flow,
        oddity,
        checksum,
        len,
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 2000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_comes_out_cut_again_is_what_went_in(
        batches in prop::collection::vec(prop::collection::vec(step(), 0..=BATCH), 1..3),
        flows in 1..=8usize,
        uso: bool,
    ) {
        let mut coalescer = Coalescer::new(uso);
        let mut senders = [Sender { id: 0xfff0, seq: u32::MAX - 100 }; 8];
        for batch in batches {
            let sent = (0u8..).zip(batch).map(|(fill, mut step)| {
                step.flow %= flows;
                build(step, &mut senders[step.flow], fill)
            });
            let sent: Vec<Sent> = sent.collect();
            check(&sent, &mut coalescer);
        }
    }
}

/// So many frames of flow 0 (TCP) or 1 (UDP).
fn stream(flow: usize, count: u8, len: usize, checksum: Checksum) -> Vec<Sent> {
    let mut sender = Sender::default();
    let oddity = Oddity::None;
    let step = Step {
        flow,
        oddity,
        checksum,
        len,
    };
    (0..count)
        .map(|fill| build(step, &mut sender, fill))
        .collect()
}

#[test]
fn a_batch_of_one_flow_is_one_super_frame() {
    for checksum in [Checksum::Partial, Checksum::Complete] {
        for flow in 0..8 {
            let sent = stream(flow, BATCH as u8, 22, checksum);
            assert_eq!(
                check(&sent, &mut Coalescer::new(true)),
                [BATCH],
                "flow {flow}"
            );
        }
    }
    // As many as fit an IP packet.
    let sent = stream(0, BATCH as u8, 1448, Checksum::Partial);
    assert_eq!(check(&sent, &mut Coalescer::new(true)), [45, 19]);
}

#[test]
fn flows_are_told_apart_and_the_last_may_be_shorter() {
    let all = [0, 1, 2, 3].map(|flow| stream(flow, 10, 100, Checksum::Complete));
    let mut mixed: Vec<Sent> = (0..40).map(|at| all[at % 4][at / 4].clone()).collect();
    assert_eq!(check(&mixed, &mut Coalescer::new(true)), [10; 4]);
    let mut udp = stream(1, 5, 100, Checksum::Complete);
    udp[2] = stream(1, 3, 60, Checksum::Complete).remove(2);
    assert_eq!(check(&udp, &mut Coalescer::new(true)), [3, 2]);
    let arp = Step {
        flow: 0,
        oddity: Oddity::Arp,
        checksum: Checksum::Complete,
        len: 0,
    };
    mixed.insert(20, build(arp, &mut Sender::default(), 0));
    let counts = check(&mixed, &mut Coalescer::new(true));
    assert_eq!(counts, [5, 5, 5, 5, 1, 5, 5, 5, 5]);
}

#[test]
fn a_kind_that_is_refused_is_not_made_again() {
    let udp = stream(1, 4, 22, Checksum::Partial);
    let tcp = stream(0, 4, 22, Checksum::Partial);
    assert_eq!(check(&udp, &mut Coalescer::new(false)), [1; 4]);
    assert_eq!(check(&tcp, &mut Coalescer::new(false)), [4]);
    let mut coalescer = Coalescer::new(true);
    let both = [udp, tcp].concat();
    assert_eq!(check(&both, &mut coalescer), [4, 4]);
    coalescer.refuse(1);
    assert_eq!(check(&both, &mut coalescer), [4, 1, 1, 1, 1]);
    coalescer.refuse(4);
    assert_eq!(check(&both, &mut coalescer)[0], 4, "a frame alone");
    coalescer.refuse(0);
    assert_eq!(check(&both, &mut coalescer), [1; 8]);
}
