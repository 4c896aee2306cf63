//! Software segmentation: the segments are the frame again, each is a legal frame of its own, and
//! its checksums are right.

use arbitrary::{Arbitrary, Result, Unstructured};
use wire::checksum::{Sum, complete_partial};
use wire::packet::{L3, ParsedHeaders};
use wire::segment::{GsoKind, MAX_SEGMENTS, Segmenter};
use wire::{SNAPSHOT, ipv6, tcp};

struct Input {
    payload_len: u16,
    gso_size: u16,
    kind: GsoKind,
    ecn: bool,
    /// Make the IP length fit the frame, and the headers end where the transport header does.
    fit: bool,
    headers: Vec<u8>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (payload_len, gso_size) = (u.arbitrary()?, u.arbitrary()?);
        let how: u8 = u.arbitrary()?;
        let rest = u.len();
        Ok(Self {
            payload_len,
            gso_size,
            kind: kind(how),
            ecn: how & 4 != 0,
            fit: how & 8 == 0,
            headers: u.bytes(rest)?.to_vec(),
        })
    }
}

fn kind(how: u8) -> GsoKind {
    match how & 3 {
        0 => GsoKind::Tcp4,
        1 => GsoKind::Tcp6,
        2 => GsoKind::Udp4,
        _ => GsoKind::Udp6,
    }
}

/// Payload length, segment size, flags, headers.
pub fn run(data: &[u8]) {
    let Ok(mut input) = Input::arbitrary(&mut Unstructured::new(data)) else {
        return;
    };
    let payload_len = usize::from(input.payload_len);
    if input.fit {
        fit(&mut input.headers, payload_len);
    }
    let gso = Segmenter::new(
        &input.headers,
        payload_len,
        input.gso_size,
        input.kind,
        input.ecn,
    );
    let Ok(gso) = gso else {
        return;
    };
    let payload: Vec<u8> = (0..payload_len).map(|i| (i * 7 + i / 251) as u8).collect();
    check(&gso, &input, &payload);
}

/// Cuts the headers after the transport header and makes the IP length end with the payload.
pub(crate) fn fit(headers: &mut Vec<u8>, payload_len: usize) {
    let parsed = ParsedHeaders::parse(headers, 1 << 20);
    headers.truncate(usize::from(parsed.header_len));
    let l3 = usize::from(parsed.l3_offset);
    let after = headers.len() + payload_len - l3;
    match parsed.l3 {
        L3::V4 { .. } => put16(headers, l3 + 2, after),
        L3::V6 { .. } => put16(headers, l3 + 4, after - ipv6::HEADER_LEN),
        _ => {}
    }
}

fn put16(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

fn check(gso: &Segmenter<'_>, input: &Input, payload: &[u8]) {
    assert!((1..=MAX_SEGMENTS).contains(&gso.count()));
    assert_eq!(gso.header_len(), input.headers.len());
    assert!(gso.segment(gso.count()).is_none());
    let mut next = 0;
    for (index, segment) in gso.iter().enumerate() {
        let range = segment.payload_range();
        assert_eq!((range.start, range.len()), (next, segment.payload_len()));
        next = range.end;
        assert!(range.len() <= usize::from(input.gso_size));
        assert!(segment.is_last() || range.len() == usize::from(input.gso_size));
        let mut frame = vec![0xee; SNAPSHOT];
        let n = segment.write_headers(&mut frame);
        assert_eq!(n, gso.header_len());
        assert!(
            frame[n..].iter().all(|byte| *byte == 0xee),
            "written behind the headers"
        );
        frame.truncate(n);
        let mut half = frame.clone();
        segment.finish_checksum(&mut frame, Sum::of(&payload[range.clone()]));
        frame.extend_from_slice(&payload[range.clone()]);
        assert!(frame.len() <= n + usize::from(input.gso_size));
        check_frame(&frame, n);
        check_flags(&frame, segment.is_last(), range.start == 0);
        check_order(&frame, &input.headers, index, range.start);
        let (start, offset) = segment.partial_checksum(&mut half);
        complete_partial(&mut half, start, offset, Sum::of(&payload[range])).expect("inside");
        same_but_zero(&half, &frame[..n], usize::from(start + offset));
        assert_eq!(segment.write_headers(&mut half[..n - 1]), 0);
    }
    assert_eq!(next, payload.len(), "the segments are the whole payload");
}

/// Lengths end with the frame, and both checksums are right.
pub(crate) fn check_frame(frame: &[u8], header_len: usize) {
    let p = ParsedHeaders::parse(frame, frame.len());
    assert_eq!(usize::from(p.header_len), header_len);
    assert_eq!(
        p.l3_end as usize,
        frame.len(),
        "the IP length ends with the frame"
    );
    let (l3, l4) = (
        usize::from(p.l3_offset),
        usize::from(p.l4_offset.expect("a transport")),
    );
    if matches!(p.l3, L3::V4 { .. }) {
        let options = usize::from(frame[l3] & 15) * 4;
        assert_eq!(
            Sum::of(&frame[l3..l3 + options]).finish(),
            0,
            "header checksum"
        );
    }
    let mut sum = p.pseudo_header(p.l4_len().expect("a length")).expect("IP");
    sum.add_bytes(&frame[l4..]);
    assert_eq!(sum.finish(), 0, "transport checksum");
    if p.l4_proto == wire::udp::PROTOCOL {
        let length = usize::from(u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]));
        assert_eq!(length, frame.len() - l4);
    }
}

fn check_flags(frame: &[u8], last: bool, first: bool) {
    let p = ParsedHeaders::parse(frame, frame.len());
    if p.l4_proto == tcp::PROTOCOL {
        assert!(last || p.l4_flags & (tcp::FIN | tcp::PSH) == 0);
        assert!(first || p.l4_flags & tcp::CWR == 0);
    }
}

/// Each segment has its own identification, and its place in the stream.
fn check_order(frame: &[u8], headers: &[u8], index: usize, offset: usize) {
    let p = ParsedHeaders::parse(frame, frame.len());
    let (l3, l4) = (
        usize::from(p.l3_offset),
        usize::from(p.l4_offset.unwrap_or_default()),
    );
    if matches!(p.l3, L3::V4 { .. }) {
        let id = |bytes: &[u8]| u16::from_be_bytes([bytes[l3 + 4], bytes[l3 + 5]]);
        assert_eq!(id(frame), id(headers).wrapping_add(index as u16));
    }
    if p.l4_proto == tcp::PROTOCOL {
        let seq = |bytes: &[u8]| {
            tcp::TcpView::new_checked(&bytes[l4..])
                .expect("a header")
                .seq()
        };
        assert_eq!(seq(frame), seq(headers).wrapping_add(offset as u32));
    }
}

/// Equal, where the two ways to write a zero checksum count as one.
fn same_but_zero(a: &[u8], b: &[u8], field: usize) {
    let zero = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        if bytes[field..field + 2] == [0xff, 0xff] {
            bytes[field..field + 2].fill(0);
        }
        bytes
    };
    assert_eq!(zero(a), zero(b), "completed by the receiver or by us");
}
