//! The desired state: the switch, segments, ports, and changes to them.

mod connections;
mod fdb;
mod limits;
mod metrics;
mod mirror;
mod patch;
mod pipe;
mod port;
mod port_list;
mod port_security;
mod qos;
mod seconds;
mod si;
mod switch;
mod user;

use std::sync::Arc;

use model::{AccessModel, objects};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::connections::{ConnectionsSpec, TimeoutsSpec};
pub use self::fdb::StaticEntry;
pub use self::limits::{FloodLimit, LimitsSpec, RateLimit};
pub use self::metrics::MetricsSpec;
pub use self::mirror::{MirrorDirection, MirrorSpec};
pub use self::patch::{Patch, PatchTarget};
pub use self::pipe::PipeSpec;
pub use self::port::{
    AdminState, PortEnd, PortKey, PortKind, PortPatch, PortSpec, PrefilterMode, Role, UplinkDriver,
};
pub use self::port_list::PortList;
pub use self::port_security::{
    AllowedAddresses, AllowedWord, PortSecuritySpec, PortSecurityStatus,
};
pub use self::qos::{
    Beyond, DEFAULT_CLASS, EgressSpec, FullAction, PortQosSpec, QOS_WEIGHT, QosClassPatch,
    QosClassSpec, QosGroupPatch, QosGroupSpec, QosRates,
};
pub use self::seconds::parse_seconds;
pub use self::si::parse_si;
pub use self::switch::{CoalescingSpec, PollLimit, SwitchSpec, Workers};
pub use self::user::{
    ForwardSpec, USER_BUFFERS_MIB, USER_GUEST_BUFFERS_MIB, USER_NETWORK, USER_SEARCH, UserSpec,
};

objects!(DesiredState, SegmentSpec);

/// Name of the segment of ports without `segment` and `trunk`. It always exists.
pub const DEFAULT_SEGMENT: &str = "default";

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
    #[schema(value_type = Vec<PortSpec>)]
    pub ports: PortList,
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

/// A merge patch of a segment.
pub type SegmentPatch = Patch<SegmentSpec>;

impl PatchTarget for SegmentSpec {
    const PATCH: &str = "SegmentPatch";
    const MEANING: &str = "A change to a segment: body of `PATCH /v1/segments/{name}`, a JSON merge patch (RFC 7396).\n\n\
         An absent field is unchanged; `null` resets one to its default. The name does not change.";
    const FIXED: &[&str] = &["name"];
}
