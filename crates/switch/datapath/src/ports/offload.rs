//! Software checksums and segmentation (GSO) for receivers without the offload.
//!
//! A frame with a partial checksum or a large segment is delivered unchanged to a receiver that
//! accepts it. For any other receiver the checksum is completed, or the frame is cut into segments
//! with their own checksums. The offload that a sender requests is first checked against the
//! frame's own headers.

use memory::Segment;
use policy::frame_class::parsed_extent;
use port::counters::Traffic;
use port::{DropReason, Gso, Offload, PartialChecksum};
use wire::checksum::{Sum, complete_partial};
use wire::packet::{L3, ParsedHeaders};
use wire::segment::{GsoError, GsoKind, MAX_SEGMENTS, Segmenter};
use wire::vlan::{CAP, HEADROOM};

use crate::ports::payload::{Outgoing, Payload};
use crate::ports::port::Port;

/// Bytes summed at a time: guest memory is copied out before it is read.
const SUM_CHUNK: usize = 2048;

/// Result of the delivery of one frame to one receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delivery {
    /// Frames put into the receiver's buffers.
    pub traffic: Traffic,
    /// Frames that were dropped, and the reason.
    pub lost: Option<(DropReason, u64)>,
}

impl Delivery {
    fn all(len: u32) -> Self {
        Self {
            traffic: Traffic {
                packets: 1,
                bytes: u64::from(len),
            },
            lost: None,
        }
    }

    fn none(reason: DropReason) -> Self {
        Self {
            traffic: Traffic::default(),
            lost: Some((reason, 1)),
        }
    }

    fn of(result: Result<(), DropReason>, len: u32) -> Self {
        match result {
            Ok(()) => Self::all(len),
            Err(reason) => Self::none(reason),
        }
    }
}

/// Checks an offload against the frame's own headers, and completes its description.
/// CVE-2024-11614: the checksum field must lie within the frame. Completing the checksum must not
/// change bytes that a decision depends on.
///
/// # Errors
/// [`DropReason::BadOffload`] when they disagree, [`DropReason::TooManySegments`] when the frame
/// would be cut into too many segments.
pub fn check(
    headers: &[u8],
    len: u32,
    parsed: &ParsedHeaders,
    offload: &mut Offload,
) -> Result<(), DropReason> {
    let Some(checksum) = offload.checksum else {
        return match offload.gso {
            None => Ok(()),
            Some(_) => Err(DropReason::BadOffload),
        };
    };
    let end = u32::from(checksum.start) + u32::from(checksum.offset) + 2;
    let own = is_own(checksum, parsed);
    // The field must be within the private headers: there it can be completed, and tags cannot
    // shift it out of 16 bits.
    if end > len.min(headers.len() as u32) || !(own || is_inner(checksum, parsed)) {
        return Err(DropReason::BadOffload);
    }
    let Some(gso) = &mut offload.gso else {
        return Ok(());
    };
    if !gso.kind.is_tcp() && matches!(parsed.l3, L3::V6 { .. }) {
        // Virtio has one segmentation type for UDP over both.
        gso.kind = GsoKind::Udp6;
    }
    if !own {
        return Err(DropReason::BadOffload);
    }
    check_segments(headers, len, usize::from(parsed.header_len), gso)
}

/// As [`check`] for a plain segment of TCP over IPv4: a whole, untagged frame with headers of this
/// length, 20 bytes of them IPv4's. Returns whether it is in order; else [`check`] says so or not.
pub fn is_plain(headers: &[u8], len: u32, header_len: usize, offload: &mut Offload) -> bool {
    const OWN: PartialChecksum = PartialChecksum {
        start: 34,
        offset: 16,
    };
    offload.checksum == Some(OWN)
        && headers.len() >= header_len
        && match &mut offload.gso {
            Some(gso) => check_segments(headers, len, header_len, gso).is_ok(),
            None => true,
        }
}

/// Checks the segments of a frame with headers of this length.
fn check_segments(
    headers: &[u8],
    len: u32,
    header_len: usize,
    gso: &mut Gso,
) -> Result<(), DropReason> {
    if header_len > headers.len() {
        return Err(DropReason::BadOffload);
    }
    segmenter(headers, len, header_len, gso).map_err(reason_of)?;
    gso.header_len = header_len as u16;
    Ok(())
}

