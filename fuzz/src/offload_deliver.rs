//! Offloads completed for a receiver: a frame is delivered whole, as it was or as segments with
//! right checksums, or lost with a reason; the offloads left over are never more than the receiver
//! takes, and a completed checksum changes nothing else of the frame.

use arbitrary::{Arbitrary, Result, Unstructured};
use datapath::ports::guest::header;
use datapath::ports::loopback::LoopbackPort;
use datapath::ports::offload::{self, Delivery, Fitter};
use datapath::ports::payload::{Outgoing, Payload};
use datapath::ports::port::Accepts;
use memory::Segment;
use port::Offload;
use wire::flow::FlowKey;
use wire::packet::{L3, ParsedHeaders};
use wire::segment::Segmenter;
use wire::virtio::features::Features;
use wire::virtio::net::NetHeader;
use wire::{FrameClass, SNAPSHOT};

use crate::wire_segment::{check_frame, fit};

struct Input {
    header: [u8; 12],
    /// Of `Accepts`, one bit each.
    accepts: u8,
    /// Bit 0: set the header's offsets and type from the frame's own headers; bit 1: make the IP
    /// length fit.
    help: u8,
    /// Zeroes behind the bytes given.
    padding: u16,
    /// Offset of the cut of the payload into two pieces of memory.
    cut: u16,
    frame: Vec<u8>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self {
            header: u.arbitrary()?,
            accepts: u.arbitrary()?,
            help: u.arbitrary()?,
            padding: u.arbitrary()?,
            cut: u.arbitrary()?,
            frame: u.bytes(u.len())?.to_vec(),
        })
    }
}

fn accepts(bits: u8) -> Accepts {
    let has = |bit: u8| bits >> bit & 1 == 1;
    Accepts {
        checksum: has(0),
        tso4: has(1),
        tso6: has(2),
        ecn: has(3),
        uso4: has(4),
        uso6: has(5),
    }
}

/// A virtio header, the receiver, and a frame.
pub fn run(data: &[u8]) {
    let Ok(mut input) = Input::arbitrary(&mut Unstructured::new(data)) else {
        return;
    };
    let len = input.frame.len() + usize::from(input.padding);
    if input.frame.len() < 14 || len > port::MAX_FRAME as usize {
        return;
    }
    if input.help & 2 != 0 {
        let payload = len
            - input.frame.len().min(usize::from(
                ParsedHeaders::parse(&input.frame, len).header_len,
            ));
        let mut headers = input.frame[..input.frame.len().min(SNAPSHOT)].to_vec();
        fit(&mut headers, payload);
        input.frame[..headers.len()].copy_from_slice(&headers);
    }
    input.frame.resize(len, 0);
    let parsed = ParsedHeaders::parse(&input.frame[..len.min(SNAPSHOT)], len);
    let offered = offered(&input, &parsed);
    let Ok(offload) = header::decode(&offered, Features::from_bits_retain(u64::MAX)) else {
        return;
    };
    deliver(&input, &parsed, offload);
}

/// The header as given, or with what a well-meaning driver would say.
fn offered(input: &Input, parsed: &ParsedHeaders) -> NetHeader {
    let mut header = NetHeader::decode(&input.header);
    if input.help & 1 != 0
        && let (Some(start), Some(field)) = (parsed.l4_offset, parsed.checksum_offset())
    {
        header.flags = 1;
        header.csum_start = start;
        header.csum_offset = field - start;
    }
    header
}

