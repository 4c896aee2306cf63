//! Driver processes: desired drivers, their parameters and their state.
//!
//! ```text
//! control    -- UserPortRequest::Networks ------> supervisor  networks of user ports, before:
//! control    -- PortDriverRequest::Set ---------> supervisor  desired drivers; opens interfaces
//! switch     -- SwitchRequest::Dial ------------> supervisor  a driver's port: starts the driver
//! supervisor -- EventToDriver::Start -----------> driver      connection to the switch, umem
//! supervisor -- EventToDriver::Queue -----------> driver      one for each queue
//! supervisor -- EventToDriver::UserNetwork -----> driver      of a user port; and after changes
//! supervisor -- EventToDriver::FlowRecords -----> driver      of a user port: memory for records
//! driver     -- UserDriverRequest::NextFlows ---> supervisor  its predecessor's flows: KeptFlows
//! driver     -- UserDriverRequest::NextForwards > supervisor  listening sockets: Forwards
//! driver     -- UserDriverRequest::KeepFlows ---> supervisor  sockets that outlive it: FlowsTaken
//! supervisor -- EventToDriver::Ping ------------> driver      reply: Pong, from all threads
//! ```

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use port::PortId;
use serde::{Deserialize, Serialize};

use crate::names::{InterfaceName, Namespace, PortName};
use crate::user_reports::UserFigures;

/// Method by which a driver moves frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BackEnd {
    /// Through a TAP device.
    Tap,
    /// Through `AF_PACKET` sockets on any interface.
    Packet,
    /// Through `AF_XDP` sockets, one for each receive queue of the interface.
    Xdp {
        /// The interface reads and writes the frames in the memory shared with the switch; else the
        /// system copies them.
        zero_copy: bool,
    },
    /// Through a TAP device, by a vhost device of the kernel for each queue pair.
    VhostNet,
    /// By sockets of the host, in place of an interface.
    User,
}

impl BackEnd {
    /// Returns its name in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Packet => "packet",
            Self::Xdp { zero_copy: true } => "xdp (zero-copy)",
            Self::Xdp { zero_copy: false } => "xdp (copy)",
            Self::VhostNet => "vhost-net",
            Self::User => "user",
        }
    }
}

/// Bytes that may wait in a packet socket in each direction, unless a schedule bounds them further:
/// some milliseconds of a fast wire.
pub const PACKET_BACKLOG: u64 = 8 << 20;

/// Back end that the operator requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Choice {
    /// The best one for the interface.
    Auto,
    /// [`BackEnd::Tap`].
    Tap,
    /// [`BackEnd::Packet`].
    Packet,
    /// [`BackEnd::Xdp`]; where that is not possible [`BackEnd::Packet`], with a warning.
    Xdp,
    /// [`BackEnd::VhostNet`].
    VhostNet,
}

/// The interface of the host behind a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// Method by which frames are moved.
    pub choice: Choice,
    /// The interface belongs to the port: it is created and removed with it.
    pub own: bool,
    /// The interface's name.
    pub interface: InterfaceName,
    /// The network namespace that it is in; else the supervisor's.
    pub netns: Option<Namespace>,
    /// Address and prefix length that an own interface gets.
    pub address: Option<(IpAddr, u8)>,
    /// MAC address that an own interface gets.
    pub mac: Option<[u8; 6]>,
    /// MTU that an own interface gets.
    pub mtu: Option<u16>,
    /// Queue pairs.
    pub queues: u16,
}

