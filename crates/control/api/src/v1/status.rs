//! The current state: processes, the switch, ports and their connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    AdminState, EgressStatus, GuestStates, Iommu, LimitsSpec, MirrorDirection, MirrorSpec,
    MirrorStats, Poll, PortConnections, PortKind, PortQosSpec, PortSecurityStatus, PortSpec,
    PortState, PortStats, PrefilterStatus, Role, Traffic, UplinkDriver, UserPortStatus, UserSpec,
    VcpuSource, Work,
};
use crate::v1::words::words;

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
    /// The switch, as seen by control.
    pub switch: SwitchStatus,
    /// The segments, in the order of the desired state.
    pub segments: Vec<SegmentStatus>,
    /// The ports, in the order of the desired state.
    pub ports: Vec<PortStatus>,
    /// Sockets of ports and pipes to which programs of more than one user can connect, with the key
    /// that leaves one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

/// One of Lasthop's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessStatus {
    /// Its name: `supervisor`, `control`, `switch`, or `driver` and the name of its port.
    pub name: String,
    /// Whether it runs.
    pub state: ProcessState,
    /// Its process id while it runs.
    pub pid: Option<u32>,
    /// Seconds since it was last started.
    pub uptime_seconds: u64,
    /// Number of restarts.
    pub restarts: u64,
    /// CPU time, memory and wake-ups while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ProcessUsage>,
}

/// CPU time, memory and wake-ups of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessUsage {
    /// CPU time of all its threads since it started, in milliseconds.
    pub cpu_ms: u64,
    /// How often its threads that move frames have woken from a sleep since it started: the
    /// workers of the switch, and the threads of a driver. Other processes have none.
    #[serde(default)]
    pub wake_ups: u64,
    /// Resident memory in bytes, including shared memory such as that of guests.
    pub resident_bytes: u64,
    /// Anonymous part of the resident memory in bytes: neither backed by a file nor shared.
    pub anonymous_bytes: u64,
    /// Address space in bytes: what is mapped, like the memory of guests, touched or not. It costs
    /// no memory.
    #[serde(default)]
    pub mapped_bytes: u64,
}

words! {
    /// States of a process.
    #[derive(Default)]
    pub enum ProcessState {
        /// It runs.
        Running = "running",
        /// It has ended and is about to be restarted.
        Restarting = "restarting",
        /// It does not run.
        Stopped = "stopped",
        /// The state is not known, or it is a state of a newer server that this client does not
        /// know.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}

/// The switch, as control sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwitchStatus {
    /// Whether control is connected to the switch. If not, cached flows still forward.
    pub connected: bool,
    /// The epoch of the policy that the switch executes.
    pub epoch: u64,
    /// Flows in the switch's caches.
    pub flows: u64,
    /// Upcalls since control started: frames that matched no flow.
    pub upcalls: u64,
    /// Upcalls that were dropped because their ring was full, since the switch started.
    pub upcalls_dropped: u64,
    /// Number of workers.
    pub workers: u16,
    /// Polling of the workers.
    pub poll: Poll,
    /// The source of the states of guests' vCPUs.
    #[serde(default)]
    pub guest_state: GuestStateStatus,
}

/// The source of the states of guests' vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestStateStatus {
    /// The source in use: `bpf` or `off`; `auto` while it is not known.
    pub by: GuestStates,
    /// The reason why it is not `bpf`.
    pub reason: Option<String>,
    /// With `bpf`, the reason why halts of KVM's vCPUs are not counted: then no guest is known to
    /// work, and no interrupt is deferred.
    #[serde(default)]
    pub no_halts: Option<String>,
    /// Ways to find vCPU threads that are missing, with the reasons.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// Answer of `GET /v1/segments`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentsDocument {
    /// The segments, in the order of the desired state.
    pub segments: Vec<SegmentStatus>,
}

/// A segment and its ports. Answer of `GET /v1/segments/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentStatus {
    /// The segment's name.
    pub name: String,
    /// Its VLAN tag on trunk ports.
    pub vlan: Option<u16>,
    /// Whether neighbour suppression is enabled.
    #[serde(default, skip_serializing_if = "super::spec::is_false")]
    pub neighbour_suppression: bool,
    /// Names of its member ports, including trunk ports.
    pub ports: Vec<String>,
}

/// Answer of `GET /v1/mirrors`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MirrorsDocument {
    /// The mirrors, in the order of the desired state.
    pub mirrors: Vec<MirrorStatus>,
}

