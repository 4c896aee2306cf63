//! What is: processes, the switch, ports and their connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    AdminState, GuardStatus, GuestStates, LimitsSpec, MirrorDirection, MirrorSpec, MirrorStats,
    Poll, PortKind, PortSpec, PortStats, Role, Traffic, UplinkDriver, Work,
};

/// Answer of `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatusDocument {
    /// Lasthop's version.
    pub version: String,
    /// The switch's name.
    pub name: String,
    /// Seconds since `lasthop run` started.
    pub uptime_seconds: u64,
    /// The processes, supervisor first.
    pub processes: Vec<ProcessStatus>,
    /// What control knows of the switch.
    pub switch: SwitchStatus,
    /// The segments, in the operator's order.
    pub segments: Vec<SegmentStatus>,
    /// The ports, in the operator's order.
    pub ports: Vec<PortStatus>,
}

/// One of Lasthop's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessStatus {
    /// What it is: `supervisor`, `control`, `switch`, or `driver` and the name of its port.
    pub name: String,
    /// Whether it runs.
    pub state: ProcessState,
    /// Its process id while it runs.
    pub pid: Option<u32>,
    /// Seconds since this incarnation of it started.
    pub uptime_seconds: u64,
    /// How often it was started again.
    pub restarts: u64,
    /// What it uses of the machine while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ProcessUsage>,
}

/// What a process uses of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessUsage {
    /// Processor time of all its threads since it started, milliseconds.
    pub cpu_ms: u64,
    /// Memory that it has in RAM, in bytes, shared memory (like that of guests) included.
    pub resident_bytes: u64,
    /// Of that, what is backed by no file and shared with nobody, in bytes.
    pub anonymous_bytes: u64,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It died and is about to be started again.
    Restarting,
    /// It does not run.
    Stopped,
    /// Nothing is known of it, or a newer server says something this client does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl ProcessState {
    /// The state as it is spelt in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Restarting => "restarting",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }
}

/// The switch, as control sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwitchStatus {
    /// Whether control and the switch talk; without it, cached flows still forward.
    pub connected: bool,
    /// The epoch of the policy that the switch executes.
    pub epoch: u64,
    /// Flows in the switch's caches.
    pub flows: u64,
    /// Frames that went to control because no flow matched, since control started.
    pub upcalls: u64,
    /// Upcalls that found their ring full, since the switch started.
    pub upcalls_dropped: u64,
    /// Threads that forward.
    pub workers: u16,
    /// Threads that help them while their cores idle.
    #[serde(default)]
    pub helpers: u16,
    /// Frames that those have served, since the switch started.
    #[serde(default)]
    pub helped: u64,
    /// Whether they sleep when there are no frames.
    pub poll: Poll,
    /// By what it knows what the processors of guests do.
    #[serde(default)]
    pub guest_state: GuestStateStatus,
}

/// By what the switch knows what the processors of guests do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestStateStatus {
    /// What does so: `bpf`, `proc` or `off`; `auto` while that is not known.
    pub by: GuestStates,
    /// Why it is not the kernel.
    pub reason: Option<String>,
}

/// Answer of `GET /v1/segments`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentsDocument {
    /// The segments, in the operator's order.
    pub segments: Vec<SegmentStatus>,
}

/// A segment and who is in it. Answer of `GET /v1/segments/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentStatus {
    /// The segment's name.
    pub name: String,
    /// Its tag on trunk ports.
    pub vlan: Option<u16>,
    /// Whether questions for known addresses are answered.
    #[serde(default, skip_serializing_if = "super::spec::is_false")]
    pub neighbour_suppression: bool,
    /// Names of its member ports, trunk ports too.
    pub ports: Vec<String>,
}

/// Answer of `GET /v1/mirrors`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MirrorsDocument {
    /// The mirrors, in the operator's order.
    pub mirrors: Vec<MirrorStatus>,
}

/// A mirror, and what the port has got that gets its copies. What the mirror is is that of `MirrorSpec`, with the same names.
///
/// `copied` and `lost` are this mirror's; `to_guest` and `drops` are all that this port got and dropped, of other mirrors and of others' frames, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MirrorStatus {
    /// The mirror's name.
    pub name: String,
    /// The port that gets the copies.
    pub to: String,
    /// Ports whose frames are copied.
    pub ports: Vec<String>,
    /// Of these ports, which frames.
    pub direction: MirrorDirection,
    /// Segments of which each frame is copied once, as it was sent.
    pub segments: Vec<String>,
    /// Only frames that this means; without ports and segments, those of all ports.
    pub filter: Option<String>,
    /// Copies that were delivered since the mirror was added. A segmentation-offload frame is one, whether its copy was cut or not.
    #[serde(default)]
    pub copied: Traffic,
    /// Copies that were lost, by reason: what the port that was to get them had against them.
    #[serde(default)]
    pub lost: BTreeMap<String, u64>,
    /// How far the port is that gets the copies.
    pub state: PortState,
    /// What that port was given since it was added.
    pub to_guest: Traffic,
    /// Frames dropped at that port by reason; copies that it had no room for are `receiver-full`.
    pub drops: BTreeMap<String, u64>,
}

