//! Records of established TCP flows and of UDP mappings, which outlive the process: written once,
//! read as if an enemy had written them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use wire::MacAddr;

/// Bytes of a record.
pub const RECORD_LEN: usize = 64;
/// Version of the encoding.
pub const RECORD_VERSION: u8 = 1;
// Bits of the second byte.
const CONNECTED: u8 = 1;
const IPV6: u8 = 2;
const SCALED: u8 = 4;
const MAPPING: u8 = 8;
/// A mapping of a forward.
const FORWARDED: u8 = 16;
/// Its peer is on the host's loopback, and the guest sees another address.
const LOCAL: u8 = 32;
/// Longest shift of a window (RFC 7323, section 2.3).
pub(crate) const MAX_SCALE: u8 = 14;
/// Minimum of the maximum segment size that a guest may offer: IPv4's default (RFC 9293, section
/// 3.7.1) is 536, and smaller ones are used by small devices.
pub(crate) const LEAST_MSS: u16 = 64;

/// A TCP flow as it was when it was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Address and port of the guest.
    pub guest: SocketAddr,
    /// Address and port of the other end, as the guest sees it.
    pub peer: SocketAddr,
    /// Station of the guest.
    pub station: MacAddr,
    /// Whether the socket connected; else it was accepted.
    pub connected: bool,
    /// Initial sequence number towards the guest.
    pub iss: u32,
    /// Initial sequence number of the guest.
    pub irs: u32,
    /// Longest segment towards the guest, bytes of payload.
    pub mss: u16,
    /// Shift of windows, the guest's and ours; `None`: not negotiated.
    pub scale: Option<(u8, u8)>,
}

/// A UDP mapping as it was when it was opened. When it was used last is not in it: a successor
/// gives it its whole time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingRecord {
    /// Address and port of the guest.
    pub guest: SocketAddr,
    /// The first that the guest has sent to, or the peer of a forward as the guest sees it.
    pub peer: SocketAddr,
    /// Station of the guest.
    pub station: MacAddr,
    /// The peer of a forward as the forward's socket sees it; `None` for other mappings.
    pub forwarded: Option<SocketAddr>,
}

/// A record of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowRecord {
    /// A TCP flow.
    Flow(Record),
    /// A UDP mapping.
    Mapping(MappingRecord),
}

/// Why a record is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a record of a flow")]
pub struct RecordError;

impl FlowRecord {
    /// The record as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        match self {
            Self::Flow(record) => record.encode(),
            Self::Mapping(record) => record.encode(),
        }
    }

    /// Reads a record. Whether its addresses are the network's is for the translator to check.
    ///
    /// # Errors
    /// [`RecordError`] for another version, and for values that no flow has.
    pub fn decode(bytes: &[u8; RECORD_LEN]) -> Result<Self, RecordError> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let flags = bytes[1];
        let (guest, peer) = (end(bytes, 24, half(20)), end(bytes, 40, half(22)));
        let station = MacAddr(std::array::from_fn(|i| bytes[6 + i]));
        let mss = half(4);
        let (kept, is_complete) = if flags & MAPPING != 0 {
            let record = MappingRecord {
                guest,
                peer,
                station,
                forwarded: (flags & FORWARDED != 0).then(|| forwarded(bytes, half(12), peer.ip())),
            };
            (Self::Mapping(record), record.is_complete())
        } else {
            let record = Record {
                guest,
                peer,
                station,
                connected: flags & CONNECTED != 0,
                iss: word(12),
                irs: word(16),
                mss,
                scale: (flags & SCALED != 0).then_some((bytes[2], bytes[3])),
            };
            (Self::Flow(record), mss >= LEAST_MSS)
        };
        // What has no other form encodes to the same bytes: unused bits and bytes are zero.
        let is_sound = kept.encode() == *bytes
            && bytes[2].max(bytes[3]) <= MAX_SCALE
            && is_complete
            && station.is_station()
            && guest.port() != 0
            && peer.port() != 0;
        is_sound.then_some(kept).ok_or(RecordError)
    }
}

impl Record {
    fn encode(&self) -> [u8; RECORD_LEN] {
        let flags = u8::from(self.connected) * CONNECTED + u8::from(self.scale.is_some()) * SCALED;
        let mut out = encode_ends((self.guest, self.peer), self.station, flags);
        let (guest, own) = self.scale.unwrap_or_default();
        out[2..4].copy_from_slice(&[guest, own]);
        out[4..6].copy_from_slice(&self.mss.to_le_bytes());
        out[12..16].copy_from_slice(&self.iss.to_le_bytes());
        out[16..20].copy_from_slice(&self.irs.to_le_bytes());
        out
    }
}

impl MappingRecord {
    fn encode(&self) -> [u8; RECORD_LEN] {
        let mut out = encode_ends((self.guest, self.peer), self.station, MAPPING);
        if let Some(peer) = self.forwarded {
            out[1] |= FORWARDED;
            out[12..14].copy_from_slice(&peer.port().to_le_bytes());
            if peer.ip() != self.peer.ip() {
                out[1] |= LOCAL;
            }
            if let (IpAddr::V4(local), LOCAL) = (peer.ip(), out[1] & LOCAL) {
                out[16..20].copy_from_slice(&local.octets());
            }
        }
        out
    }

    /// Returns whether its encoding has all of it. A peer of a forward is seen by the guest as it
    /// is, but for its port, or is on loopback.
    pub(crate) fn is_complete(&self) -> bool {
        self.forwarded.is_none_or(|forwarded| {
            let (ip, seen) = (forwarded.ip(), self.peer.ip());
            let is_sound = ip == seen || ip.is_loopback() && ip.is_ipv4() == seen.is_ipv4();
            let has_scope = matches!(forwarded, SocketAddr::V6(v6) if v6.scope_id() != 0);
            is_sound && !has_scope && forwarded.port() != 0
        })
    }
}

/// The peer of a forward, which the guest sees at the address `seen`.
fn forwarded(bytes: &[u8; RECORD_LEN], port: u16, seen: IpAddr) -> SocketAddr {
    let ip = match (bytes[1] & LOCAL, seen) {
        (0, _) => seen,
        (_, IpAddr::V4(_)) => [bytes[16], bytes[17], bytes[18], bytes[19]].into(),
        (_, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, port)
}

/// The fields of both kinds.
fn encode_ends(
    (guest, peer): (SocketAddr, SocketAddr),
    station: MacAddr,
    flags: u8,
) -> [u8; RECORD_LEN] {
    let mut out = [0; RECORD_LEN];
    out[0] = RECORD_VERSION;
    out[1] = flags + u8::from(guest.is_ipv6()) * IPV6;
    out[6..12].copy_from_slice(&station.0);
    out[20..22].copy_from_slice(&guest.port().to_le_bytes());
    out[22..24].copy_from_slice(&peer.port().to_le_bytes());
    for (at, end) in [(24, guest), (40, peer)] {
        match end.ip() {
            IpAddr::V4(v4) => out[at..at + 4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => out[at..at + 16].copy_from_slice(&v6.octets()),
        }
    }
    out
}

/// An address that lies at `at`, with its port.
fn end(bytes: &[u8; RECORD_LEN], at: usize, port: u16) -> SocketAddr {
    let octets: [u8; 16] = std::array::from_fn(|i| bytes[at + i]);
    let ip: IpAddr = match bytes[1] & IPV6 {
        0 => [octets[0], octets[1], octets[2], octets[3]].into(),
        _ => Ipv6Addr::from(octets).into(),
    };
    SocketAddr::new(ip, port)
}
