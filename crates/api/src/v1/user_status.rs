//! Figures of a user port, its flows and its leases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