impl MirrorStatus {
    /// A mirror, what it has copied, and the numbers of the port that gets its copies.
    pub fn new(spec: &MirrorSpec, own: &MirrorStats, port: &PortStats) -> Self {
        let MirrorSpec {
            name,
            to,
            ports,
            direction,
            segments,
            filter,
        } = spec.clone();
        Self {
            name,
            to,
            ports,
            direction,
            segments,
            filter,
            copied: own.copied,
            lost: own.lost.clone(),
            state: port.state,
            to_guest: port.to_guest,
            drops: port.drops.clone(),
        }
    }
}

/// Answer of `GET /v1/ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortsDocument {
    /// The ports, in the operator's order.
    pub ports: Vec<PortStatus>,
}

/// How far a port is.
///
/// ```text
///            listens            VMM dials            first queue pair
///  starting ---------> waiting ----------> connected ---------------> up
///      \     dials                          ^   |                      | malformed chain
///       `------------> dialing -------------'   | VMM goes             v
///                         ^  (server: waiting)  |                   faulted
///                         `---------------------'<---------------------'
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// The switch has not taken the port yet.
    Starting,
    /// It listens and no VMM is connected.
    Waiting,
    /// It dials and no VMM is connected.
    Dialing,
    /// A VMM is connected; the guest's driver does not run yet.
    Connected,
    /// At least one queue pair carries frames.
    Up,
    /// At least one queue was stopped because of what the guest did; see `reason`.
    Faulted,
    /// The switch cannot be asked, or a newer server says something this client does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl PortState {
    /// The state as it is spelt in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Waiting => "waiting",
            Self::Dialing => "dialing",
            Self::Connected => "connected",
            Self::Up => "up",
            Self::Faulted => "faulted",
            Self::Unknown => "unknown",
        }
    }
}

/// Layout of a virtqueue (virtio 1.3, 2.7 and 2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RingFormat {
    /// Descriptor table, available ring, used ring.
    Split,
    /// One descriptor ring for both directions.
    Packed,
}

impl RingFormat {
    /// The format as it is spelt in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Packed => "packed",
        }
    }
}

/// A queue that was stopped because of what the guest put into it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueFault {
    /// The queue's index in virtio's counting: even ones carry frames to the guest.
    pub queue: u16,
    /// What was wrong.
    pub reason: String,
}

/// The process between a port and an interface of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriverStatus {
    /// How it moves frames: `tap`, `packet`, `xdp (zero-copy)` or `xdp (copy)`; nothing while the interface is not open.
    pub back_end: Option<String>,
    /// The MAC address of the interface, while that is there.
    #[serde(default)]
    pub mac: Option<String>,
    /// Its process id while it runs.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
    /// Frames that the interface did not take: it is down, full, or they are too long for it.
    pub refused_by_interface: u64,
    /// Frames of the interface that were too long for a buffer.
    pub too_long: u64,
    /// Why it does not run, or why it ended last; of one that runs, that its interface is another port's, too.
    pub reason: Option<String>,
}

/// What is wanted, is right, and may not be meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// In words, without a line's end.
    pub text: String,
    /// Names of the ports that it is about, if it is about ports.
    #[serde(default)]
    pub ports: Vec<String>,
}

/// Everything of that kind. Answer of `GET /v1/warnings`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarningsDocument {
    /// All of them.
    pub warnings: Vec<Warning>,
}

