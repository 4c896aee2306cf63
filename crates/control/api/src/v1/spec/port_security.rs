//! Port security: addresses and services that a port's guest may use.

use std::fmt;

use model::objects;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::v1::words::words;

objects!(PortSecuritySpec);

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
pub enum AllowedAddresses {
    /// A word.
    Word(AllowedWord),
    /// A list of addresses.
    List(Vec<String>),
}

impl<'de> Deserialize<'de> for AllowedAddresses {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(AllowedVisitor)
    }
}

/// Reads an [`AllowedAddresses`] so that errors have the value.
struct AllowedVisitor;

impl<'de> Visitor<'de> for AllowedVisitor {
    type Value = AllowedAddresses;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"any\", \"sticky\" or a list of addresses")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<AllowedAddresses, E> {
        let word = AllowedWord::from_word(text).map(AllowedAddresses::Word);
        word.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, array: A) -> Result<AllowedAddresses, A::Error> {
        Deserialize::deserialize(SeqAccessDeserializer::new(array)).map(AllowedAddresses::List)
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
    pub macs: Option<AllowedAddresses>,
    /// IP addresses and networks, of sources and of senders in ARP and neighbour discovery.
    /// Default: `any`.
    pub addresses: Option<AllowedAddresses>,
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
            macs: Some(AllowedAddresses::Word(AllowedWord::Any)),
            addresses: Some(AllowedAddresses::Word(AllowedWord::Any)),
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
    pub macs: AllowedAddresses,
    /// IP addresses and networks.
    pub addresses: AllowedAddresses,
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
            macs: AllowedAddresses::Word(AllowedWord::Any),
            addresses: AllowedAddresses::Word(AllowedWord::Any),
            dhcp_server: true,
            router: true,
            bound: Vec::new(),
        }
    }
}