/// Returns whether the checksum is that of the frame's own transport header.
fn is_own(checksum: PartialChecksum, parsed: &ParsedHeaders) -> bool {
    let field = checksum.start.checked_add(checksum.offset);
    field.is_some() && parsed.l4_offset == Some(checksum.start) && parsed.checksum_offset() == field
}

/// Returns whether the checksum is one of an encapsulated packet, as guests leave it in tunnels: no
/// decision depends on it.
fn is_inner(checksum: PartialChecksum, parsed: &ParsedHeaders) -> bool {
    parsed_extent(parsed).is_some_and(|end| checksum.start >= end)
}

fn segmenter<'a>(
    headers: &'a [u8],
    len: u32,
    header_len: usize,
    gso: &Gso,
) -> Result<Segmenter<'a>, GsoError> {
    let payload = len as usize - header_len;
    Segmenter::new(&headers[..header_len], payload, gso.size, gso.kind, gso.ecn)
}

/// Returns the drop reason of a frame that cannot be segmented.
fn reason_of(error: GsoError) -> DropReason {
    match error {
        GsoError::TooManySegments => DropReason::TooManySegments,
        _ => DropReason::BadOffload,
    }
}

/// Returns the length that counts against an MTU: of the frame, or of the longest of its segments.
fn link_len(frame: &Outgoing<'_>) -> u32 {
    match frame.offload.gso {
        Some(gso) => frame
            .len()
            .min(u32::from(gso.header_len) + u32::from(gso.size)),
        None => frame.len(),
    }
}

/// Returns whether `port` accepts the frame as it is: its length and its offload. `link_header` is
/// the length of the Ethernet header with tags, which does not count against the MTU.
#[inline]
pub fn fits<P: Port>(port: &P, frame: &Outgoing<'_>, link_header: u32) -> bool {
    link_len(frame) <= port.mtu() + link_header && port.accepts().takes(&frame.offload)
}

/// Reusable buffers for segmentation.
#[derive(Debug)]
pub struct Fitter {
    segments: Vec<Segment>,
    headers: [u8; HEADROOM + CAP],
    /// Payload checksums of the current frame's segments, if it was cut for a receiver already.
    /// Headers are per receiver.
    sums: Vec<Sum>,
    /// Whether the current frame has several receivers.
    keeps_sums: bool,
    /// Segments whose payload was summed so far.
    #[cfg(test)]
    pub(crate) summed: usize,
}

impl Default for Fitter {
    fn default() -> Self {
        Self {
            segments: Vec::with_capacity(64),
            headers: [0; HEADROOM + CAP],
            sums: Vec::with_capacity(MAX_SEGMENTS),
            keeps_sums: false,
            #[cfg(test)]
            summed: 0,
        }
    }
}

impl Fitter {
    /// Starts or ends the delivery of one frame to several receivers: the checksums of its payload
    /// are computed once.
    #[cold]
    pub fn keep_sums(&mut self, on: bool) {
        self.sums.clear();
        self.keeps_sums = on;
    }

    /// Delivers `frame`, which passed [`check`], in the form that `port` accepts; see [`fits`] for
    /// the frames that need no conversion.
    #[inline(never)]
    pub fn deliver<P: Port>(
        &mut self,
        port: &mut P,
        pair: u16,
        frame: &Outgoing<'_>,
        link_header: u32,
    ) -> Delivery {
        if link_len(frame) > port.mtu() + link_header {
            return Delivery::none(DropReason::ExceedsMtu);
        }
        if port.accepts().takes(&frame.offload) {
            return Delivery::of(port.deliver(pair, frame), frame.len());
        }
        match frame.offload.gso {
            Some(gso) => self.deliver_segments(port, pair, frame, gso),
            None => self.deliver_checksummed(port, pair, frame),
        }
    }

