//! What the operator asks for: the switch, segments, ports, and changes to them.

mod access;
mod copying;
mod fdb;
mod guard;
mod limits;
mod metrics;
mod mirror;
mod port;
mod shared;
mod switch;

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

pub use self::access::{
    AccessListSpec, AccessModel, AccessWarnings, AddressSet, Direction, Group, LogSpec, Otherwise,
    Pieces, PortText, RuleAction, RuleSpec, SegmentDefault, Shadow,
};
pub use self::copying::CopyEngine;
pub use self::fdb::StaticEntry;
pub use self::guard::{Allowed, AllowedWord, GuardPatch, GuardSpec, GuardStatus};
pub use self::limits::{FloodLimit, LimitsSpec, RateLimit, parse_si};
pub use self::metrics::MetricsSpec;
pub use self::mirror::{MirrorDirection, MirrorSpec};
pub use self::port::{AdminState, PortKind, PortPatch, PortSpec, Role, UplinkDriver};
pub use self::shared::{Apart, Named, Piece, Shared};
pub(in crate::v1) use self::switch::Auto;
pub use self::switch::{BatchingSpec, GuestStates, Poll, SwitchSpec, Workers};

/// The segment of ports that name none. It always exists.
pub const DEFAULT_SEGMENT: &str = "default";

/// The most characters that a name of a switch, a segment or a port may have.
pub const NAME_MAX: usize = 32;

/// Says whether `name` may name a switch, a segment or a port: 1 to [`NAME_MAX`] characters out of
/// `A-Z a-z 0-9 _ . -`, at least one of them not a dot (`.` and `..` vanish from a URL's path).
///
/// ```
/// assert!(api::v1::valid_name("vm-1.lan"));
/// assert!(!api::v1::valid_name("vm 1"));
/// assert!(!api::v1::valid_name(".."));
/// ```
pub fn valid_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(known)
        && name.bytes().any(|b| b != b'.')
}

/// Reads a MAC address written as six pairs of hexadecimal digits with colons between them.
///
/// Returns `None` for any other spelling. Group addresses are read like all others: whether one is
/// acceptable is the caller's question.
///
/// ```
/// assert_eq!(api::v1::parse_mac("52:54:00:00:00:0A"), Some([0x52, 0x54, 0, 0, 0, 10]));
/// assert_eq!(api::v1::parse_mac("52-54-00-00-00-0A"), None);
/// ```
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut pairs = text.split(':');
    for byte in &mut mac {
        let pair = pairs.next()?;
        if pair.len() != 2 || !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    pairs.next().is_none().then_some(mac)
}

/// Everything that the operator asked for, in one value. Lists keep the operator's order. Answer of `GET /v1/state`, body of
/// `PUT /v1/state`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WantedState {
    /// The switch itself.
    #[serde(default)]
    pub switch: SwitchSpec,
    /// Where metrics are served.
    #[serde(default, skip_serializing_if = "MetricsSpec::is_default")]
    pub metrics: MetricsSpec,
    /// The L2 broadcast domains.
    #[serde(default)]
    pub segments: Vec<SegmentSpec>,
    /// The attachment points.
    #[serde(default)]
    pub ports: Vec<PortSpec>,
    /// Who may talk to whom; everybody when nothing is said.
    #[serde(default, skip_serializing_if = "says_nothing")]
    #[schema(value_type = AccessModel)]
    pub access: Arc<AccessModel>,
    /// What is also copied to another port; nothing when nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorSpec>,
    /// Stations that are where they are because it is said here; all others are learned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fdb: Vec<StaticEntry>,
}

fn says_nothing(access: &AccessModel) -> bool {
    access.is_empty()
}

impl WantedState {
    /// The port called `name`.
    pub fn port(&self, name: &str) -> Option<&PortSpec> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The mirror called `name`.
    pub fn mirror(&self, name: &str) -> Option<&MirrorSpec> {
        self.mirrors.iter().find(|mirror| mirror.name == name)
    }

    /// The segment called `name`.
    pub fn segment(&self, name: &str) -> Option<&SegmentSpec> {
        self.segments.iter().find(|segment| segment.name == name)
    }
}

/// An L2 broadcast domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentSpec {
    /// The segment's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// The VLAN tag (1 to 4094, IEEE 802.1Q) on trunk ports and uplinks; without one the segment is untagged there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4094)]
    pub vlan: Option<u16>,
    /// Questions who has an address (ARP requests, neighbour solicitations) are answered by the switch where a guard says for
    /// sure who has it, and reach nobody then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub neighbour_suppression: bool,
}

pub(in crate::v1) fn is_false(value: &bool) -> bool {
    !value
}

/// A change to a segment: body of `PATCH /v1/segments/{name}`, a JSON merge patch (RFC 7396). The name does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentPatch {
    /// The new tag; `null`: none.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u16>)]
    pub vlan: Option<Option<u16>>,
    /// Whether the switch answers questions for known addresses; `null`: no.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<bool>)]
    pub neighbour_suppression: Option<Option<bool>>,
}

/// Tells a field that is `null` from one that is absent: only present fields are deserialised.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}
