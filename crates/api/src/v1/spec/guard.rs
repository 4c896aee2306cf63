//! Who a port's guest may claim to be.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::present;

/// Addresses that are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AllowedWord {
    /// All of them.
    Any,
    /// The first that is heard; it stays the only one until the port's connection ends.
    LearnedOnce,
}

impl AllowedWord {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::LearnedOnce => "learned-once",
        }
    }
}

/// Which addresses a guest may use: a word, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected \"any\", \"learned-once\" or a list of addresses"
)]
pub enum Allowed {
    /// A rule.
    Word(AllowedWord),
    /// These.
    List(Vec<String>),
}

/// What a port's guest may send. For a vhost-user port of which nothing is said, that is what a host of its own needs; other
/// ports may send anything, unless it is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardSpec {
    /// Source MAC addresses. When nothing is said, for a vhost-user port the port's `mac`, or `learned-once` without one;
    /// for others `any`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub macs: Option<Allowed>,
    /// IP addresses and networks, as sources and as what ARP and neighbour discovery claim; `any` when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Allowed>,
    /// Whether the guest may serve DHCP, for IPv4 and IPv6; when nothing is said, not on a vhost-user port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp_server: Option<bool>,
    /// Whether the guest may advertise itself as a router, and redirect; when nothing is said, not on a vhost-user port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<bool>,
}

impl GuardSpec {
    /// A guard that lets everything pass.
    pub fn open() -> Self {
        Self {
            macs: Some(Allowed::Word(AllowedWord::Any)),
            addresses: Some(Allowed::Word(AllowedWord::Any)),
            dhcp_server: Some(true),
            router: Some(true),
        }
    }

    /// Whether nothing is said.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What a port's guest may send, whether it was said or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuardStatus {
    /// Source MAC addresses.
    pub macs: Allowed,
    /// IP addresses and networks.
    pub addresses: Allowed,
    /// Whether it may serve DHCP.
    pub dhcp_server: bool,
    /// Whether it may be a router.
    pub router: bool,
    /// The addresses that were learned once.
    pub bound: Vec<String>,
}

impl Default for GuardStatus {
    fn default() -> Self {
        Self {
            macs: Allowed::Word(AllowedWord::Any),
            addresses: Allowed::Word(AllowedWord::Any),
            dhcp_server: true,
            router: true,
            bound: Vec::new(),
        }
    }
}

/// A change to a port's guard, a JSON merge patch (RFC 7396): what is absent stays as it is; `null` stands for what is so when
/// nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardPatch {
    /// Source MAC addresses.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<Allowed>)]
    pub macs: Option<Option<Allowed>>,
    /// IP addresses and networks.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<Allowed>)]
    pub addresses: Option<Option<Allowed>>,
    /// Whether the guest may serve DHCP.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<bool>)]
    pub dhcp_server: Option<Option<bool>>,
    /// Whether the guest may be a router.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<bool>)]
    pub router: Option<Option<bool>>,
}

impl GuardPatch {
    /// A guard with the patch applied; none takes all away that was said.
    pub fn applied(patch: Option<&Self>, to: &GuardSpec) -> GuardSpec {
        let Some(patch) = patch.cloned() else {
            return GuardSpec::default();
        };
        let old = to.clone();
        GuardSpec {
            macs: patch.macs.unwrap_or(old.macs),
            addresses: patch.addresses.unwrap_or(old.addresses),
            dhcp_server: patch.dhcp_server.unwrap_or(old.dhcp_server),
            router: patch.router.unwrap_or(old.router),
        }
    }
}
