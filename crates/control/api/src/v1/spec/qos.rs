//! Scheduled ports: traffic classes, groups of senders, outputs and the shares of their senders.
//! `docs/user/qos.md` describes them.

use std::collections::BTreeMap;

use model::objects;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::v1::words::words;

use super::{Patch, PatchTarget, si};

objects!(
    QosClassSpec,
    QosGroupSpec,
    EgressSpec,
    PortQosSpec,
    QosRates
);

/// Name of the class of frames that nothing else classifies. It always exists.
pub const DEFAULT_CLASS: &str = "default";

/// Weight of groups, ports and classes without one.
pub const QOS_WEIGHT: u16 = 100;

words! {
    /// Treatment of frames while the interface of a port takes no more.
    pub enum FullAction {
        /// Senders wait; after 50 ms frames are dropped as `receiver-full`.
        Hold = "hold",
        /// Frames are dropped as `receiver-full`.
        Drop = "drop",
    }
}

words! {
    /// Fate of a frame that its sender may not send yet.
    pub enum Beyond {
        /// It waits in the sender's queue, with all behind it.
        Hold = "hold",
        /// It is dropped as `rate-limited`.
        Drop = "drop",
    }
}

/// A traffic class: body of `POST /v1/qos/classes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct QosClassSpec {
    /// The class's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// Its priority, 0 to 7: higher ones are served before lower ones, within their `max`.
    /// Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schema(minimum = 0, maximum = 7)]
    pub priority: u8,
    /// DSCP values (RFC 2474), 0 to 63, of the frames of this class, from ports with `trust_dscp`.
    /// Each value belongs to one class. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dscp: Vec<u8>,
    /// The priority code point (IEEE 802.1Q), 0 to 7, that is written into VLAN tags of the frames
    /// of this class. Default: tags keep theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 7)]
    pub pcp: Option<u8>,
}

impl QosClassSpec {
    /// Returns a class with all other fields at their defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            priority: 0,
            dscp: Vec::new(),
            pcp: None,
        }
    }
}

/// A merge patch of a class.
pub type QosClassPatch = Patch<QosClassSpec>;

impl PatchTarget for QosClassSpec {
    const PATCH: &str = "QosClassPatch";
    const MEANING: &str = "A change to a class: body of `PATCH /v1/qos/classes/{name}`, a JSON merge patch (RFC 7396).\n\n\
         An absent field is unchanged; `null` resets one to its default. The name does not change.";
    const FIXED: &[&str] = &["name"];
}

/// A group of senders, which share its rates at each scheduled port: body of
/// `POST /v1/qos/groups`. Its members are the ports with `qos.group`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct QosGroupSpec {
    /// The group's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// Guaranteed bits a second, 1 to 10^12. Default: none.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub min: Option<u64>,
    /// Maximum number of bits a second, 1 to 10^12. Default: no limit.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub max: Option<u64>,
    /// Burst in bits, 524424 to 10^12; the minimum is the longest frame. Default: the bits of 10 ms
    /// at `max` or `min`, at least two such frames.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub burst: Option<u64>,
    /// Its part of what is left, 1 to 1000, relative to others. Default: 100.
    #[serde(default = "weight", skip_serializing_if = "is_usual")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u16,
}

impl QosGroupSpec {
    /// Returns a group with all other fields at their defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            min: None,
            max: None,
            burst: None,
            weight: weight(),
        }
    }

    /// Returns its rates.
    #[must_use]
    pub fn rates(&self) -> QosRates {
        QosRates {
            min: self.min,
            max: self.max,
            burst: self.burst,
            weight: self.weight,
        }
    }
}

/// A merge patch of a group.
pub type QosGroupPatch = Patch<QosGroupSpec>;

impl PatchTarget for QosGroupSpec {
    const PATCH: &str = "QosGroupPatch";
    const MEANING: &str = "A change to a group: body of `PATCH /v1/qos/groups/{name}`, a JSON merge patch (RFC 7396).\n\n\
         An absent field is unchanged; `null` resets one to its default. The name does not change.";
    const FIXED: &[&str] = &["name"];
}

