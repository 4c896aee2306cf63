//! What the operator writes about who may talk to whom: access lists, groups of ports, sets of addresses. `docs/POLICY.md` says what
//! they mean.
//!
//! The configuration file spells the lists of this document in the singular, as its tables are (`[[acl]]`, `[[acl.rule]]`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::shared::{Named, Shared};

/// All access lists, with what they name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessModel {
    /// Sets of addresses, for `@name` in rules.
    #[serde(alias = "address_set", skip_serializing_if = "Shared::is_empty")]
    #[schema(value_type = Vec<AddressSet>)]
    pub address_sets: Shared<AddressSet>,
    /// Groups of ports.
    #[serde(alias = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// What happens in a segment to frames that no rule matches.
    #[serde(alias = "acl_default", skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<SegmentDefault>,
    /// The lists, in their order.
    #[serde(alias = "acl", skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<AccessListSpec>,
}

impl AccessModel {
    /// Whether nothing is said: everything is allowed then.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The list of this name.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&AccessListSpec> {
        self.lists.iter().find(|list| list.name == name)
    }
}

/// A named set of addresses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressSet {
    /// Its name.
    pub name: String,
    /// IPv4 and IPv6 addresses and prefixes, like `10.0.0.0/8`.
    pub addresses: Vec<String>,
}

impl Named for AddressSet {
    fn name(&self) -> &str {
        &self.name
    }
}

/// A named group of ports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PortGroup)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Names of ports.
    pub ports: Vec<String>,
}

/// What happens to frames that no rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = AccessDefault)]
pub enum Otherwise {
    /// They pass.
    #[default]
    Allow,
    /// They are dropped.
    Deny,
}

impl Otherwise {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// The defaults of one segment; a segment without any allows both.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentDefault {
    /// The segment's name.
    pub segment: String,
    /// For frames as they come from their sender.
    #[serde(default)]
    pub from_guest: Otherwise,
    /// For frames as they go to a receiver.
    #[serde(default)]
    pub to_guest: Otherwise,
}

/// On which way of a frame a list is asked, as seen from the port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = AccessDirection)]
pub enum Direction {
    /// When it comes from the port's guest.
    FromGuest,
    /// When it goes to the port's guest.
    ToGuest,
}

impl Direction {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FromGuest => "from-guest",
            Self::ToGuest => "to-guest",
        }
    }
}

/// An access list and where it applies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessListSpec {
    /// Its name.
    pub name: String,
    /// Which way it is for.
    pub direction: Direction,
    /// Segments, all ports of which it applies to, in that segment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// Groups, all ports of which it applies to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Ports to which it applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The rules: the one of the highest `priority` that matches decides, among equals the first.
    #[serde(default, alias = "rule", skip_serializing_if = "Shared::is_empty")]
    #[schema(value_type = Vec<RuleSpec>)]
    pub rules: Shared<RuleSpec>,
}

impl AccessListSpec {
    /// The same without rules.
    #[must_use]
    pub fn without_rules(&self) -> Self {
        Self {
            rules: Shared::default(),
            name: self.name.clone(),
            direction: self.direction,
            segments: self.segments.clone(),
            groups: self.groups.clone(),
            ports: self.ports.clone(),
        }
    }
}

/// What a rule does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RuleAction {
    /// The frame passes this list.
    Allow,
    /// The frame is dropped.
    #[default]
    Drop,
    /// The frame is dropped and its sender told so.
    Reject,
    /// The frame passes, and so do the answers to it. Not available yet.
    AllowStateful,
}

impl RuleAction {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::AllowStateful => "allow-stateful",
        }
    }
}

/// Which pieces of datagrams a rule is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = FragmentPieces)]
pub enum Pieces {
    /// Whole datagrams alone.
    Whole,
    /// First fragments, which have the transport header.
    First,
    /// Later fragments, which have none.
    Later,
}

impl Pieces {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::First => "first",
            Self::Later => "later",
        }
    }
}

/// That a rule is logged: a line for each new flow that it decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AccessLog)]
pub struct LogSpec {
    /// Lines a second at most.
    pub per_second: u32,
}

/// One port or a range of them: a number, or a text like `"8000-8010"`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a port from 0 to 65535 or a range like \"8000-8010\""
)]
pub enum PortText {
    /// A number.
    Number(i64),
    /// A number or a range.
    Text(String),
}

/// A rule: what it matches and what happens then. What is not said matches everything.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    /// Its name, unique in its list. Counters and logs know the rule by the names of list and rule.
    pub name: String,
    /// The highest decides; among equals, the first in the list.
    #[serde(default)]
    pub priority: u32,
    /// What it does.
    pub action: RuleAction,
    /// Whether its uses are logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogSpec>,
    /// `52:54:00:00:00:01`, or with a mask: `52:54:00:00:00:00/ff:ff:ff:00:00:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_mac: Option<String>,
    /// Likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_mac: Option<String>,
    /// `ipv4`, `ipv6`, `arp`, or a number like `0x88cc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ether_type: Option<String>,
    /// The frame's tag as it came in, 1 to 4094; 0: none, or a priority tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<i64>,
    /// Addresses, prefixes, and `@set`. With `arp`, the sender's protocol address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<String>,
    /// Likewise; with `arp`, the target's protocol address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destination: Vec<String>,
    /// Ports that the frame came from; in lists to guests alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_ports: Vec<String>,
    /// Groups of such ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_groups: Vec<String>,
    /// `tcp`, `udp`, `icmp` (with IPv4), `icmpv6` (with IPv6), or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Of TCP or UDP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ports: Vec<PortText>,
    /// Of TCP or UDP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destination_ports: Vec<PortText>,
    /// Flags that are set, of those that are looked at: `syn/syn,ack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_flags: Option<String>,
    /// Of ICMP or ICMPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// With a type alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_code: Option<u8>,
    /// For these pieces of datagrams alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragment: Option<Pieces>,
}

impl Named for RuleSpec {
    fn name(&self) -> &str {
        &self.name
    }
}

/// A rule that never decides anything, because one before it in its list matches all that it does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Shadow {
    /// The list.
    pub list: String,
    /// The rule.
    pub rule: String,
    /// The one before it.
    pub by: String,
}

/// What is worth a look in access lists that are right. Answer of `GET /v1/access/warnings`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AccessWarnings {
    /// Rules that never decide anything.
    pub shadowed: Vec<Shadow>,
    /// Names of lists that have no ports, groups or segments.
    #[serde(default)]
    pub unattached: Vec<String>,
}
