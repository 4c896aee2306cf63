//! The frames that an interface makes of what is written to it, by the code that the switch cuts
//! with, are those that came.

use std::slice;

use proptest::prelude::*;
use wire::build::{PacketBuilder, TcpFields};
use wire::checksum::complete_partial;
use wire::segment::{GsoKind, Segmenter};
use wire::{MacAddr, VlanTci, tcp};

use super::*;
use crate::outbox::{HEAD, MAX_HEAD, Outbox};
use wire::packet::ParsedHeaders;

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
    let p = ParsedHeaders::parse(frame, frame.len());
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

/// Groups that left an outbox: the numbers of their frames, and their bytes.
type Left = Vec<(Vec<usize>, Vec<u8>)>;

/// Frames on their way through an outbox, in memory that lives as long.
struct Way<'a> {
    outbox: &'a mut Outbox,
    sent: &'a [Sent],
    memory: Vec<Vec<u8>>,
    left: Left,
}

impl<'a> Way<'a> {
    fn new(outbox: &'a mut Outbox, sent: &'a [Sent]) -> Self {
        outbox.clear();
        Self {
            outbox,
            sent,
            memory: sent.iter().map(Sent::bytes).collect(),
            left: Vec::new(),
        }
    }

    /// Adds a frame: in one piece, or in several, in one of two ways.
    fn push(&mut self, id: usize) {
        while self.outbox.is_full() {
            self.leave(1);
        }
        let bytes = &self.memory[id];
        let (header, frame) = bytes.split_first_chunk().expect("a header");
        let headers = ParsedHeaders::parse(frame, frame.len()).header_len;
        let most = [headers.into(), HEAD, MAX_HEAD][id / 4 % 3];
        let (head, rest) = frame.split_at(frame.len().min(most));
        let pieces = rest.chunks([33, usize::MAX][id / 2 % 2]);
        let pieces = pieces.map(|piece| (piece.as_ptr(), piece.len()));
        let id = id as u16;
        // SAFETY: the memory outlives the outbox's use of it, and nothing writes it.
        let is_added = unsafe {
            if id.is_multiple_of(2) {
                self.outbox
                    .push_whole(id, bytes.as_ptr(), bytes.len() as u32)
            } else {
                self.outbox.push(id, *header, head, pieces)
            }
        };
        assert!(is_added);
    }

