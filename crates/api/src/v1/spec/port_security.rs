//! Port security: addresses and services that a port's guest may use.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::v1::objects::objects;
use crate::v1::words::words;

use super::present;
use crate::v1::old_names;

objects!(PortSecuritySpec, PortSecurityPatch);

words! {
    /// Address rules without a list.
    pub enum AllowedWord {
        /// All addresses.
        Any = "any",
        /// Sticky learning: the first address that the guest uses is bound to the port until the
        /// port's connection ends.
        Sticky = "sticky",
    }
}

/// Addresses that a guest may use: a word, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Allowed {
    /// A word.
    Word(AllowedWord),
    /// A list of addresses.
    List(Vec<String>),
}

impl<'de> Deserialize<'de> for Allowed {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(AllowedVisitor)
    }
}

/// Reads an [`Allowed`] so that errors have the value.
struct AllowedVisitor;

impl<'de> Visitor<'de> for AllowedVisitor {
    type Value = Allowed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"any\", \"sticky\" or a list of addresses")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Allowed, E> {
        let word = AllowedWord::from_word(text).map(Allowed::Word);
        word.ok_or_else(|| match old_names::old_value(text, AllowedWord::WORDS) {
            Some(row) => E::custom(row),
            None => E::invalid_value(Unexpected::Str(text), &self),
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, array: A) -> Result<Allowed, A::Error> {
        Deserialize::deserialize(SeqAccessDeserializer::new(array)).map(Allowed::List)
    }
}

/// Port security: what a port's guest may send. The defaults of a vhost-user, netmap or memif port
/// are those for a single host; other ports are not restricted by default.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct PortSecuritySpec {
    /// Source MAC addresses. Default for a vhost-user, netmap or memif port: its `mac`, or `sticky`
    /// without one; for others `any`.
    pub macs: Option<Allowed>,
    /// IP addresses and networks, of sources and of senders in ARP and neighbour discovery.
    /// Default: `any`.
    pub addresses: Option<Allowed>,
    /// Whether the guest may serve DHCP, for IPv4 and IPv6. Default: false for a vhost-user, netmap
    /// or memif port, true for others.
    pub dhcp_server: Option<bool>,
    /// Whether the guest may send router advertisements and redirects. Default: false for a
    /// vhost-user, netmap or memif port, true for others.
    pub router: Option<bool>,
}

impl PortSecuritySpec {
    /// Returns port security without restrictions.
    pub fn open() -> Self {
        Self {
            macs: Some(Allowed::Word(AllowedWord::Any)),
            addresses: Some(Allowed::Word(AllowedWord::Any)),
            dhcp_server: Some(true),
            router: Some(true),
        }
    }

    /// Returns whether all fields are absent.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Port security in effect, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortSecurityStatus {
    /// Source MAC addresses.
    pub macs: Allowed,
    /// IP addresses and networks.
    pub addresses: Allowed,
    /// Whether the guest may serve DHCP.
    pub dhcp_server: bool,
    /// Whether the guest may be a router.
    pub router: bool,
    /// The sticky bindings: addresses that were learned.
    pub bound: Vec<String>,
}

impl Default for PortSecurityStatus {
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

/// A change to port security, a JSON merge patch (RFC 7396). An absent field is unchanged; `null`
/// resets it to its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct PortSecurityPatch {
    /// Source MAC addresses.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub macs: Option<Option<Allowed>>,
    /// IP addresses and networks.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Option<Allowed>>,
    /// Whether the guest may serve DHCP.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub dhcp_server: Option<Option<bool>>,
    /// Whether the guest may be a router.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub router: Option<Option<bool>>,
}