/// A mirror with its counters and those of the port that receives its copies. The fields of
/// `MirrorSpec` have the same names here.
///
/// `copied` and `lost` are counters of this mirror. `to_guest` and `drops` are counters of the
/// port: they include other mirrors and ordinary frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MirrorStatus {
    /// The mirror's name.
    pub name: String,
    /// The port that receives the copies.
    pub to: String,
    /// Ports whose frames are copied.
    pub ports: Vec<String>,
    /// The direction of the frames of these ports. Default: both.
    pub direction: MirrorDirection,
    /// Segments. Each of their frames is copied once, as it was sent.
    pub segments: Vec<String>,
    /// The filter; without ports and segments it applies to frames of all ports.
    pub filter: Option<String>,
    /// Copies that were delivered since the mirror was added. A segmentation-offload frame counts
    /// once, even if its copy was segmented.
    #[serde(default)]
    pub copied: Traffic,
    /// Lost copies by the drop reason at the port that receives the copies.
    #[serde(default)]
    pub lost: BTreeMap<String, u64>,
    /// The state of the port that receives the copies.
    pub state: PortState,
    /// Its administrative state. A port that is `down` gets no copies, whatever its state.
    #[serde(default)]
    pub admin_state: AdminState,
    /// Traffic to that port since it was added.
    pub to_guest: Traffic,
    /// Frames dropped at that port by reason; copies without a free buffer count as
    /// `receiver-full`.
    pub drops: BTreeMap<String, u64>,
}

impl MirrorStatus {
    /// Returns the status of a mirror: its own counters and those of the port that receives its
    /// copies.
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
            admin_state: port.admin_state,
            to_guest: port.to_guest,
            drops: port.drops.clone(),
        }
    }
}

/// Answer of `GET /v1/ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortsDocument {
    /// The ports, in the order of the desired state.
    pub ports: Vec<PortStatus>,
}

words! {
    /// Layout of a virtqueue (virtio 1.3, 2.7 and 2.8).
    pub enum RingFormat {
        /// Descriptor table, available ring, used ring.
        Split = "split",
        /// One descriptor ring for both directions.
        Packed = "packed",
        /// Slots of netmap, no virtqueue.
        Netmap = "netmap",
        /// Descriptors of memif, no virtqueue.
        Memif = "memif",
    }
}

/// A queue that was stopped because of invalid contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueFault {
    /// The queue's index in virtio's counting: even ones carry frames to the guest.
    pub queue: u16,
    /// The error.
    pub reason: String,
}

/// The driver of a port with an interface or sockets of the host: the switch itself, or a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriverStatus {
    /// The driver in use: `tap`, `packet`, `xdp (zero-copy)`, `xdp (copy)` or `vhost-net`; `null`
    /// while the interface is not open.
    pub back_end: Option<String>,
    /// The MAC address of the interface, while the interface exists; of a user port that of its
    /// gateway.
    pub mac: Option<String>,
    /// The switch itself moves the frames, and has the interface open; there is no process then.
    #[serde(default, skip_serializing_if = "super::spec::is_false")]
    pub in_switch: bool,
    /// The id of its process while it runs.
    pub pid: Option<u32>,
    /// Number of restarts of its process.
    pub restarts: u64,
    /// Frames that the interface rejected: it is down or full, or they are too long for it.
    pub rejected_by_interface: u64,
    /// Frames of the interface that were too long for a buffer.
    pub oversized_frames: u64,
    /// Frames of the interface that the kernel dropped before the driver took them, because there
    /// was no room in its socket or rings, or because they were there when the port got another
    /// interface (`packet`); a super-frame counts as one. Absent where the kernel does not report
    /// that (`tap` and `vhost-net`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_by_kernel: Option<u64>,
    /// Frames that came in by the interface; a super-frame counts as the frames that it is cut
    /// into.
    #[serde(default)]
    pub received_frames: u64,
    /// System calls that brought frames of the interface; with `xdp` and `vhost-net` batches of its
    /// ring.
    #[serde(default)]
    pub receive_calls: u64,
    /// Frames that the interface took; a super-frame counts as the frames that it is cut into.
    #[serde(default)]
    pub sent_frames: u64,
    /// System calls that passed frames to the interface; with `xdp` batches for its ring.
    #[serde(default)]
    pub send_calls: u64,
    /// Flows of a user port, once its driver process has reported them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserPortStatus>,
    /// The reason why the port's `cpu_weight` has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_weight_error: Option<String>,
    /// The reason why its process does not run, or ended last, or why the switch does not have the
    /// interface. For one that moves frames, a note if another port has the same interface.
    pub reason: Option<String>,
}

/// A warning: a valid setting that is perhaps not intended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// The text, on one line.
    pub text: String,
    /// Names of the ports concerned, if any.
    #[serde(default)]
    pub ports: Vec<String>,
}