    /// So many groups leave.
    fn leave(&mut self, count: usize) {
        self.outbox.arrange(true);
        let mut copy = [0; 2048];
        for (at, id) in self.outbox.ids().enumerate() {
            let len = self.outbox.copy(at, &mut copy).expect("room");
            assert!(copy[..len] == self.memory[usize::from(id)]);
        }
        for _ in 0..count {
            let Some(group) = self.outbox.arranged().next() else {
                return;
            };
            let mut pieces = Vec::new();
            group.describe(net::LEN, &mut pieces);
            let bytes = pieces.iter().flat_map(|piece| {
                // SAFETY: the pieces are of the outbox and of `memory`, which nothing writes.
                unsafe { slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
            });
            let bytes = bytes.copied().collect();
            let ids = group
                .frames()
                .map(|(id, _)| id.into())
                .collect::<Vec<usize>>();
            let mut done = Vec::new();
            self.outbox.leave(1, true, &mut done);
            assert!(done.into_iter().eq(ids.iter().map(|id| (*id as u16, true))));
            self.left.push((ids, bytes));
        }
    }

    /// All others leave; checks what left, and returns the number of frames of each group.
    fn end(mut self) -> Vec<usize> {
        self.leave(usize::MAX);
        assert!(self.outbox.is_empty());
        check_left(self.sent, &self.left);
        self.left.iter().map(|(ids, _)| ids.len()).collect()
    }
}

/// The frames that an interface makes of what is written to it.
fn cut(write: &[u8]) -> Vec<Vec<u8>> {
    let (header, frame) = write.split_first_chunk().expect("a header");
    let header = NetHeader::decode(header);
    let (headers, payload) = frame.split_at(header.hdr_len.into());
    let parsed = ParsedHeaders::parse(headers, frame.len());
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

fn check_left(sent: &[Sent], left: &Left) {
    for (ids, write) in left {
        if let [single] = ids[..] {
            assert_eq!(*write, sent[single].bytes(), "a frame alone is as it was");
            continue;
        }
        let expected: Vec<_> = ids.iter().map(|id| sent[*id].completed()).collect();
        assert_eq!(cut(write), expected);
    }
    let mut order: Vec<usize> = left.iter().flat_map(|(ids, _)| ids.clone()).collect();
    for (at, id) in order.iter().enumerate() {
        for later in &order[at + 1..] {
            let (one, other) = (sent[*id].flow, sent[*later].flow);
            let ordered = one.is_none() || other.is_none() || one == other;
            assert!(!ordered || id < later, "{later} after {id}");
        }
    }
    order.sort_unstable();
    assert!(order.into_iter().eq(0..sent.len()));
}

/// Checks a batch; returns the number of frames of each group.
fn check(sent: &[Sent], outbox: &mut Outbox) -> Vec<usize> {
    let mut way = Way::new(outbox, sent);
    (0..sent.len()).for_each(|id| way.push(id));
    way.end()
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
fn is_whole(p: &ParsedHeaders) -> bool {
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
    let p = ParsedHeaders::parse(&frame, frame.len());
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
        // With the number of groups that the interface takes before the next frame comes.
        steps in prop::collection::vec((step(), prop_oneof![9 => Just(0), 1 => 0..9usize]), 0..100),
        flows in 1..=8usize,
        uso: bool,
    ) {
        let mut outbox = Outbox::new(uso);
        let mut senders = [Sender { id: 0xfff0, seq: u32::MAX - 100 }; 8];
        let sent = (0u8..).zip(&steps).map(|(fill, (step, _))| {
            let step = Step { flow: step.flow % flows, ..*step };
            build(step, &mut senders[step.flow], fill)
        });
        let sent: Vec<Sent> = sent.collect();
        let mut way = Way::new(&mut outbox, &sent);
        for (id, (_, leave)) in steps.iter().enumerate() {
            way.push(id);
            if *leave > 0 {
                way.leave(*leave);
            }
        }
        way.end();
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
            assert_eq!(check(&sent, &mut Outbox::new(true)), [BATCH], "flow {flow}");
        }
    }
    // As many as fit an IP packet.
    let sent = stream(0, BATCH as u8, 1448, Checksum::Partial);
    assert_eq!(check(&sent, &mut Outbox::new(true)), [45, 19]);
}

#[test]
fn flows_are_told_apart_and_the_last_may_be_shorter() {
    let all = [0, 1, 2, 3].map(|flow| stream(flow, 10, 100, Checksum::Complete));
    let mut mixed: Vec<Sent> = (0..40).map(|at| all[at % 4][at / 4].clone()).collect();
    assert_eq!(check(&mixed, &mut Outbox::new(true)), [10; 4]);
    let mut udp = stream(1, 5, 100, Checksum::Complete);
    udp[2] = stream(1, 3, 60, Checksum::Complete).remove(2);
    assert_eq!(check(&udp, &mut Outbox::new(true)), [3, 2]);
    let arp = Step {
        flow: 0,
        oddity: Oddity::Arp,
        checksum: Checksum::Complete,
        len: 0,
    };
    mixed.insert(20, build(arp, &mut Sender::default(), 0));
    let counts = check(&mixed, &mut Outbox::new(true));
    assert_eq!(counts, [5, 5, 5, 5, 1, 5, 5, 5, 5]);
}

#[test]
fn a_kind_that_is_refused_is_not_made_again() {
    let udp = stream(1, 4, 22, Checksum::Partial);
    let tcp = stream(0, 4, 22, Checksum::Partial);
    assert_eq!(check(&udp, &mut Outbox::new(false)), [1; 4]);
    assert_eq!(check(&tcp, &mut Outbox::new(false)), [4]);
    let mut outbox = Outbox::new(true);
    let both = [tcp, udp].concat();
    let refuse = |outbox: &mut Outbox, at| {
        let mut way = Way::new(outbox, &both);
        (0..both.len()).for_each(|id| way.push(id));
        way.leave(at);
        way.outbox.arrange(true);
        way.outbox.refuse_super_frame();
        way.end()
    };
    assert_eq!(refuse(&mut outbox, 0), [1, 1, 1, 1, 4]);
    assert_eq!(refuse(&mut outbox, 0), [1, 1, 1, 1, 4], "a frame alone");
    assert_eq!(check(&both, &mut outbox), [1, 1, 1, 1, 4]);
    assert_eq!(refuse(&mut outbox, 4), [1; 8]);
    assert_eq!(check(&both, &mut outbox), [1; 8]);
}

#[test]
fn a_frame_of_which_too_little_is_known_goes_alone() {
    let sent = stream(0, 4, 1000, Checksum::Complete);
    let mut outbox = Outbox::new(true);
    let memory: Vec<_> = sent.iter().map(Sent::bytes).collect();
    for (id, bytes) in memory.iter().enumerate() {
        let (header, frame) = bytes.split_first_chunk().unwrap();
        let headers = ParsedHeaders::parse(frame, frame.len()).header_len;
        let (head, rest) = frame.split_at(usize::from(headers) - usize::from(id == 2));
        let rest = [(rest.as_ptr(), rest.len())];
        // SAFETY: the memory outlives the outbox, and nothing writes it.
        assert!(unsafe { outbox.push(id as u16, *header, head, rest) });
    }
    outbox.arrange(true);
    let counts: Vec<_> = outbox.arranged().map(|of| of.frames().count()).collect();
    assert_eq!(counts, [2, 1, 1], "and it is overtaken by none");
}
