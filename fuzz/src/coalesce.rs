//! Coalescing of a batch for an interface: what leaves, cut by our own segmentation, is what came,
//! byte for byte and with every checksum; frames of a flow stay in order, and a frame of no known
//! flow overtakes none and is overtaken by none. Only the identification of an IPv4 packet that
//! must not be fragmented may differ (RFC 6864).

use arbitrary::{Arbitrary, Result, Unstructured};
use netio::{BATCH, testing};
use wire::build::{PacketBuilder, TcpFields};
use wire::checksum::Sum;
use wire::packet::{Fragment, L3, ParsedHeaders};
use wire::segment::{GsoKind, Segmenter};
use wire::virtio::net::{self, NetHeader};
use wire::{MacAddr, SNAPSHOT, VlanTci, tcp, udp};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Do not fragment, in the first byte of flags and offset of an IPv4 header.
const DF: u8 = 0x40;
/// Place of the ports of TCP and UDP over IPv4, without a tag and options.
const PORTS: usize = 34;
/// Most bytes of payload of a frame.
const PAYLOAD: u16 = 1500;

/// A frame of one of a few flows.
struct Described {
    /// The flow: bits for the kind, a tag, options, DF, and the port.
    flow: u8,
    /// 0: as long as the one before.
    len: u16,
    /// The anomaly in it.
    how: u8,
    /// Of TCP.
    flags: u8,
    /// Bytes to be changed: where, and to which value.
    edit: [(u8, u8); 2],
}

// Bits of `Described::how`, for what is unusual with a frame.

/// Its checksum is left to the receiver.
const PARTIAL: u8 = 1;
/// It has the flags of the input instead of ACK.
const FLAGS: u8 = 2;
/// The next frame of the flow does not follow it.
const GAP: u8 = 4;
/// Bytes of it are changed, or of its virtio header.
const EDITS: u8 = 8;
const HEADER: u8 = 16;
/// It is a super-frame already.
const SUPER: u8 = 32;
/// It is bytes of the input.
const RAW: u8 = 64;

/// Where each flow is.
#[derive(Clone, Copy, Default)]
struct Position {
    id: u16,
    seq: u32,
    len: u16,
}

impl<'a> Arbitrary<'a> for Described {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self {
            flow: u.arbitrary()?,
            len: u.arbitrary()?,
            how: u.arbitrary()?,
            flags: u.arbitrary()?,
            edit: u.arbitrary()?,
        })
    }
}

impl Described {
    fn is(&self, how: u8) -> bool {
        self.how & how != 0
    }

    fn is_tcp(&self) -> bool {
        self.flow & 1 == 0
    }

    /// Returns virtio's header and the frame.
    fn build(&self, at: &mut Position) -> Vec<u8> {
        if self.len > 0 {
            at.len = self.len % PAYLOAD;
        }
        let payload: Vec<u8> = (0..u32::from(at.len))
            .map(|i| (i ^ at.seq ^ u32::from(at.id)) as u8)
            .collect();
        let mut frame = self.builder(*at).payload(&payload).build();
        if self.flow & 16 != 0 {
            forbid_fragments(&mut frame);
        }
        at.id = at.id.wrapping_add(1 + u16::from(self.is(GAP)));
        at.seq = at
            .seq
            .wrapping_add(u32::from(at.len) + u32::from(self.is(GAP)));
        let mut header = self.header(&frame).encode();
        for (place, value) in self.edit {
            let place = usize::from(place);
            if self.is(EDITS) && place < frame.len() {
                frame[place] = value;
            }
            if self.is(HEADER) {
                header[place % net::LEN] = value;
            }
        }
        [&header[..], &frame].concat()
    }

    fn builder(&self, at: Position) -> PacketBuilder {
        let mut packet = PacketBuilder::new(MAC, MAC);
        if self.flow & 4 != 0 {
            packet = packet.vlan(VlanTci::new(5));
        }
        packet = if self.flow & 2 == 0 {
            packet.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ip_id(at.id)
        } else {
            packet.ipv6([0; 16], [1; 16])
        };
        let port = 1000 + u16::from(self.flow >> 5);
        let flags = if self.is(FLAGS) { self.flags } else { 0x10 };
        let options = if self.flow & 8 == 0 { 0 } else { 12 };
        packet = if self.is_tcp() {
            packet.tcp(TcpFields {
                src_port: port,
                seq: at.seq,
                flags: flags.into(),
                options: vec![1; options],
                ..TcpFields::default()
            })
        } else {
            packet.udp(port, 7)
        };
        if self.is(PARTIAL) {
            packet = packet.partial_checksum();
        }
        packet
    }