/// A port: what is wanted of it and how far it is. Answer of `GET /v1/ports/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortStatus {
    /// The port's name.
    pub name: String,
    /// What kind of attachment it is.
    pub kind: PortKind,
    /// How far it is.
    pub state: PortState,
    /// Whether it is to take part: whatever its state is, nothing goes through a port that is `down`.
    #[serde(default)]
    pub admin_state: AdminState,
    /// Why it is in that state, when there is more to say: the last error of its connection or queues.
    pub reason: Option<String>,
    /// The socket path as it was asked for.
    pub socket: String,
    /// Who opens the connection.
    pub role: Role,
    /// The user that was asked for, of a socket that listens.
    #[serde(default)]
    pub user: Option<String>,
    /// Its group.
    #[serde(default)]
    pub group: Option<String>,
    /// Its mode.
    #[serde(default)]
    pub mode: Option<String>,
    /// The only user whose processes may connect.
    #[serde(default)]
    pub peer_user: Option<String>,
    /// Queue pairs offered at most.
    pub queues: u16,
    /// The segment of an access port.
    pub segment: Option<String>,
    /// The segments of a trunk port.
    pub trunk: Option<Vec<String>>,
    /// The MAC address that was asked for.
    pub mac: Option<String>,
    /// The MTU in bytes that is offered.
    pub mtu: Option<u16>,
    /// Its part of the switch's time, compared with other ports.
    #[serde(default)]
    pub weight: u16,
    /// What it may send and be sent.
    #[serde(default, skip_serializing_if = "LimitsSpec::is_nothing")]
    pub limits: LimitsSpec,
    /// What the switch did for it.
    #[serde(default)]
    pub work: Work,
    /// The driver that was asked for, of an uplink.
    #[serde(default)]
    pub driver: Option<UplinkDriver>,
    /// The host's interface, of an uplink or a TAP port.
    #[serde(default)]
    pub interface: Option<String>,
    /// The address that the interface got.
    #[serde(default)]
    pub address: Option<String>,
    /// The network namespace of the interface.
    #[serde(default)]
    pub netns: Option<String>,
    /// The driver process, of an uplink or a TAP port.
    #[serde(default)]
    pub driver_process: Option<DriverStatus>,
    /// Queue pairs that carry frames now.
    pub queue_pairs: u16,
    /// Layout of the queues, once negotiated.
    pub ring: Option<RingFormat>,
    /// Names of the negotiated virtio features, as in virtio 1.3 without `VIRTIO_`.
    pub features: Vec<String>,
    /// Bytes of guest memory that the switch maps for this port.
    pub memory_bytes: u64,
    /// Threads of the VMM that are taken for the guest's processors.
    #[serde(default)]
    pub vcpu_threads: u32,
    /// What its guest may send.
    #[serde(default)]
    pub guard: GuardStatus,
    /// Queues that were stopped, lowest first.
    pub queue_faults: Vec<QueueFault>,
    /// What the port had to do against those who connect to it.
    #[serde(default)]
    pub front_ends: FrontEndStatus,
}

/// What a port had to do against VMMs and others who connect to it, since it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FrontEndStatus {
    /// Connections so far, of all of them.
    pub connections: u64,
    /// Connections that were closed as soon as they were made: somebody else was connected, or they were of another user than `peer_user`.
    pub turned_away: u64,
    /// How many milliseconds ago the last of them was.
    #[serde(default)]
    pub turned_away_ms_ago: Option<u64>,
    /// The number of the last such user.
    #[serde(default)]
    pub last_stranger: Option<u32>,
    /// vhost-user messages that were refused.
    pub refusals: u64,
    /// Times that no connection was taken for a while, after one that did harm.
    pub pauses: u64,
    /// Milliseconds for which no connection is taken from now on.
    pub pause_ms: u64,
    /// Lines about the port that were left out of the log, because there were many.
    pub lines_left_out: u64,
}

impl PortStatus {
    /// The status of a port of which nothing but what is wanted is known.
    pub fn new(spec: &PortSpec, state: PortState) -> Self {
        Self {
            name: spec.name.clone(),
            kind: spec.kind,
            state,
            admin_state: spec.admin_state,
            reason: None,
            socket: spec.socket.clone(),
            role: spec.role,
            user: spec.user.clone(),
            group: spec.group.clone(),
            mode: spec.mode.clone(),
            peer_user: spec.peer_user.clone(),
            queues: spec.queues,
            segment: spec.segment.clone(),
            trunk: spec.trunk.clone(),
            mac: spec.mac.clone(),
            mtu: spec.mtu,
            weight: spec.weight,
            limits: spec.limits,
            work: Work::default(),
            guard: GuardStatus::default(),
            driver: spec.driver,
            interface: spec.interface.clone(),
            address: spec.address.clone(),
            netns: spec.netns.clone(),
            driver_process: None,
            queue_pairs: 0,
            ring: None,
            features: Vec::new(),
            memory_bytes: 0,
            vcpu_threads: 0,
            queue_faults: Vec::new(),
            front_ends: FrontEndStatus::default(),
        }
    }
}
