//! Figures of a user port, its flows and its leases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

use crate::v1::words::words;

/// Connections and UDP mappings of a user port. Its counters do not begin anew with its driver
/// process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserPortStatus {
    /// Connections and mappings now.
    pub flows: u32,
    /// Maximum number of flows: 65536, or fewer if `RLIMIT_NOFILE` is lower.
    pub flows_max: u32,
    /// Flows that outlive the driver process.
    pub kept: u32,
    /// Maximum number of those: 8192, or the port's share of Lasthop's limit of descriptors.
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
    /// The resolvers that are asked, in the order of the configuration.
    pub resolvers: Vec<UserResolverStatus>,
    /// The system permits no echo requests to the outside: the group of the driver process is not
    /// in `net.ipv4.ping_group_range`.
    #[serde(default)]
    pub echo_denied: bool,
}

/// A resolver of a user port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserResolverStatus {
    /// Its address and port.
    pub address: String,
    /// Its state by UDP.
    pub udp: UserResolverWay,
    /// Its state by TCP.
    pub tcp: UserResolverWay,
}

/// The state of a resolver of a user port by one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserResolverWay {
    /// The last thing that it has done: `not-asked`, `answers`, `silent`, `closed`, `unreachable`,
    /// `nonsense`, `lame` (it knows nothing, and asks no other server), or an error like
    /// `SERVFAIL` or `rcode 23`.
    pub state: String,
    /// It failed where another resolver answered, and is asked after all others for a minute.
    pub asked_last: bool,
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
/// Maximum of `stalled_seconds`.
pub const USER_STALLED_MAX: u32 = 86_400;

/// Query of `GET /v1/ports/{name}/user/flows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UserFlowsFilter {
    /// Maximum number of flows, 1 to 1024. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u16>,
    /// Return flows that wait for something (`waits_for` is not `nothing`) and have made no
    /// progress for this many seconds, 0 to 86400. Default: all flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled_seconds: Option<u32>,
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
    /// The reason why the flow waits now.
    pub waits_for: UserFlowWait,
    /// Milliseconds since the last progress: bytes that the guest has acknowledged, bytes of it
    /// that the host's socket took, a datagram, or a new state.
    pub progress_ms: u64,
    /// The next action of the flow's timer.
    pub timer: Option<UserFlowTimer>,
    /// Milliseconds until the timer ends.
    pub timer_ms: Option<u64>,
    /// How far a TCP connection is; absent for UDP.
    pub tcp: Option<UserFlowTcp>,
}

words! {
    /// The reason why a flow waits. If several hold, the first of this list counts, and `nothing`
    /// is the last.
    #[derive(Default)]
    pub enum UserFlowWait {
        /// Bytes wait for the guest, and its receive window is closed, or too small for the next
        /// segment: the program in the guest does not read.
        GuestWindow = "guest-window",
        /// Bytes wait for the guest, its window is open, and no buffer to the switch is free: the
        /// switch does not take frames of the port.
        Buffer = "buffer",
        /// Bytes wait for the guest, its window is open, and other flows come first.
        Turn = "turn",
        /// All bytes, a SYN or a FIN were sent to the guest, which has not acknowledged them: it is
        /// gone, or frames are lost between the port and the guest.
        Acknowledgement = "acknowledgement",
        /// The host's socket does not connect yet, or the peer has not acknowledged bytes of the
        /// guest: the peer does not read, or its network loses packets.
        HostSocket = "host-socket",
        /// Both ends have all bytes that were sent, or both have closed.
        Nothing = "nothing",
        /// A reason of a newer server that this client does not know.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}

words! {
    /// The action of a flow's timer at its end.
    #[derive(Default)]
    pub enum UserFlowTimer {
        /// Send bytes, a SYN or a FIN to the guest again.
        Retransmission = "retransmission",
        /// Ask the guest for its window, which is closed.
        Probe = "probe",
        /// Ask the guest whether it is there.
        KeepAlive = "keep-alive",
        /// End the flow.
        Expiry = "expiry",
        /// An action of a newer server that this client does not know.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}

/// How far a TCP connection of a user port is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserFlowTcp {
    /// Bytes that were sent to the guest, and that it has not acknowledged.
    pub unacknowledged_bytes: u32,
    /// The guest's receive window, from the first of those bytes on.
    pub window_bytes: u32,
    /// Bytes of the peer in the host's socket that were not sent to the guest yet.
    pub pending_bytes: u32,
    /// Bytes of the guest in the host's socket that the peer has not acknowledged; a FIN counts as
    /// one.
    pub queued_bytes: u32,
    /// Free bytes of the socket's send buffer, from which the window for the guest is made, as of
    /// the last time that the socket took bytes.
    pub room_bytes: u32,
    /// Segments that were sent to the guest again, since the driver process has the connection;
    /// probes of a closed window do not count.
    pub retransmissions: u32,
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

/// Answer of `GET /v1/ports/{name}/user/forwards`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserForwardsDocument {
    /// The forwards, in the order of the configuration.
    pub forwards: Vec<UserForwardEntry>,
}

/// A forward of a user port and its state.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserForwardEntry {
    /// Where the host listens, as it is configured.
    pub listen: String,
    /// The guest and its port, as they are configured.
    pub to: String,
    /// Whether connections reach the guest.
    pub state: ForwardState,
    /// Why not, or why some ports of a range are refused.
    pub reason: Option<String>,
    /// Number of ports of the host.
    pub ports: u32,
    /// Those of them that are refused.
    pub refused: u32,
}

words! {
    /// States of a forward.
    #[derive(Default)]
    pub enum ForwardState {
        /// Connections reach the guest.
        Ready = "ready",
        /// The driver process does not have it yet.
        Opening = "opening",
        /// The host listens, but the guest is not there; see `reason`.
        Waiting = "waiting",
        /// The system or Lasthop refuses the host's port, or some of a range; see `reason`. It is
        /// tried again every 5 seconds.
        Refused = "refused",
        /// A state of a newer server that this client does not know.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}