    fn header(&self, frame: &[u8]) -> NetHeader {
        let p = ParsedHeaders::parse(frame, frame.len());
        let csum_start = p.l4_offset.unwrap_or_default();
        let mut header = NetHeader::default();
        if self.is(PARTIAL) {
            header.flags = net::FLAG_NEEDS_CSUM;
            header.csum_start = csum_start;
            header.csum_offset = if self.is_tcp() { 16 } else { 6 };
        }
        if self.is(SUPER) {
            let types = [net::GSO_TCPV4, net::GSO_UDP_L4];
            header.gso_type = types[usize::from(!self.is_tcp())];
            header.gso_size = 100;
        }
        header
    }
}

/// Sets DF, and makes the IPv4 header's checksum right again.
fn forbid_fragments(frame: &mut [u8]) {
    let p = ParsedHeaders::parse(frame, frame.len());
    if matches!(p.l3, L3::V4 { .. }) {
        frame[usize::from(p.l3_offset) + 6] |= DF;
        set_id(frame, None);
    }
}

/// Sets the identification, or leaves it, and makes the IPv4 header's checksum right.
fn set_id(frame: &mut [u8], id: Option<[u8; 2]>) {
    let l3 = usize::from(ParsedHeaders::parse(frame, frame.len()).l3_offset);
    let ip = &mut frame[l3..l3 + 20];
    if let Some(id) = id {
        ip[4..6].copy_from_slice(&id);
    }
    ip[10..12].fill(0);
    let checksum = Sum::of(ip).finish();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Whether the interface takes super-frames of UDP; then the frames.
pub fn run(data: &[u8]) {
    if let Ok((uso, frames)) = batch(data) {
        check(&frames, &testing::coalesce(&frames, uso));
    }
}

fn batch(data: &[u8]) -> Result<(bool, Vec<Vec<u8>>)> {
    let mut input = Unstructured::new(data);
    let uso = input.arbitrary()?;
    let mut positions = [Position::default(); 256];
    let mut frames = Vec::new();
    while frames.len() < BATCH && !input.is_empty() {
        match frame(&mut input, &mut positions) {
            Ok(frame) => frames.push(frame),
            Err(_) => break,
        }
    }
    Ok((uso, frames))
}

fn frame(input: &mut Unstructured<'_>, positions: &mut [Position; 256]) -> Result<Vec<u8>> {
    let described = Described::arbitrary(input)?;
    if !described.is(RAW) {
        return Ok(described.build(&mut positions[usize::from(described.flow)]));
    }
    // Bytes of the input: at least one beside virtio's header.
    let len = 1 + usize::from(described.len % 256);
    let bytes = input.bytes(len.min(input.len()))?;
    let header = described.header(bytes).encode();
    Ok([&header[..], bytes, &[0]].concat())
}

/// Compares what left with what came.
fn check(came: &[Vec<u8>], left: &[Vec<u8>]) {
    let keys: Vec<_> = came.iter().map(|frame| key(&frame[net::LEN..])).collect();
    let mut is_gone = vec![false; came.len()];
    for sent in left {
        // One that left alone is one that came.
        let next = next_of(sent, &keys, &is_gone);
        if let Some(at) = next.filter(|at| came[*at] == *sent) {
            leave(at, &keys, &mut is_gone);
            continue;
        }
        for (segment, partial) in cut(sent) {
            let at = next_of(sent, &keys, &is_gone).expect("a frame of this flow");
            compare(&came[at], &segment, &partial);
            leave(at, &keys, &mut is_gone);
        }
    }
    assert!(is_gone.iter().all(|gone| *gone), "a frame is missing");
}

/// A flow, by the parser of whole frames: tag, protocol, addresses, ports; none for a frame that
/// may be of any. One of plain IPv4 has its ports in their place even if a length in it is wrong.
type Key = Option<(Option<u16>, u8, (u128, u128), (u16, u16))>;

fn key(frame: &[u8]) -> Key {
    let ports_end = PORTS + 4;
    let is_plain = frame.len() >= ports_end
        && frame[12..15] == [0x08, 0x00, 0x45]
        && frame[20] & !DF == 0
        && frame[21] == 0
        && matches!(frame[23], tcp::PROTOCOL | udp::PROTOCOL);
    if is_plain {
        let four = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four"));
        let (src, dst, ports) = (four(26), four(30), four(PORTS));
        let ports = ((ports >> 16) as u16, ports as u16);
        return Some((None, frame[23], (src.into(), dst.into()), ports));
    }
    let p = ParsedHeaders::parse(frame, frame.len());
    let transport = matches!(p.l4_proto, tcp::PROTOCOL | udp::PROTOCOL);
    if p.l4_offset.is_none() || !transport || p.fragment != Fragment::No {
        return None;
    }
    let addresses = match p.l3 {
        L3::V4 { src, dst, .. } => (src.to_bits().into(), dst.to_bits().into()),
        L3::V6 { src, dst, .. } => (src.to_bits(), dst.to_bits()),
        _ => return None,
    };
    let vlan = p.vlan.map(|tag| tag.vid);
    Some((vlan, p.l4_proto, addresses, (p.src_port, p.dst_port)))
}

/// Returns the oldest frame of the flow that `sent` is of.
fn next_of(sent: &[u8], keys: &[Key], is_gone: &[bool]) -> Option<usize> {
    let key = key(&sent[net::LEN..]);
    (0..keys.len()).find(|at| !is_gone[*at] && keys[*at] == key)
}

/// A frame leaves: no frame of an unknown flow is overtaken, and none overtakes.
fn leave(at: usize, keys: &[Key], is_gone: &mut [bool]) {
    assert!(!is_gone[at]);
    let mut older = (0..at).filter(|older| !is_gone[*older]);
    let overtaken = older.find(|older| keys[at].is_none() || keys[*older].is_none());
    assert_eq!(overtaken, None, "frame {at} has overtaken one");
    is_gone[at] = true;
}

/// A frame that a super-frame is cut into: with the complete checksum, and with the
/// pseudo-header's and where that is.
type Segment = (Vec<u8>, (Vec<u8>, u16, u16));

fn cut(sent: &[u8]) -> Vec<Segment> {
    let header: [u8; net::LEN] = sent[..net::LEN].try_into().expect("a header");
    let header = NetHeader::decode(&header);
    let frame = &sent[net::LEN..];
    let p = ParsedHeaders::parse(frame, frame.len());
    let headers = usize::from(p.header_len);
    assert_eq!(usize::from(header.hdr_len), headers);
    let kind = match (header.gso_type, p.l3) {
        (net::GSO_TCPV4, L3::V4 { .. }) => GsoKind::Tcp4,
        (net::GSO_TCPV6, L3::V6 { .. }) => GsoKind::Tcp6,
        (net::GSO_UDP_L4, L3::V4 { .. }) => GsoKind::Udp4,
        (net::GSO_UDP_L4, L3::V6 { .. }) => GsoKind::Udp6,
        other => panic!("{other:?} was made"),
    };
    check_start(frame, &p, &header);
    let (head, payload) = frame.split_at(headers);
    let gso = Segmenter::new(head, payload.len(), header.gso_size, kind, false);
    let gso = gso.expect("a super-frame");
    assert!(gso.count() > 1);
    let segments = gso.iter().map(|segment| {
        let mut whole = vec![0; SNAPSHOT];
        let len = segment.write_headers(&mut whole);
        whole.truncate(len);
        let mut half = whole.clone();
        let payload = &payload[segment.payload_range()];
        segment.finish_checksum(&mut whole, Sum::of(payload));
        let (start, offset) = segment.partial_checksum(&mut half);
        let partial = ([&half, payload].concat(), start, offset);
        ([&whole, payload].concat(), partial)
    });
    segments.collect()
}

/// The checksum of a super-frame is left to what cuts it, and starts from the pseudo-header.
fn check_start(frame: &[u8], p: &ParsedHeaders, header: &NetHeader) {
    let l4 = p.l4_offset.expect("a transport");
    let offset = p.checksum_offset().expect("a checksum");
    assert!(header.needs_csum());
    assert_eq!(header.csum_start, l4);
    let at = usize::from(header.csum_start + header.csum_offset);
    assert_eq!(at, usize::from(offset));
    let sum = p.pseudo_header(p.l4_len().expect("a length")).expect("IP");
    assert_eq!(frame[at..at + 2], sum.fold().to_be_bytes());
}

/// A segment is the frame that came, whose checksum was complete or left to the receiver.
fn compare(came: &[u8], whole: &[u8], partial: &(Vec<u8>, u16, u16)) {
    let (header, frame) = came.split_at(net::LEN);
    let header = NetHeader::decode(header.try_into().expect("a header"));
    assert_eq!(header.gso_type, net::GSO_NONE);
    let (half, start, offset) = partial;
    let segment = if header.needs_csum() {
        assert_eq!((header.csum_start, header.csum_offset), (*start, *offset));
        half
    } else {
        whole
    };
    let mut frame = frame.to_vec();
    let p = ParsedHeaders::parse(&frame, frame.len());
    let l3 = usize::from(p.l3_offset);
    if matches!(p.l3, L3::V4 { .. }) && frame[l3 + 6] & DF != 0 {
        let id = [segment[l3 + 4], segment[l3 + 5]];
        set_id(&mut frame, Some(id));
    }
    assert_eq!(frame, *segment);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_flow_become_one() {
        for kind in ["tcp4", "tcp6", "udp4", "udp6", "df"] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/coalesce");
            let seed = std::fs::read(format!("{folder}/{kind}")).expect("a seed");
            let (uso, frames) = batch(&seed).expect("a batch");
            let left = testing::coalesce(&frames, uso);
            assert_eq!((frames.len(), left.len()), (6, 1), "{kind}");
        }
    }
}