    fn deliver_checksummed<P: Port>(
        &mut self,
        port: &mut P,
        pair: u16,
        frame: &Outgoing<'_>,
    ) -> Delivery {
        let headers = &mut self.headers[..frame.headers.len()];
        headers.copy_from_slice(frame.headers);
        if let Some(partial) = frame.offload.checksum {
            let sum = sum_of(frame.payload);
            if complete_partial(headers, partial.start, partial.offset, sum).is_err() {
                return Delivery::none(DropReason::BadOffload);
            }
        }
        let done = Outgoing {
            headers,
            payload: frame.payload,
            offload: Offload::default(),
        };
        Delivery::of(port.deliver(pair, &done), done.len())
    }

    fn deliver_segments<P: Port>(
        &mut self,
        port: &mut P,
        pair: u16,
        frame: &Outgoing<'_>,
        gso: Gso,
    ) -> Delivery {
        let header_len = usize::from(gso.header_len);
        let segmenter = match segmenter(frame.headers, frame.len(), header_len, &gso) {
            Ok(segmenter) => segmenter,
            Err(error) => return Delivery::none(reason_of(error)),
        };
        let payload = join(
            &frame.headers[header_len..],
            frame.payload,
            &mut self.segments,
        );
        let mut parts = payload.parts(u32::from(gso.size));
        let mut delivered = Delivery::default();
        for (index, segment) in segmenter.iter().enumerate() {
            let len = segment.write_headers(&mut self.headers);
            let part = parts.next().unwrap_or(Payload::empty());
            let sum = match self.sums.get(index) {
                Some(sum) => *sum,
                None => {
                    #[cfg(test)]
                    {
                        self.summed += 1;
                    }
                    sum_of(&part)
                }
            };
            if self.keeps_sums && index == self.sums.len() {
                self.sums.push(sum);
            }
            segment.finish_checksum(&mut self.headers, sum);
            let out = Outgoing {
                headers: &self.headers[..len],
                payload: &part,
                offload: Offload::default(),
            };
            match port.deliver(pair, &out) {
                Ok(()) => {
                    delivered.traffic.packets += 1;
                    delivered.traffic.bytes += u64::from(out.len());
                }
                Err(reason) => {
                    // A receiver without a buffer for this segment is not tried with the rest.
                    let is_over = matches!(
                        reason,
                        DropReason::ReceiverFull
                            | DropReason::ReceiverUntranslated
                            | DropReason::ReceiverDown
                    );
                    let frames = if is_over {
                        segmenter.count() - index
                    } else {
                        1
                    };
                    let lost = delivered.lost.map_or(0, |(_, n)| n);
                    delivered.lost = Some((reason, lost + frames as u64));
                    if is_over {
                        break;
                    }
                }
            }
        }
        delivered
    }
}

/// Returns `first` and `rest` as one payload over the segments in `arena`.
fn join<'a>(first: &'a [u8], rest: &Payload<'a>, arena: &'a mut Vec<Segment>) -> Payload<'a> {
    arena.clear();
    let first_len = first.len() as u32;
    if first_len > 0 {
        arena.push(Segment {
            ptr: first.as_ptr().cast_mut(),
            len: first_len,
            gpa: Segment::PRIVATE,
        });
    }
    let mut cursor = rest.cursor();
    let mut left = rest.len();
    while left > 0 {
        let Some(piece) = cursor.next_piece(left) else {
            break;
        };
        left -= piece.len;
        arena.push(piece);
    }
    // SAFETY: `first` and the memory behind `rest` live for 'a, and a payload is only read from.
    unsafe { Payload::new(arena, 0, first_len + rest.len() - left) }
}

/// Returns the sum of a payload's bytes, from a private copy of each chunk.
fn sum_of(payload: &Payload<'_>) -> Sum {
    let mut sum = Sum::new();
    let mut chunk = [0; SUM_CHUNK];
    let mut cursor = payload.cursor();
    let mut left = payload.len() as usize;
    while left > 0 {
        let want = left.min(SUM_CHUNK);
        let got = cursor.read(&mut chunk[..want]);
        if got == 0 {
            break;
        }
        sum.add_bytes(&chunk[..got]);
        left -= got;
    }
    sum
}