/// Answer of `GET /v1/warnings`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarningsDocument {
    /// All addresses.
    pub warnings: Vec<Warning>,
}

/// A port: its desired and its current state. Answer of `GET /v1/ports/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortStatus {
    /// The port's name.
    pub name: String,
    /// The kind of port.
    pub kind: PortKind,
    /// The operator's description.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Its state.
    pub state: PortState,
    /// The administrative state. A port that is `down` forwards nothing, whatever its state.
    #[serde(default)]
    pub admin_state: AdminState,
    /// The reason for the state, if there is one: the last error of its connection or its queues.
    pub reason: Option<String>,
    /// The socket path as configured, of a port with a socket.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub socket: String,
    /// Whether Lasthop listens or connects, of a vhost-user port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The configured owner of a listening socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The configured group of the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The configured mode of the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The only user whose processes may connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_user: Option<String>,
    /// Maximum number of queue pairs offered.
    pub queues: u16,
    /// The configured slots of each ring of a netmap port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u16>,
    /// Whether the netmap port has pipes.
    #[serde(default, skip_serializing_if = "super::spec::is_false")]
    pub pipes: bool,
    /// The interface id of a memif port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// Whether a memif port's client has to know a secret, which is not shown.
    #[serde(default, skip_serializing_if = "super::spec::is_false")]
    pub has_secret: bool,
    /// The segment of an access port.
    pub segment: Option<String>,
    /// The segments of a trunk port.
    pub trunk: Option<Vec<String>>,
    /// The configured MAC address.
    pub mac: Option<String>,
    /// The offered MTU in bytes.
    pub mtu: Option<u16>,
    /// Its share of the switch's time, relative to other ports.
    #[serde(default)]
    pub weight: u16,
    /// The configured CPU weight of its driver process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<u16>,
    /// Offer of an IOMMU to a guest's next connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu: Option<Iommu>,
    /// The offer to its present connection, if the port was changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_of_connection: Option<Iommu>,
    /// Rate limits.
    #[serde(default, skip_serializing_if = "LimitsSpec::is_nothing")]
    pub limits: LimitsSpec,
    /// The share of its frames at scheduled ports.
    #[serde(default, skip_serializing_if = "PortQosSpec::is_nothing")]
    pub qos: PortQosSpec,
    /// Scheduling of the frames that go out by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressStatus>,
    /// CPU time that the switch has spent for it.
    #[serde(default)]
    pub work: Work,
    /// The configured driver of an uplink or a TAP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<UplinkDriver>,
    /// The host's interface of an uplink or a TAP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The address of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The network namespace of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The network of a user port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_network: Option<UserSpec>,
    /// The driver of an uplink, TAP or user port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_status: Option<DriverStatus>,
    /// Queue pairs that carry frames now.
    pub queue_pairs: u16,
    /// Layout of the queues, after negotiation.
    pub ring: Option<RingFormat>,
    /// Names of the negotiated virtio features, as in virtio 1.3 without `VIRTIO_`.
    pub features: Vec<String>,
    /// Bytes of guest memory that the switch maps for this port.
    pub memory_bytes: u64,
    /// Number of vCPU threads found in the VMM.
    #[serde(default)]
    pub vcpus: u32,
    /// How they were found, or why not.
    #[serde(default)]
    pub vcpu_search: VcpuSearch,
    /// Notifications since the queues were started.
    #[serde(default)]
    pub notifications: Notifications,
    /// Frames to the guest in batches whose first frame was long and was copied between places at
    /// different offsets in their cache lines, since the queues were started.
    #[serde(default)]
    pub misaligned_frames: u64,
    /// Port security in effect.
    #[serde(default)]
    pub port_security: PortSecurityStatus,
    /// Queues that were stopped, lowest first.
    pub queue_faults: Vec<QueueFault>,
    /// Counters of connections and refusals.
    #[serde(default)]
    pub front_ends: FrontEndStatus,
    /// The process that is connected to a netmap or memif port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientStatus>,
    /// Translations of the connected guest, if it has an IOMMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translation: Option<TranslationStatus>,
    /// Tracked connections, where there is a table of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<PortConnections>,
    /// The prefilter of an uplink, unless it is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefilter: Option<PrefilterStatus>,
}

