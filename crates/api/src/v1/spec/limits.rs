//! Rate limits of a port.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::v1::objects::objects;

objects!(RateLimit, FloodLimit, LimitsSpec);

/// Reads a number with a decimal prefix of the SI: `1500`, `100k`, `2.5M`, `1G`, `1T`.
///
/// ```
/// assert_eq!(api::v1::parse_si("2.5G"), Some(2_500_000_000));
/// assert_eq!(api::v1::parse_si("100_000"), Some(100_000));
/// assert_eq!(api::v1::parse_si("0.0001k"), None); // no whole number
/// assert_eq!(api::v1::parse_si("1Ki"), None);
/// ```
pub fn parse_si(text: &str) -> Option<u64> {
    let (number, zeros) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 3),
        b'M' => (&text[..text.len() - 1], 6),
        b'G' => (&text[..text.len() - 1], 9),
        b'T' => (&text[..text.len() - 1], 12),
        _ => (text, 0),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let part = part.trim_end_matches('0');
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if !whole.starts_with(|c: char| c.is_ascii_digit())
        || !digits(whole)
        || !part.bytes().all(|b| b.is_ascii_digit())
        || part.len() > zeros
        || number.ends_with('.')
    {
        return None;
    }
    let whole: u64 = whole.replace('_', "").parse().ok()?;
    let part: u64 = format!("{part:0<zeros$}0").parse().ok()?;
    let scale = 10u64.pow(zeros as u32);
    whole.checked_mul(scale)?.checked_add(part / 10)
}

/// Rate limits in one direction. A segmentation-offload frame counts as the frames that it becomes
/// on the wire.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct RateLimit {
    /// Frames a second, 1 to 10^9.
    pub packets_per_second: Option<u64>,
    /// Burst in frames, 64 to 10^9. Default: the frames of 10 ms, at least 64.
    pub packets_burst: Option<u64>,
    /// Bits a second, 1 to 10^12, of Ethernet frames without preamble and checksum.
    pub bits_per_second: Option<u64>,
    /// Burst in bits, 524424 to 10^12; the minimum is the longest frame (64 KiB with its headers).
    /// Default: the bits of 10 ms, at least two such frames.
    pub bits_burst: Option<u64>,
}

/// Limit of frames that are flooded (storm control).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct FloodLimit {
    /// Frames a second, 1 to 10^9.
    pub packets_per_second: u64,
    /// Burst in frames, 1 to 10^9. Default: the frames of 100 ms, at least 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_burst: Option<u64>,
}

/// All limits of a port. Without a field there is no limit.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct LimitsSpec {
    /// Limit of frames from the guest. Frames above it wait in the guest's own queue; none is
    /// dropped.
    pub from_guest: Option<RateLimit>,
    /// Limit of frames to the guest. Frames above it are dropped as `rate-limited`.
    pub to_guest: Option<RateLimit>,
    /// Limit of broadcast frames from the guest. Frames above it are dropped as `storm-control`.
    pub broadcast: Option<FloodLimit>,
    /// Limit of multicast frames from the guest, likewise.
    pub multicast: Option<FloodLimit>,
    /// Limit of frames from the guest for unknown unicast addresses, which are flooded; likewise.
    pub unknown_unicast: Option<FloodLimit>,
}

impl LimitsSpec {
    /// Returns whether there is no limit.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