/// The network of a user port. Networks and rules are texts that control has checked, in the
/// notation of the crate `usernet`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserNetwork {
    /// The IPv4 network, as a prefix.
    pub network: String,
    /// The IPv6 network, as a prefix, if there is one.
    pub network6: Option<String>,
    /// MAC address of the gateway.
    pub mac: [u8; 6],
    /// MTU in bytes.
    pub mtu: u16,
    /// Whether guests' questions are answered.
    pub dns: bool,
    /// The resolvers; none: those of the host, which the supervisor fills in.
    pub resolvers: Vec<SocketAddr>,
    /// The domains that guests are offered, with blanks between them.
    pub search: String,
    /// Networks that guests may reach.
    pub allow: Vec<String>,
    /// Networks that they may not reach.
    pub deny: Vec<String>,
    /// Services of the host that they reach at the gateway.
    pub host: Vec<String>,
    /// Ports of the segment whose addresses are known.
    pub guests: Vec<UserGuest>,
    /// Ports of the host that lead to guests.
    pub forwards: Vec<UserForward>,
    /// Bounds of the buffers of sockets.
    pub buffers: UserBuffers,
    /// How long flows may be silent, where it is not as usual.
    pub times: Vec<String>,
    /// User ports whose sockets are in the same network namespace, this one included, which divide
    /// its ephemeral ports. The supervisor fills it in.
    pub sharers: u32,
}

/// Bounds of the memory of the host in the buffers of guests' sockets, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserBuffers {
    /// Of a guest.
    pub guest: u64,
    /// Of the port.
    pub port: u64,
}

/// A protocol whose ports a user port forwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ForwardProtocol {
    /// Connections of TCP.
    Tcp,
    /// Datagrams of UDP.
    Udp,
}

/// A port of the host that leads to a guest: as text `tcp 127.0.0.1:2222`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Listen {
    /// The protocol.
    pub protocol: ForwardProtocol,
    /// The address.
    pub address: SocketAddr,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            ForwardProtocol::Tcp => "tcp",
            ForwardProtocol::Udp => "udp",
        };
        write!(f, "{protocol} {}", self.address)
    }
}

/// A port of the host that leads to a guest, with the guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserForward {
    /// Where the host listens.
    pub listen: Listen,
    /// The name of a port, or an address of the network.
    pub to: String,
    /// The guest's port.
    pub port: u16,
}

/// Forwards of a user port with successive ports that the system or Lasthop refuses: as text
/// `tcp 127.0.0.1:2000-2999: Permission denied (os error 13)`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedForwards {
    /// The first one.
    pub first: Listen,
    /// The port of the last one.
    pub last: u16,
    /// Why.
    pub reason: String,
}

impl RefusedForwards {
    /// Returns whether a forward is among them.
    #[must_use]
    pub fn has(&self, listen: Listen) -> bool {
        let place = |of: Listen| (of.protocol, of.address.ip());
        let ports = self.first.address.port()..=self.last;
        place(listen) == place(self.first) && ports.contains(&listen.address.port())
    }
}

impl fmt::Display for RefusedForwards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.last != self.first.address.port() {
            write!(f, "-{}", self.last)?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// Bytes of the record of a flow of a user port (`usernet::RECORD_LEN`).
pub const FLOW_RECORD: usize = 64;
/// Most flows of a user port.
pub const FLOWS_MAX: u32 = model::USER_FLOWS_MAX;
/// Most flows of a user port whose sockets outlive its driver process.
pub const FLOWS_KEPT: u32 = model::USER_KEPT_MAX;

/// Bytes of the record of a DHCP lease of a user port.
pub const LEASE_RECORD: usize = 24;
/// Most DHCP leases of a user port (`usernet::services::LEASES_MAX`).
pub const LEASES_KEPT: u32 = 4096;

/// Returns the length of the memory for what outlives the driver process of a user port: records of
/// so many flows, then those of leases.
#[must_use]
pub fn records_len(flows: u32) -> u64 {
    u64::from(flows) * FLOW_RECORD as u64 + u64::from(LEASES_KEPT) * LEASE_RECORD as u64
}

/// A port in the segment of a user port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserGuest {
    /// Its name.
    pub name: String,
    /// The MAC address of its guest, if it is configured, or bound by port security.
    pub mac: Option<[u8; 6]>,
    /// The addresses that port security lists.
    pub addresses: Vec<IpAddr>,
}

