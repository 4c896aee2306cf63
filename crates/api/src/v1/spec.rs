//! The desired state: the switch, segments, ports, and changes to them.

mod access;
mod chunked_list;
mod fdb;
mod helpers;
mod limits;
mod metrics;
mod mirror;
mod pipe;
mod port;
mod port_security;
mod qos;
mod secret;
mod switch;
mod user;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::v1::objects::objects;

pub use self::access::{
    AccessListSpec, AccessModel, AccessWarnings, AddressSet, Direction, Group, LogSpec, Otherwise,
    Pieces, PortText, RuleAction, RuleSpec, SegmentDefault, Shadow,
};
pub use self::chunked_list::{Chunk, ChunkedList, ListDifference, Named};
pub use self::fdb::StaticEntry;
pub use self::helpers::{Enabled, HelpersSpec};
pub use self::limits::{FloodLimit, LimitsSpec, RateLimit, parse_si};
pub use self::metrics::MetricsSpec;
pub use self::mirror::{MirrorDirection, MirrorSpec};
pub use self::pipe::PipeSpec;
pub use self::port::{AdminState, Iommu, PortKind, PortPatch, PortSpec, Role, UplinkDriver};
pub use self::port_security::{
    Allowed, AllowedWord, PortSecurityPatch, PortSecuritySpec, PortSecurityStatus,
};
pub use self::qos::{
    Beyond, DEFAULT_CLASS, EgressSpec, Full, PortQosSpec, QOS_WEIGHT, QosClassPatch, QosClassSpec,
    QosGroupPatch, QosGroupSpec, QosRates,
};
pub use self::secret::Secret;
pub use self::switch::{CoalescingSpec, GuestStates, Poll, SwitchSpec, Workers};
pub use self::user::{
    ForwardSpec, USER_BUFFERS_MIB, USER_GUEST_BUFFERS_MIB, USER_NETWORK, UserSpec,
};

objects!(DesiredState, SegmentSpec, SegmentPatch);

/// Name of the segment of ports without `segment` and `trunk`. It always exists.
pub const DEFAULT_SEGMENT: &str = "default";

/// Maximum length of the name of a switch, a segment or a port, in characters.
pub const NAME_MAX: usize = 32;

/// Returns whether `name` may name a switch, a segment or a port: 1 to [`NAME_MAX`] characters out
/// of `A-Z a-z 0-9 _ . -`, at least one of them not a dot (`.` and `..` vanish from a URL's path).
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
/// Returns `None` for any other spelling. Group addresses are accepted: the caller checks whether
/// they are valid in their place.
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

/// The desired state as one document. Lists keep their order. Answer of `GET /v1/state`, body of
/// `PUT /v1/state`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct DesiredState {
    /// The switch itself.
    #[serde(default)]
    pub switch: SwitchSpec,
    /// The socket for metrics.
    #[serde(default, skip_serializing_if = "MetricsSpec::is_default")]
    pub metrics: MetricsSpec,
    /// The L2 broadcast domains.
    #[serde(default)]
    pub segments: Vec<SegmentSpec>,
    /// Traffic classes. Frames that nothing classifies are of the class `default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub qos_classes: Vec<QosClassSpec>,
    /// Groups of senders at scheduled ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub qos_groups: Vec<QosGroupSpec>,
    /// The attachment points.
    #[serde(default)]
    pub ports: Vec<PortSpec>,
    /// Access lists. Default: everything is allowed.
    #[serde(default, skip_serializing_if = "says_nothing")]
    #[schema(value_type = AccessModel)]
    pub access: Arc<AccessModel>,
    /// Mirrors, which copy frames to another port. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorSpec>,
    /// Pipes, over which two processes share memory. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pipes: Vec<PipeSpec>,
    /// Static FDB entries. All other addresses are learned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fdb: Vec<StaticEntry>,
}

fn says_nothing(access: &AccessModel) -> bool {
    access.is_empty()
}

impl DesiredState {
    /// Returns the port of this name.
    pub fn port(&self, name: &str) -> Option<&PortSpec> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// Returns the mirror of this name.
    pub fn mirror(&self, name: &str) -> Option<&MirrorSpec> {
        self.mirrors.iter().find(|mirror| mirror.name == name)
    }

    /// Returns the configured class of this name.
    pub fn qos_class(&self, name: &str) -> Option<&QosClassSpec> {
        self.qos_classes.iter().find(|class| class.name == name)
    }

    /// Returns the group of senders of this name.
    pub fn qos_group(&self, name: &str) -> Option<&QosGroupSpec> {
        self.qos_groups.iter().find(|group| group.name == name)
    }

    /// Returns the segment of this name.
    pub fn segment(&self, name: &str) -> Option<&SegmentSpec> {
        self.segments.iter().find(|segment| segment.name == name)
    }
}

/// An L2 broadcast domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct SegmentSpec {
    /// The segment's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// The VLAN tag (1 to 4094, IEEE 802.1Q) on trunk ports and uplinks; without one the segment is
    /// untagged there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4094)]
    pub vlan: Option<u16>,
    /// Neighbour suppression (RFC 9161): the switch answers ARP requests and neighbour
    /// solicitations for addresses that port security binds to a port, and does not forward them.
    /// Default: false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub neighbour_suppression: bool,
}

pub(in crate::v1) fn is_false(value: &bool) -> bool {
    !value
}

/// A change to a segment: body of `PATCH /v1/segments/{name}`, a JSON merge patch (RFC 7396). The
/// name does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct SegmentPatch {
    /// The new VLAN tag; `null` for none.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Option<u16>>,
    /// Neighbour suppression; `null` for the default.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub neighbour_suppression: Option<Option<bool>>,
}

/// Distinguishes a field that is `null` from an absent one: only present fields are deserialised.
mod present {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn deserialize<'de, T, D>(input: D) -> Result<Option<T>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        T::deserialize(input).map(Some)
    }

    pub(super) fn serialize<T, S>(value: &Option<T>, output: S) -> Result<S::Ok, S::Error>
    where
        T: Serialize,
        S: Serializer,
    {
        value.serialize(output)
    }
}
