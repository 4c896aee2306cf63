//! About driver processes: what is wanted of them, what they are given, and how they are.
//!
//! ```text
//! control    -- Ask::Drivers ------> supervisor    all drivers that are wanted; it opens the interfaces
//! switch     -- Ask::Dial ---------> supervisor    for the port of a driver: starts the driver
//! supervisor -- Tell::StartDriver -> driver        the connection to the switch, for AF_XDP its memory too; then
//!                                   Tell::DriverQueue
//! supervisor -- Tell::Ping --------> driver        answered with Ask::Pong while all its threads turn
//! ```

use std::net::IpAddr;
use std::time::Duration;

use port::PortId;
use serde::{Deserialize, Serialize};

/// How long a new driver may take to set its queues up with the switch. It says nothing meanwhile.
pub const SET_UP: Duration = Duration::from_secs(5);

/// How a driver moves frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BackEnd {
    /// Through a TAP device.
    Tap,
    /// Through `AF_PACKET` sockets on any interface.
    Packet,
    /// Through `AF_XDP` sockets, one for each receive queue of the interface.
    Xdp {
        /// The interface reads and writes the frames that are shared with the switch; else the system copies them.
        zero_copy: bool,
    },
}

impl BackEnd {
    /// The word for it in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Packet => "packet",
            Self::Xdp { zero_copy: true } => "xdp (zero-copy)",
            Self::Xdp { zero_copy: false } => "xdp (copy)",
        }
    }
}

/// Which back end the operator wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Choice {
    /// What suits the interface best.
    Auto,
    /// [`BackEnd::Tap`].
    Tap,
    /// [`BackEnd::Packet`].
    Packet,
    /// [`BackEnd::Xdp`]; where that cannot be had [`BackEnd::Packet`], with a warning.
    Xdp,
}

/// The interface of the host behind a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// How frames are moved.
    pub choice: Choice,
    /// The interface belongs to the port: it is made with it and vanishes with it.
    pub own: bool,
    /// The interface's name.
    pub interface: String,
    /// The network namespace that it is in: a name under `/run/netns`, or a path. Else the supervisor's.
    pub netns: Option<String>,
    /// Address and prefix length that an own interface gets.
    pub address: Option<(IpAddr, u8)>,
    /// MAC address that an own interface gets.
    pub mac: Option<[u8; 6]>,
    /// MTU that an own interface gets.
    pub mtu: Option<u16>,
    /// Queue pairs.
    pub queues: u16,
}

/// What the switch dials for the port of a driver, instead of the path of a socket. No path is like it.
#[must_use]
pub fn address(name: &str) -> String {
    format!("\0driver:{name}")
}

/// A driver that is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriverSpec {
    /// The switch's port that it plugs into.
    pub port: PortId,
    /// That port's name.
    pub name: String,
    /// What is behind it.
    pub device: DeviceSpec,
}

/// What a new driver process is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriverStart {
    /// The port.
    pub port: PortId,
    /// The port's name, for logs.
    pub name: String,
    /// How frames are moved.
    pub back_end: BackEnd,
    /// The system knows UDP segmentation offload at the interface.
    pub uso: bool,
    /// Queue pairs; as many [`Tell::DriverQueue`](crate::supervision::Tell::DriverQueue) follow.
    pub queues: u16,
    /// Of [`BackEnd::Xdp`]; the memory that the system knows follows the connection.
    pub xdp: Option<XdpStart>,
}

/// What a driver has to know of an interface with `AF_XDP` sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct XdpStart {
    /// Bytes of the longest frame that the interface sends, with the Ethernet header and a tag.
    pub longest: u32,
    /// Frames may come whose TCP or UDP checksum is still to be completed, and nothing tells which.
    pub unfinished: bool,
}

/// Frames that a driver could not pass on, since its process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Refused {
    /// The interface did not take them (it is down, its queue is full, or they are too long for it), or the system could not
    /// hand them over (packets to be cut in a way that virtio has no word for).
    pub by_interface: u64,
    /// They were longer than a buffer.
    pub too_long: u64,
}

/// A driver, for `lasthop status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriverState {
    /// The name of its port.
    pub name: String,
    /// How it moves frames; none while the interface is not open.
    pub back_end: Option<BackEnd>,
    /// The MAC address of the interface, while that is there. It comes with
    /// [`Tell::InterfaceAddresses`](crate::supervision::Tell::InterfaceAddresses).
    #[serde(skip)]
    pub mac: Option<[u8; 6]>,
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// How often its process was started again.
    pub restarts: u32,
    /// Frames lost at the interface, since the port exists.
    pub refused: Refused,
    /// Why there is no process, or why the last one ended; beside a process, that the interface is another port's, too.
    pub reason: Option<String>,
}