/// Prefix of the address of a driver; a path never contains such a byte.
const DRIVER: &str = "\0driver:";

/// Returns the address by which the switch dials the port of a driver, in place of the path of a
/// socket. No path equals it.
#[must_use]
pub fn address(name: &str) -> String {
    format!("{DRIVER}{name}")
}

/// Returns whether an address is that of a driver.
#[must_use]
pub fn is_address(socket: &str) -> bool {
    socket.starts_with(DRIVER)
}

/// The device behind the port of a driver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DriverKind {
    /// An interface of the host.
    Interface(DeviceSpec),
    /// The sockets of a user port.
    User {
        /// The network namespace that they are in; else the supervisor's.
        netns: Option<Namespace>,
        /// Queue pairs.
        queues: u16,
    },
}

impl DriverKind {
    /// Returns the interface, if there is one.
    #[must_use]
    pub const fn interface(&self) -> Option<&DeviceSpec> {
        match self {
            Self::Interface(device) => Some(device),
            Self::User { .. } => None,
        }
    }

    /// Returns the network namespace of the interface or of the sockets.
    #[must_use]
    pub const fn netns(&self) -> Option<&Namespace> {
        match self {
            Self::Interface(DeviceSpec { netns, .. }) | Self::User { netns, .. } => netns.as_ref(),
        }
    }

    /// Returns whether the device is made for the port: an own interface, or sockets.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        match self {
            Self::Interface(device) => device.own,
            Self::User { .. } => true,
        }
    }
}

/// A desired driver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriverSpec {
    /// The switch's port that it connects to.
    pub port: PortId,
    /// That port's name.
    pub name: PortName,
    /// The device behind the port.
    pub kind: DriverKind,
    /// A TAP device or a packet socket is served by a process of its own, in place of the switch.
    /// Other devices always are.
    pub process: bool,
    /// Whether frames of the wire that meet an entry of a table end before the switch.
    pub prefilter: PrefilterChoice,
    /// CPU weight of its process; none: the system's default.
    pub cpu_weight: Option<u16>,
}

impl DriverSpec {
    /// Returns whether a prefilter is desired.
    #[must_use]
    pub fn has_prefilter(&self) -> bool {
        self.prefilter != PrefilterChoice::Off
    }
}

/// Desired prefilter of an uplink.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum PrefilterChoice {
    /// None.
    #[default]
    Off,
    /// The one that fits how frames are moved, where there is one.
    Auto,
    /// This one, or none.
    Only(PrefilterBackEnd),
}

/// Place where frames of an interface end that meet an entry of its prefilter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PrefilterBackEnd {
    /// A program of packet sockets.
    Socket,
    /// An XDP program, before the kernel makes a packet of a frame.
    Xdp,
}

impl PrefilterBackEnd {
    /// Returns its name in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Xdp => "xdp",
        }
    }
}

/// Maximum number of characters of the reason why a driver or an interface fails.
pub const REASON_CHARS_MAX: usize = 300;

/// Properties of an interface that the switch itself serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InterfaceStart {
    /// How frames are moved: [`BackEnd::Tap`] or [`BackEnd::Packet`].
    pub back_end: BackEnd,
    /// The interface supports UDP segmentation offload.
    pub uso: bool,
}

/// Parameters of a new driver process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriverStart {
    /// The port.
    pub port: PortId,
    /// The port's name, for logs.
    pub name: String,
    /// Method by which frames are moved.
    pub back_end: BackEnd,
    /// The interface supports UDP segmentation offload.
    pub uso: bool,
    /// Queue pairs; as many [`EventToDriver::Queue`](crate::supervision::EventToDriver::Queue)
    /// follow. A queue of [`BackEnd::User`] is the network namespace of its sockets, and
    /// [`UserNetwork`](crate::supervision::EventToDriver::UserNetwork) follows.
    pub queues: u16,
    /// Parameters of [`BackEnd::Xdp`]; the umem follows the connection.
    pub xdp: Option<XdpStart>,
    /// Longest look before a sleep, microseconds; `None`: as long as a sleep costs.
    pub poll_us: Option<u16>,
}