fn deliver(input: &Input, parsed: &ParsedHeaders, mut offload: Offload) {
    let (headers, payload) = input.frame.split_at(input.frame.len().min(SNAPSHOT));
    let len = input.frame.len() as u32;
    if offload::check(headers, len, parsed, &mut offload).is_err() {
        return;
    }
    if let Some(partial) = offload.checksum {
        assert!(u32::from(partial.start) + u32::from(partial.offset) + 2 <= len);
    }
    let cut = usize::from(input.cut).min(payload.len());
    let pieces: Vec<Segment> = [&payload[..cut], &payload[cut..]]
        .into_iter()
        .filter(|piece| !piece.is_empty())
        .map(|piece| Segment {
            ptr: piece.as_ptr().cast_mut(),
            len: piece.len() as u32,
            gpa: 0,
        })
        .collect();
    // SAFETY: the pieces lie in `input.frame`, which lives longer, and are only read.
    let payload = unsafe { Payload::new(&pieces, 0, payload.len() as u32) };
    let frame = Outgoing {
        headers,
        payload: &payload,
        offload,
    };
    let mut port = LoopbackPort::new(false);
    port.accepts = accepts(input.accepts);
    let done = Fitter::default().deliver(&mut port, 0, &frame, 18);
    check(input, parsed, offload, &port, done);
}

fn check(
    input: &Input,
    parsed: &ParsedHeaders,
    offload: Offload,
    port: &LoopbackPort,
    done: Delivery,
) {
    let lost = done.lost.map_or(0, |(_, frames)| frames);
    assert_eq!(done.traffic.packets, port.delivered.len() as u64);
    let bytes: usize = port.delivered.iter().map(|(frame, _)| frame.len()).sum();
    assert_eq!(done.traffic.bytes, bytes as u64);
    assert!(
        lost + done.traffic.packets > 0,
        "neither delivered nor lost"
    );
    for (_, left) in &port.delivered {
        assert!(
            port.accepts.takes(left),
            "work that the receiver does not take"
        );
    }
    if port.accepts.takes(&offload) {
        if let [(frame, left)] = &port.delivered[..] {
            assert!(*frame == input.frame && *left == offload, "as it was");
        }
        return;
    }
    match offload.gso {
        Some(_) => check_segments(input, parsed, offload, port, lost),
        None => check_completed(input, offload, port),
    }
}

fn check_completed(input: &Input, offload: Offload, port: &LoopbackPort) {
    let [(frame, _)] = &port.delivered[..] else {
        return;
    };
    let partial = offload.checksum.expect("the only work");
    let field = usize::from(partial.start) + usize::from(partial.offset);
    let mut same = frame.clone();
    same[field..field + 2].copy_from_slice(&input.frame[field..field + 2]);
    assert_eq!(same, input.frame, "only the checksum is written");
    assert_eq!(
        decided(frame),
        decided(&input.frame),
        "another frame than was decided about"
    );
}

/// Returns the inputs of a decision about a frame.
fn decided(frame: &[u8]) -> (FlowKey, FrameClass) {
    let headers = &frame[..frame.len().min(SNAPSHOT)];
    let parsed = ParsedHeaders::parse(headers, frame.len());
    (
        FlowKey::new(1, &parsed),
        policy::frame_class::classify(headers, frame.len()),
    )
}

fn check_segments(
    input: &Input,
    parsed: &ParsedHeaders,
    offload: Offload,
    port: &LoopbackPort,
    lost: u64,
) {
    let gso = offload.gso.expect("checked");
    let header_len = usize::from(parsed.header_len);
    assert_eq!(usize::from(gso.header_len), header_len);
    let (headers, payload) = input.frame.split_at(header_len);
    let segmenter = Segmenter::new(headers, payload.len(), gso.size, gso.kind, gso.ecn);
    let Ok(segmenter) = segmenter else {
        assert!(port.delivered.is_empty());
        return;
    };
    if port.delivered.is_empty() {
        return;
    }
    assert_eq!(port.delivered.len() as u64 + lost, segmenter.count() as u64);
    let mut next = 0;
    for (frame, _) in &port.delivered {
        check_frame(frame, header_len);
        let part = &frame[header_len..];
        assert_eq!(part, &payload[next..next + part.len()]);
        next += part.len();
    }
    assert!(lost > 0 || next == payload.len());
    assert!(matches!(parsed.l3, L3::V4 { .. } | L3::V6 { .. }));
}