/// Translations of a guest with an IOMMU (vhost-user IOTLB), since its VMM has connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TranslationStatus {
    /// Entries of the table of translations now.
    pub entries: u64,
    /// UPDATE messages of the VMM that were accepted: pages granted.
    pub updates: u64,
    /// INVALIDATE messages of the VMM that were accepted: pages revoked.
    pub invalidations: u64,
    /// Entries that lost their place in the table to another; they are asked for again.
    pub evictions: u64,
    /// UPDATE and INVALIDATE messages that were refused.
    pub refused: u64,
    /// MISS messages to the VMM: questions for translations.
    pub misses: u64,
    /// Missing translations that the VMM has refused, or has not granted in time.
    pub denied: u64,
    /// Those of them for which it has not answered within a second.
    pub unanswered: u64,
    /// Microseconds for which INVALIDATE has waited for workers on average, since the port was
    /// added.
    pub mean_wait_us: u64,
    /// Microseconds within which 99 of 100 of these waits have ended, rounded up to 10, 20, 50,
    /// 100 and so on; `null` without any, or above a second.
    pub p99_wait_us: Option<u64>,
}

/// The process that is connected to a port for processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientStatus {
    /// Its process id, if it is visible to the switch.
    pub pid: Option<u32>,
    /// The name of its program, as the program says; `null` if it has not said any.
    pub program: Option<String>,
}

/// The search for the vCPU threads of a port's VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VcpuSearch {
    /// The evidence: `names`, `debugfs`, `tracepoints` or `activity`; or `unknown`.
    pub by: VcpuSource,
    /// The reason why they are unknown.
    pub reason: Option<String>,
}

/// Notifications of a port's queues, since they were started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Notifications {
    /// Interrupts sent to the guest.
    pub to_guest: u64,
    /// Interrupts that were deferred because the guest worked (interrupt coalescing).
    pub deferred: u64,
    /// Deferred interrupts during which the guest went to sleep: it had better been interrupted at
    /// once.
    #[serde(default)]
    pub slept_through: u64,
    /// Kicks received from the guest.
    pub kicks: u64,
    /// How often the guest was spared kicks because it ran (kick suppression).
    pub suppressed_kicks: u64,
    /// How often the guest was asked for one kick for several frames (kick coalescing).
    pub coalesced_kicks: u64,
}

/// Counters of a port's connections and refusals, since the port was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FrontEndStatus {
    /// Connections so far.
    pub connections: u64,
    /// Connections that were closed at once: another one was open, or the user was not `peer_user`.
    pub rejected_connections: u64,
    /// Milliseconds since the last rejected connection.
    pub last_rejected_ms_ago: Option<u64>,
    /// User id of the last rejected connection of another user.
    pub last_rejected_uid: Option<u32>,
    /// vhost-user messages that were refused.
    pub refused_messages: u64,
    /// Number of pauses: after a harmful connection, no connection is accepted for a while.
    pub pauses: u64,
    /// Remaining time of the current pause in milliseconds.
    pub pause_ms: u64,
    /// Log lines about the port that were suppressed by the rate limit.
    pub suppressed_log_lines: u64,
}

impl PortStatus {
    /// Returns the status of a port whose current state is not known.
    pub fn new(spec: &PortSpec, state: PortState) -> Self {
        Self {
            name: spec.name.clone(),
            kind: spec.kind,
            description: spec.description.clone(),
            state,
            admin_state: spec.admin_state,
            reason: None,
            socket: spec.socket.clone(),
            role: (spec.kind == PortKind::VhostUser).then_some(spec.role),
            user: spec.user.clone(),
            group: spec.group.clone(),
            mode: spec.mode.clone(),
            peer_user: spec.peer_user.clone(),
            queues: spec.queues,
            slots: spec.slots,
            pipes: spec.pipes,
            id: spec.id,
            has_secret: spec.secret.is_some(),
            segment: spec.segment.clone(),
            trunk: spec.trunk.clone(),
            mac: spec.mac.clone(),
            mtu: spec.mtu,
            weight: spec.weight,
            cpu_weight: spec.cpu_weight,
            iommu: (spec.kind == PortKind::VhostUser).then_some(spec.iommu),
            iommu_of_connection: None,
            limits: spec.limits,
            qos: spec.qos.clone(),
            egress: None,
            work: Work::default(),
            port_security: PortSecurityStatus::default(),
            driver: spec.driver,
            interface: spec.interface.clone(),
            address: spec.address.clone(),
            netns: spec.netns.clone(),
            user_network: spec.user_network(),
            driver_status: None,
            queue_pairs: 0,
            ring: None,
            features: Vec::new(),
            memory_bytes: 0,
            vcpus: 0,
            vcpu_search: VcpuSearch::default(),
            notifications: Notifications::default(),
            misaligned_frames: 0,
            queue_faults: Vec::new(),
            front_ends: FrontEndStatus::default(),
            translation: None,
            connections: None,
            prefilter: None,
            client: None,
        }
    }
}
