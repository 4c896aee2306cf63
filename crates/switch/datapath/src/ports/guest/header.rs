//! Conversion between the virtio network header and [`Offload`] (virtio 1.3, 5.1.6.2 and 5.1.6.4).

use port::{DropReason, Gso, Offload, PartialChecksum};
use wire::segment::GsoKind;
use wire::virtio::features::Features;
use wire::virtio::net::{
    FLAG_NEEDS_CSUM, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NetHeader,
};

use crate::ports::port::Accepts;

/// Header as two little-endian numbers: its first eight and its last four bytes.
pub type Words = (u64, u32);

/// Returns the offloads that a guest with these features accepts.
#[must_use]
pub fn accepts(features: Features) -> Accepts {
    let has = |feature| features.contains(feature);
    Accepts {
        checksum: has(Features::NET_GUEST_CSUM),
        tso4: has(Features::NET_GUEST_TSO4),
        tso6: has(Features::NET_GUEST_TSO6),
        ecn: has(Features::NET_GUEST_ECN),
        uso4: has(Features::NET_GUEST_USO4),
        uso6: has(Features::NET_GUEST_USO6),
    }
}

/// Decodes a header given as two little-endian numbers, see [`decode`].
///
/// # Errors
/// The same as [`decode`].
pub fn decode_words(low: u64, high: u32, features: Features) -> Result<Offload, DropReason> {
    let (low, high) = (low.to_le_bytes(), high.to_le_bytes());
    let bytes = std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] });
    decode(&NetHeader::decode(&bytes), features)
}

/// Returns the offload that a header requests.
///
/// # Errors
/// [`DropReason::BadHeader`]: an unknown segmentation type, or one that was not negotiated.
pub fn decode(header: &NetHeader, features: Features) -> Result<Offload, DropReason> {
    let checksum = header.needs_csum().then_some(PartialChecksum {
        start: header.csum_start,
        offset: header.csum_offset,
    });
    if checksum.is_some() && !features.contains(Features::NET_CSUM) {
        return Err(DropReason::BadHeader);
    }
    let ecn = header.gso_type & GSO_ECN != 0;
    let (kind, needs) = match header.gso() {
        GSO_NONE if !ecn => {
            return Ok(Offload {
                checksum,
                gso: None,
            });
        }
        GSO_TCPV4 => (GsoKind::Tcp4, Features::NET_HOST_TSO4),
        GSO_TCPV6 => (GsoKind::Tcp6, Features::NET_HOST_TSO6),
        // The IP version is known once the frame is parsed.
        GSO_UDP_L4 if !ecn => (GsoKind::Udp4, Features::NET_HOST_USO),
        _ => return Err(DropReason::BadHeader),
    };
    let negotiated = features.contains(needs)
        && (!ecn || features.contains(Features::NET_HOST_ECN))
        && checksum.is_some();
    if !negotiated {
        return Err(DropReason::BadHeader);
    }
    let gso = Some(Gso {
        kind,
        size: header.gso_size,
        ecn,
        header_len: 0,
    });
    Ok(Offload { checksum, gso })
}

/// Returns the header with this offload for a frame in so many merged buffers, as two little-endian
/// numbers.
#[inline(always)]
#[must_use]
pub fn encode(offload: &Offload, buffers: u16) -> Words {
    if offload.checksum.is_none() {
        return (0, u32::from(buffers) << 16);
    }
    encode_words(offload, buffers)
}

#[inline(never)]
fn encode_words(offload: &Offload, buffers: u16) -> Words {
    let bytes = describe(offload, buffers).encode();
    let low = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    let high = u32::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
    (low, high)
}

fn describe(offload: &Offload, buffers: u16) -> NetHeader {
    let mut header = NetHeader {
        num_buffers: buffers,
        ..NetHeader::default()
    };
    if let Some(checksum) = offload.checksum {
        header.flags = FLAG_NEEDS_CSUM;
        header.csum_start = checksum.start;
        header.csum_offset = checksum.offset;
    }
    if let Some(gso) = offload.gso {
        let kind = match gso.kind {
            GsoKind::Tcp4 => GSO_TCPV4,
            GsoKind::Tcp6 => GSO_TCPV6,
            GsoKind::Udp4 | GsoKind::Udp6 => GSO_UDP_L4,
        };
        header.gso_type = kind | if gso.ecn { GSO_ECN } else { 0 };
        header.gso_size = gso.size;
        header.hdr_len = gso.header_len;
    }
    header
}