/// Rates of one class of a port, within those of the port.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct QosRates {
    /// Guaranteed bits a second, 1 to 10^12. Default: none.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub min: Option<u64>,
    /// Maximum number of bits a second, 1 to 10^12. Default: no limit.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub max: Option<u64>,
    /// Burst in bits, 524424 to 10^12; the minimum is the longest frame. Default: the bits of 10 ms
    /// at `max` or `min`, at least two such frames.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub burst: Option<u64>,
    /// Its part of what is left, 1 to 1000, relative to others. Default: 100.
    #[serde(default = "weight", skip_serializing_if = "is_usual")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u16,
}

impl Default for QosRates {
    fn default() -> Self {
        Self {
            min: None,
            max: None,
            burst: None,
            weight: weight(),
        }
    }
}

/// Scheduling of the frames that go out by a port.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct EgressSpec {
    /// Bits a second, 1 to 10^12. Default for an uplink: the speed of its interface, where that is
    /// known. Other ports need it.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub rate: Option<u64>,
    /// Bytes that a frame takes beside its own, 0 to 256: preamble, checksum and gap of Ethernet.
    /// Default: 24 for an uplink, 0 for other ports.
    #[schema(minimum = 0, maximum = 256)]
    pub overhead: Option<u32>,
    /// Treatment of frames while the interface takes no more. Only of uplinks and TAP ports.
    /// Default: `hold`.
    pub full: Option<FullAction>,
    /// Bytes that may wait between the switch and the wire, 65553 to 10^9; the minimum is the
    /// longest frame. Only of uplinks and TAP ports. Default: 256000, or what 0.4 ms at `rate`
    /// carry if that is more.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub room: Option<u64>,
}

/// Settings of a port as a sender, at every scheduled port that it can reach.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct PortQosSpec {
    /// Guaranteed bits a second, 1 to 10^12. Default: none.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub min: Option<u64>,
    /// Maximum number of bits a second, 1 to 10^12. Default: no limit.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub max: Option<u64>,
    /// Burst in bits, 524424 to 10^12; the minimum is the longest frame. Default: the bits of 10 ms
    /// at `max` or `min`, at least two such frames.
    #[serde(default, deserialize_with = "si::optional")]
    #[schema(value_type = Option<si::Number>)]
    pub burst: Option<u64>,
    /// The least priority of its frames, 0 to 7; that of their class counts where it is higher.
    /// Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schema(minimum = 0, maximum = 7)]
    pub priority: u8,
    /// Its part of what is left, 1 to 1000, relative to others. Default: 100.
    #[serde(default = "weight", skip_serializing_if = "is_usual")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u16,
    /// The group that it belongs to. Default: none.
    pub group: Option<String>,
    /// Fate of frames that may not go yet. Those of uplinks are always dropped. Default for other
    /// ports: `hold`.
    pub beyond: Option<Beyond>,
    /// Whether the DSCP of its frames gives them their class. Default: `true` for an uplink,
    /// `false` for other ports.
    pub trust_dscp: Option<bool>,
    /// Classes of all frames of its queue pairs, beginning with the first pair, whatever else
    /// classifies them. Pairs without an entry have none of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_by_pair: Vec<String>,
    /// Rates of its frames of some classes, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, QosRates>,
}

impl Default for PortQosSpec {
    fn default() -> Self {
        Self {
            min: None,
            max: None,
            burst: None,
            priority: 0,
            weight: weight(),
            group: None,
            beyond: None,
            trust_dscp: None,
            class_by_pair: Vec::new(),
            classes: BTreeMap::new(),
        }
    }
}

impl PortQosSpec {
    /// Returns whether everything is at its default.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Returns its rates.
    #[must_use]
    pub fn rates(&self) -> QosRates {
        QosRates {
            min: self.min,
            max: self.max,
            burst: self.burst,
            weight: self.weight,
        }
    }
}

const fn weight() -> u16 {
    QOS_WEIGHT
}

const fn is_usual(value: &u16) -> bool {
    *value == QOS_WEIGHT
}

const fn is_zero(value: &u8) -> bool {
    *value == 0
}
