//! Figures of a user port, its flows and its leases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

/// Most connections and UDP mappings of a user port.
pub const USER_FLOWS_MAX: u32 = 65_536;
/// Most of them that can outlive its driver process.
pub const USER_KEPT_MAX: u32 = 8192;

/// Connections and UDP mappings of a user port. Its counters do not begin anew with its driver
/// process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserPortStatus {
    /// Connections and mappings now.
    pub flows: u32,
    /// The most that the port may have: 65536, or what the limit of descriptors leaves.
    pub flows_max: u32,
    /// Those that outlive the driver process.
    pub kept: u32,
    /// The most that can outlive it: 8192, or an eighth of Lasthop's limit of descriptors.
    pub kept_max: u32,
    /// The flows by protocol and state.
    pub states: Vec<UserFlowCount>,
    /// New flows by result: `established` connections and opened mappings, connections that were
    /// `refused` by the other end, and those that `failed` otherwise.
    pub results: BTreeMap<String, u64>,
    /// Frames and connections that were refused, by drop reason.
    pub refused: BTreeMap<String, u64>,
    /// Bytes of payload that sockets took of guests.
    pub from_guests_bytes: u64,
    /// Bytes of payload that guests took of sockets.
    pub to_guests_bytes: u64,
    /// Questions of guests to the DNS server.
    pub dns_questions: u64,
}

/// Flows of a user port with one protocol in one state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserFlowCount {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Of TCP `half-open`, `established`, `half-closed` or `time-wait`; of UDP `mapped`.
    pub state: String,
    /// How many.
    pub flows: u32,
}

/// Maximum number of flows in an answer.
pub const USER_LIST_MAX: u16 = 1024;
/// Default number of flows in an answer.
pub const USER_LIST_DEFAULT: u16 = 100;

/// Query of `GET /v1/ports/{name}/user/flows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UserFlowsFilter {
    /// Maximum number of flows, 1 to 1024. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u16>,
}

/// Answer of `GET /v1/ports/{name}/user/flows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserFlowsDocument {
    /// Flows, in no order that has a meaning. Flows that begin or end meanwhile may be missing.
    pub flows: Vec<UserFlowEntry>,
}

/// A connection or UDP mapping of a user port.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserFlowEntry {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Of TCP `half-open`, `established`, `half-closed` or `time-wait`; of UDP `mapped`.
    pub state: String,
    /// The guest's address and port.
    pub guest: String,
    /// The guest's MAC address.
    pub mac: String,
    /// Name of the port of the guest, if it is known.
    pub port: Option<String>,
    /// Address and port of the other end, as the guest sees it; of a mapping the first.
    pub peer: String,
    /// Milliseconds since it was opened; absent if that was before the driver process started.
    pub age_ms: Option<u64>,
    /// Bytes of payload from the guest, if they are known.
    pub from_guest_bytes: Option<u64>,
    /// Bytes of payload that the guest has acknowledged, or of datagrams to it, if they are known.
    pub to_guest_bytes: Option<u64>,
}

/// Answer of `GET /v1/ports/{name}/user/leases`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserLeasesDocument {
    /// Addresses that guests have by DHCP, by MAC address.
    pub leases: Vec<UserLeaseEntry>,
}

/// An address that a guest of a user port has by DHCP.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserLeaseEntry {
    /// The guest's MAC address.
    pub mac: String,
    /// Its address.
    pub address: String,
    /// Name of the port of the guest, if it is known.
    pub port: Option<String>,
    /// Seconds until the lease ends.
    pub seconds: u32,
}
