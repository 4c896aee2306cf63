//! Connections of connection tracking.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

use super::{ConnectionLimit, DesiredState, Problem, Traffic};
use crate::v1::words::words;

/// Maximum number of connections in an answer.
pub const CONNECTIONS_MAX: u16 = 1024;
/// Default number of connections in an answer.
pub const CONNECTIONS_DEFAULT: u16 = 100;

/// Query of `GET /v1/connections`: selects connections. An absent field matches all.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ConnectionsFilter {
    /// Only connections from or to this port.
    pub port: Option<String>,
    /// Only connections of this segment.
    pub segment: Option<String>,
    /// Only connections that this filter matches, in the language of captures, as `dst port 80`.
    /// The source is the side that opened the connection.
    pub filter: Option<String>,
    /// Maximum number of connections, 1 to 1024. Default: 100.
    pub limit: Option<u16>,
}

/// Query of `GET /v1/connections/count` and `DELETE /v1/connections`: selects connections. An
/// absent field matches all.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ConnectionsSelection {
    /// Only connections from or to this port.
    pub port: Option<String>,
    /// Only connections of this segment.
    pub segment: Option<String>,
    /// Only connections that this filter matches, in the language of captures, as `dst port 80`.
    /// The source is the side that opened the connection.
    pub filter: Option<String>,
}

impl ConnectionsFilter {
    /// Returns the selection, without the limit.
    #[must_use]
    pub fn selection(&self) -> ConnectionsSelection {
        ConnectionsSelection {
            port: self.port.clone(),
            segment: self.segment.clone(),
            filter: self.filter.clone(),
        }
    }
}

impl ConnectionsSelection {
    /// Checks that the segment and the port exist.
    ///
    /// # Errors
    /// 404 with the field, if the segment or the port does not exist.
    pub fn check(&self, desired: &DesiredState) -> Result<(), Problem> {
        let (segment, port) = (self.segment.as_deref(), self.port.as_deref());
        if let Some(name) = segment.filter(|name| desired.segment(name).is_none()) {
            return Err(Problem::no_such("segment", name).with_field("segment"));
        }
        if let Some(name) = port.filter(|name| desired.port(name).is_none()) {
            return Err(Problem::no_such("port", name).with_field("port"));
        }
        Ok(())
    }
}

/// Answer of `GET /v1/connections`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionsDocument {
    /// Connections, in no particular order.
    pub connections: Vec<ConnectionEntry>,
    /// Whether there are more than the limit.
    pub more: bool,
    /// The table of connections; absent where there is none: no rule is `allow-stateful`.
    pub table: Option<ConnectionTable>,
}

/// Answer of `GET /v1/connections/count`.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionsCount {
    /// Number of connections.
    pub count: u64,
    /// The table of connections; absent where there is none: no rule is `allow-stateful`.
    pub table: Option<ConnectionTable>,
}

/// Answer of `DELETE /v1/connections`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionsFlush {
    /// Whether the connections are gone. If not, they are removed in parts, and an event of the
    /// kind `connections_flushed` has their number at the end.
    pub done: bool,
}

/// The table of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionTable {
    /// Maximum number of connections.
    pub max: u32,
    /// Entries in use; those of connections that are over count until they are removed, within
    /// seconds.
    pub used: u32,
}

/// A connection.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionEntry {
    /// `tcp`, `udp`, `icmp`, `icmpv6`, or the number of another IP protocol.
    pub protocol: String,
    /// State of a TCP connection, by the name that Linux's `nf_conntrack` has for it.
    pub state: Option<String>,
    /// Name of the segment.
    pub segment: String,
    /// Frames of the side that opened the connection.
    pub original: ConnectionDirection,
    /// Frames of the side that answers.
    pub reply: ConnectionDirection,
    /// Identifier of ICMP queries.
    pub identifier: Option<u16>,
    /// The access list with the rule that let it in, if it still has that rule.
    pub list: Option<String>,
    /// The rule that let it in.
    pub rule: Option<String>,
    /// Milliseconds since it was let in.
    pub age_ms: u32,
    /// Milliseconds until it is forgotten, unless there are frames.
    pub expires_ms: u32,
    /// Flags, in a fixed order.
    pub flags: Vec<ConnectionFlag>,
}

/// A direction of a connection.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionDirection {
    /// Source address, with the port of a protocol that has ports.
    pub source: String,
    /// Destination address, likewise.
    pub destination: String,
    /// The switch port that these frames come from; absent while it is not known.
    pub port: Option<String>,
    /// Frames and bytes.
    pub traffic: Traffic,
}

words! {
    /// Flags of a connection.
    #[derive(Default)]
    pub enum ConnectionFlag {
        /// The other side has not answered.
        Unreplied = "unreplied",
        /// More than a question and its answer have passed: it makes room for no other connection
        /// while its port is within its share.
        Assured = "assured",
        /// Rules have denied a frame of it, and none of its frames is let in until rules let one
        /// in. It makes room for others first.
        Denied = "denied",
        /// A flag of a newer server that this client does not know.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}

/// Connections of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortConnections {
    /// Those that it has opened.
    pub opened: AccountStatus,
    /// Those that ports without guests, as uplinks, have opened to it. Connections between guests
    /// count where they were opened.
    pub opened_to: AccountStatus,
    /// Connections that were opened so far, of both kinds.
    pub opened_total: u64,
    /// Unanswered connections that made room for others.
    pub evicted_unreplied: u64,
    /// Answered connections that did.
    pub evicted: u64,
    /// Connections that its limits refused.
    pub refused: u64,
    /// Frames of the port that belonged to no connection and opened none.
    pub invalid: u64,
}

/// Connections of one kind, and their limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountStatus {
    /// Connections now.
    pub connections: u32,
    /// Those of them that were not answered.
    pub unreplied: u32,
    /// Their limit now.
    pub limit: u32,
    /// The origin of the limit.
    pub bound: ConnectionLimit,
    /// Limit of those that were not answered.
    pub unreplied_limit: u32,
}

impl AccountStatus {
    /// Returns the bound that is reached, and its value.
    #[must_use]
    pub fn reached(&self) -> Option<(ConnectionLimit, u32)> {
        if self.connections >= self.limit {
            Some((self.bound, self.limit))
        } else if self.unreplied >= self.unreplied_limit {
            Some((ConnectionLimit::Unreplied, self.unreplied_limit))
        } else {
            None
        }
    }
}