/// Properties of an interface with `AF_XDP` sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct XdpStart {
    /// Bytes of the longest frame that the interface sends, with the Ethernet header and a tag.
    pub longest: u32,
    /// Received frames may have a TCP or UDP checksum that is still to be completed, without a
    /// mark.
    pub unfinished: bool,
}

/// Counters of a driver, since its process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DriverCounters {
    /// Frames that the interface did not take (it is down, its queue is full, or they are too long
    /// for it), or that the system could not pass on (packets to be segmented in a way that virtio
    /// does not have).
    pub rejected_by_interface: u64,
    /// Frames that were longer than a buffer.
    pub oversized_frames: u64,
    /// Frames of the interface.
    pub received: Calls,
    /// Frames that the interface took.
    pub sent: Calls,
    /// Frames of the interface that the kernel dropped, because the driver was too slow: there was
    /// no room in a packet socket (`tp_drops`, packet(7)), or none in the rings of an `AF_XDP`
    /// socket; and those that waited in a packet socket that was closed for another interface. A
    /// super-frame counts as one. `None` where the kernel reports none.
    pub dropped_by_kernel: Option<u64>,
}

/// Frames in one direction, and the system calls that moved at least one of them; with `AF_XDP`
/// the batches of the rings, which need no call; with vhost-net the kicks for frames that are sent,
/// and batches of the ring of those that are received. A super-frame counts as the frames that it
/// is cut into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Calls {
    /// Number of frames.
    pub frames: u64,
    /// Number of calls.
    pub calls: u64,
}

impl DriverCounters {
    /// Returns the values that every driver has, in the order of the fields.
    #[must_use]
    pub const fn to_array(&self) -> [u64; 6] {
        [
            self.rejected_by_interface,
            self.oversized_frames,
            self.received.frames,
            self.received.calls,
            self.sent.frames,
            self.sent.calls,
        ]
    }

    /// Returns the counters with these values, see [`to_array`](Self::to_array).
    #[must_use]
    pub fn from_array(values: [u64; 6]) -> Self {
        let calls = |frames, calls| Calls { frames, calls };
        Self {
            rejected_by_interface: values[0],
            oversized_frames: values[1],
            received: calls(values[2], values[3]),
            sent: calls(values[4], values[5]),
            dropped_by_kernel: None,
        }
    }

    /// Returns the sums of two drivers' values.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut values = self.to_array();
        for (value, of_other) in values.iter_mut().zip(other.to_array()) {
            *value = value.saturating_add(of_other);
        }
        let dropped = [self.dropped_by_kernel, other.dropped_by_kernel];
        Self {
            dropped_by_kernel: dropped.into_iter().flatten().reduce(u64::saturating_add),
            ..Self::from_array(values)
        }
    }
}

/// State of a driver, for `lasthop status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriverState {
    /// The name of its port.
    pub name: String,
    /// Method by which it moves frames; none while the interface is not open.
    pub back_end: Option<BackEnd>,
    /// MAC address of the interface, while that exists.
    pub mac: Option<[u8; 6]>,
    /// Figures of a user port, if they are known.
    pub user: Option<UserFigures>,
    /// Reason why the port's CPU weight has no effect.
    pub cpu_weight_error: Option<String>,
    /// The switch itself serves the interface.
    pub in_switch: bool,
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// Number of restarts of its process.
    pub restarts: u32,
    /// Counters since the port exists.
    pub counters: DriverCounters,
    /// Reason why there is no process, or why the last one ended; beside a process, that the
    /// interface is another port's, too.
    pub reason: Option<String>,
    /// Forwards of a user port that are refused.
    pub refused: Vec<RefusedForwards>,
    /// The prefilter of an uplink, or the reason why there is none; of other ports `None`.
    pub prefilter: Option<Result<PrefilterBackEnd, String>>,
}
