//! Access lists, groups of ports and address sets, as configured. `docs/user/access-lists.md`
//! describes them.
//!
//! The configuration file spells the lists of this document in the singular, as its tables are
//! (`[[acl]]`, `[[acl.rule]]`).

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::chunked_list::{ChunkedList, NamedElement};
use crate::{objects, words};

objects!(
    AccessModel,
    AddressSet,
    Group,
    SegmentDefault,
    AccessListSpec,
    LogSpec,
    RuleSpec
);

/// All access lists, with their groups and address sets.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct AccessModel {
    /// Address sets, for `@name` in rules.
    #[serde(alias = "address_set", skip_serializing_if = "ChunkedList::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<AddressSet>))]
    pub address_sets: ChunkedList<AddressSet>,
    /// Groups of ports.
    #[serde(alias = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// Default actions of segments, for frames that no rule matches.
    #[serde(alias = "acl_default", skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<SegmentDefault>,
    /// The lists, in their order.
    #[serde(alias = "acl", skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<AccessListSpec>,
}

impl AccessModel {
    /// Returns whether nothing is configured. Everything is allowed then.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the list of this name.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&AccessListSpec> {
        self.lists.iter().find(|list| list.name == name)
    }
}

/// A named set of addresses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AddressSet {
    /// Its name.
    pub name: String,
    /// IPv4 and IPv6 addresses and prefixes, like `10.0.0.0/8`.
    pub addresses: Vec<String>,
}

impl NamedElement for AddressSet {
    fn name(&self) -> &str {
        &self.name
    }
}

/// A named group of ports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schema(as = PortGroup))]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Names of ports.
    pub ports: Vec<String>,
}

/// Default actions for frames that no rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", schema(as = AccessDefault))]
pub enum Otherwise {
    /// Frames pass.
    #[default]
    Allow,
    /// Frames are dropped.
    Deny,
}

/// The default actions of a segment. A segment without any allows both directions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct SegmentDefault {
    /// The segment's name.
    pub segment: String,
    /// For frames from a port of the segment. Default: allow.
    #[serde(default)]
    pub from_guest: Otherwise,
    /// For frames to a port of the segment. Default: allow.
    #[serde(default)]
    pub to_guest: Otherwise,
}

words! {
    /// Directions of frames, as seen from the port.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[cfg_attr(feature = "schema", schema(as = AccessDirection))]
    pub enum Direction {
        /// From the port's guest.
        FromGuest = "from-guest",
        /// To the port's guest.
        ToGuest = "to-guest",
    }
}

/// An access list and the ports to which it applies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AccessListSpec {
    /// Its name.
    pub name: String,
    /// The direction of its frames.
    pub direction: Direction,
    /// Segments: the list applies to all their ports, for frames of that segment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// Groups: the list applies to all their ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Ports to which it applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The rules. The matching rule of the highest `priority` decides; among equal ones the first.
    #[serde(default, alias = "rule", skip_serializing_if = "ChunkedList::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<RuleSpec>))]
    pub rules: ChunkedList<RuleSpec>,
}

impl AccessListSpec {
    /// Returns the list without its rules.
    #[must_use]
    pub fn without_rules(&self) -> Self {
        Self {
            rules: ChunkedList::default(),
            name: self.name.clone(),
            direction: self.direction,
            segments: self.segments.clone(),
            groups: self.groups.clone(),
            ports: self.ports.clone(),
        }
    }
}

words! {
    /// Actions of a rule.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    pub enum RuleAction {
        /// The frame passes this list.
        Allow = "allow",
        /// The frame is dropped.
        #[default]
        Drop = "drop",
        /// The frame is dropped, and its sender gets a TCP reset or an ICMP error.
        Reject = "reject",
        /// The frame passes this list. If the other side allows it too, all later frames of its
        /// connection pass the lists of both sides, in both directions.
        AllowStateful = "allow-stateful",
    }
}

/// Parts of IP datagrams that a rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", schema(as = FragmentPieces))]
pub enum Pieces {
    /// Only unfragmented datagrams.
    Whole,
    /// First fragments, which have the transport header.
    First,
    /// Later fragments, which have none.
    Later,
}

/// Logging of a rule: a line for each new flow that it decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schema(as = AccessLog))]
pub struct LogSpec {
    /// Maximum number of lines a second.
    pub per_second: u32,
}

/// One port or a range of them: a number, or a text like `"8000-8010"`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(
    untagged,
    expecting = "expected a port from 0 to 65535 or a range like \"8000-8010\""
)]
pub enum PortText {
    /// A port number.
    Number(i64),
    /// A port number or a range of them.
    Text(String),
}

/// A rule: its match and its action. A field that is absent matches everything.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct RuleSpec {
    /// Its name, unique in its list. Counters and logs have the names of list and rule.
    pub name: String,
    /// The matching rule with the highest priority decides; among equal ones the first in the list.
    /// Default: 0.
    #[serde(default)]
    pub priority: u32,
    /// The action.
    pub action: RuleAction,
    /// Logging of the flows that the rule decides.
    pub log: Option<LogSpec>,
    /// The source MAC address: `52:54:00:00:00:01`, or with a mask:
    /// `52:54:00:00:00:00/ff:ff:ff:00:00:00`.
    pub source_mac: Option<String>,
    /// The destination MAC address, likewise.
    pub destination_mac: Option<String>,
    /// The EtherType: `ipv4`, `ipv6`, `arp`, or a number like `0x88cc`.
    pub ether_type: Option<String>,
    /// The VLAN tag of the received frame, 1 to 4094; 0 for none or a priority tag.
    pub vlan: Option<i64>,
    /// Source addresses: addresses, prefixes, and `@name` of an address set. With `arp`, the
    /// sender's protocol address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<String>,
    /// Destination addresses, likewise. With `arp`, the target's protocol address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destination: Vec<String>,
    /// Ports that the frame comes from; only in lists with the direction `to-guest`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_ports: Vec<String>,
    /// Groups of such ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_groups: Vec<String>,
    /// The IP protocol: `tcp`, `udp`, `icmp` (with IPv4), `icmpv6` (with IPv6), or a number.
    pub protocol: Option<String>,
    /// Of TCP or UDP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ports: Vec<PortText>,
    /// Of TCP or UDP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destination_ports: Vec<PortText>,
    /// TCP flags and their mask: `syn/syn,ack` matches `syn` without `ack`.
    pub tcp_flags: Option<String>,
    /// The type of ICMP or ICMPv6.
    pub icmp_type: Option<u8>,
    /// The code of ICMP or ICMPv6; only with a type.
    pub icmp_code: Option<u8>,
    /// Parts of IP datagrams. Default: all.
    pub fragment: Option<Pieces>,
    /// The traffic class of frames that the rule allows.
    pub class: Option<String>,
}

impl NamedElement for RuleSpec {
    fn name(&self) -> &str {
        &self.name
    }
}
