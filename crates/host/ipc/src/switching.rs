//! Messages between control and the switch: ports, programs, state, and the stations whose flows
//! are in use.
//!
//! The switch keeps the flows and lets them expire; control keeps the stations. So no message grows
//! with the number of flows, and all are bounded by [`MAX_STATIONS`] and the number of ports.
//!
//! Every request has a number, and exactly one [`SwitchEvent::Done`] follows with the same number,
//! after all other answers to it. Requests are executed in their order; those that concern all
//! flows take a while, and later ones may be done before them. A new control process starts with
//! [`SwitchCommand::Adopt`].

pub use model::Iommu;
use model::Secret;
use policy::port_security::Bindings;
use policy::{OutdatedFlows, Program, SegmentId};
use port::PortId;
use serde::{Deserialize, Serialize};

use crate::capture::CaptureCommand;
use crate::connections::ConnectionSettings;
use crate::egress::{EgressUse, OutputConfig, SenderQos};
use crate::figures::{QueueCounts, TranslationFigures, Waits, WorkerFigures};
use crate::flows::{CachedFlow, FlowDumpRequest, FoundFlow};
use crate::limits::Limits;
use crate::mirrors::Mirror;
use crate::rules::RuleUse;
use crate::sockets::SocketType;

/// Side that connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// The switch listens, the VMM connects.
    Server,
    /// The switch connects, the VMM listens.
    Client,
}

/// The default weight of a port.
pub const WEIGHT: u16 = 100;

/// Clients of a port: the rings and messages that they use.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Clients {
    /// vhost-user front ends: guests and drivers.
    #[default]
    VhostUser,
    /// Processes with the netmap API: vhost-user front ends with slot queues.
    Netmap {
        /// Slots of each ring that the operator configured; clients may ask for others.
        slots: u16,
    },
    /// memif clients.
    Memif {
        /// The interface id that the client has to name.
        id: u32,
        /// The secret that the client has to know.
        secret: Option<Secret>,
    },
}

impl Clients {
    /// Returns the type of the sockets to which they connect.
    #[must_use]
    pub const fn socket_type(&self) -> SocketType {
        match self {
            Self::VhostUser | Self::Netmap { .. } => SocketType::Stream,
            Self::Memif { .. } => SocketType::SeqPacket,
        }
    }
}

/// Configuration of a port, as far as the switch needs it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortConfig {
    /// The port's number, assigned by control.
    pub id: PortId,
    /// Its name, for logs.
    pub name: String,
    /// The socket, relative to the runtime directory.
    pub socket: String,
    /// Side that connects.
    pub role: Role,
    /// Most queue pairs that are offered.
    pub queues: u16,
    /// Offered through `VIRTIO_NET_F_MTU`; also bounds frames to the guest.
    pub mtu: Option<u16>,
    /// The port's part of a worker's time, compared with other ports, under load.
    pub weight: u16,
    /// The guest's address.
    pub mac: Option<[u8; 6]>,
    /// The kind of its clients.
    pub clients: Clients,
    /// The offer of translated addresses to the next connection; only guests get it.
    pub iommu: Iommu,
}

impl PortConfig {
    /// Returns whether a connection of the port remains when its configuration becomes `new`: they
    /// differ in nothing but what can change under a running guest, or holds for the next
    /// connection.
    #[must_use]
    pub fn keeps_connection(&self, new: &Self) -> bool {
        let fixed = |of: &Self| Self {
            mtu: None,
            mac: None,
            weight: 0,
            iommu: Iommu::default(),
            ..of.clone()
        };
        fixed(self) == fixed(new)
    }
}

/// A command of control.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum SwitchCommand {
    /// Report the whole state: answered with [`SwitchEvent::Adopted`], then
    /// [`SwitchEvent::Stations`] of all flows.
    Adopt,
    /// Replace the forwarding program; done when the flows are removed that its access lists may
    /// decide otherwise.
    Program {
        /// The new one.
        program: Program,
        /// Flows that may be outdated. `None`: control does not know the former program; then all
        /// flows are that access lists decide, or decided.
        outdated: Option<OutdatedFlows>,
    },
    /// Create a port. A server port comes with its listening socket.
    AddPort(PortConfig),
    /// Give a port its listening socket, the descriptor. It lacks one if a switch that died has
    /// left its connection.
    Listen(PortId),
    /// Change the attributes that can change under a running guest, MTU and weight, and what holds
    /// for the next connection.
    SetPort(PortConfig),
    /// Set the rate limits of a port. Buckets start full, unless nothing changes.
    SetLimits(PortId, Limits),
    /// Set the priority (PCP, IEEE 802.1Q) that tags of each class get, by its number; `None`: they
    /// keep the one that they came with.
    SetClasses(Vec<Option<u8>>),
    /// Set the settings of a port as a sender to scheduled ports.
    SetQos(PortId, SenderQos),
    /// Schedule the frames that leave by a port, or no longer. Nodes of the former tree that stay
    /// keep their state.
    SetEgress(PortId, Option<OutputConfig>),
    /// Report the use of all scheduled ports: one [`SwitchEvent::EgressUse`] each.
    EgressUse,
    /// Replace all mirrors, [`MAX_MIRRORS`](crate::mirrors::MAX_MIRRORS) at most. A port that is
    /// removed leaves them.
    SetMirrors(Vec<Mirror>),
    /// Disconnect the guest, remove the port and every flow from and to it. Until that is done its
    /// number cannot be used.
    RemovePort(PortId),
    /// Report the learned stations whose flows were used lately: each once, [`MAX_STATIONS`] at
    /// most.
    Stations {
        /// Milliseconds within which they were used.
        within_ms: u32,
    },
    /// Compare all flows with the stations that control knows and the bindings of ports, and remove
    /// those that would be decided otherwise. That repairs losses between the two, as a rule after
    /// the death of control.
    Check(Vec<Station>, Vec<(PortId, Bindings)>),
    /// Report the state of every port.
    PortStates,
    /// Report the flows that frames with these keys match, [`MAX_KEYS`](crate::flows::MAX_KEYS) at
    /// most. It does not count as a use of theirs.
    FindFlows(Vec<[u64; 8]>),
    /// Report the busiest flows.
    Flows(FlowDumpRequest),
    /// Forget connections. It is done when none of them is met any more; what they hold of the
    /// table is freed in time.
    FlushConnections(ConnectionFlush),
    /// Copy a port's frames: answered with [`SwitchEvent::Capture`]. The capture ends with the
    /// port, with this control, or by [`SwitchCommand::EndCapture`].
    Capture(CaptureCommand),
    /// End the capture of this number, if it has not ended.
    EndCapture(u32),
    /// Restrict the port's socket to processes of the user with this number, or lift the
    /// restriction. It comes before the port, and is removed with it.
    SetPeer(PortId, Option<u32>),
    /// Report the counters of rules since the last report.
    CountRules,
    /// Track connections with these settings, or change them. The supervisor has sent the table
    /// before ([`EventToSwitch::ConnectionTable`](crate::supervision::EventToSwitch)); the command
    /// is done when the switch has taken it over, or will when it takes over the ports.
    Track(ConnectionSettings),
}

/// Selects connections to forget.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ConnectionFlush {
    /// All.
    All,
    /// Those of a segment.
    Segment(SegmentId),
    /// Those with these names, up to [`MAX_FLUSHED`]; the names are bits of
    /// `conntrack::table::ConnectionId`. Those that have ended are left out.
    Named(Vec<u64>),
}

/// Maximum number of connections in one [`ConnectionFlush::Named`].
pub const MAX_FLUSHED: usize = 1024;

/// A numbered command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by control.
    pub number: u64,
    /// The command.
    pub order: SwitchCommand,
}

/// Most stations in one series of [`SwitchEvent::Stations`]: more than control learns.
pub const MAX_STATIONS: usize = 1 << 17;

/// A station that control has learned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Station {
    /// Its segment.
    pub segment: SegmentId,
    /// Its address.
    pub mac: [u8; 6],
    /// The port of the station.
    pub port: PortId,
}

/// Use of the flows from a station.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StationUse {
    /// The station, as in the flows.
    pub station: Station,
    /// Whether the port held the address when a flow was decided. Each move removes the flows, so
    /// it still holds it.
    pub held: bool,
    /// Milliseconds since the last use of any of them.
    pub idle_ms: u32,
}

/// State of a port's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PortPhase {
    /// The socket listens.
    Waiting,
    /// No process listens at the other end yet.
    Dialing,
    /// A VMM is connected; the guest's driver is not ready.
    Connected,
    /// Frames can flow.
    Up,
    /// The guest broke a rule; its queue is stopped until the driver is reset.
    Faulted,
}

/// A port that changed its phase.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PhaseReport {
    /// The port.
    pub port: PortId,
    /// Its phase now.
    pub phase: PortPhase,
    /// The reason.
    pub reason: Option<String>,
}

/// One queue of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueState {
    /// vhost-user's index: even to-guest, odd from-guest.
    pub index: u16,
    /// Entries.
    pub size: u16,
    /// The guest has switched it on.
    pub enabled: bool,
    /// Reason why it was stopped.
    pub fault: Option<String>,
    /// Counters since it was started.
    pub counts: QueueCounts,
}

/// State of a port, for `status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortState {
    /// The port's configuration.
    pub config: PortConfig,
    /// State of its connection.
    pub phase: PortPhase,
    /// Reason why the last connection ended, or the present fault.
    pub reason: Option<String>,
    /// Negotiated virtio features.
    pub features: u64,
    /// Negotiated vhost-user protocol features.
    pub protocol_features: u64,
    /// Guest memory mapped, bytes.
    pub memory: u64,
    /// Running queues.
    pub queues: Vec<QueueState>,
    /// Connections so far.
    pub connections: u64,
    /// Counters of its front ends.
    pub front_ends: FrontEnds,
    /// The connected process; none on ports for guests.
    pub client: Option<ClientProcess>,
    /// The offer of translated addresses to the present connection; the port may have been
    /// changed since.
    pub iommu: Option<Iommu>,
    /// Translations, of a guest with an IOMMU.
    pub translation: Option<TranslationFigures>,
}

/// The process that is connected to a netmap or memif port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientProcess {
    /// Its process id, if it is visible here.
    pub pid: Option<u32>,
    /// The name of its program, as it says; empty if it has not said any.
    pub program: String,
}

/// Measures against processes that connect to a port, or try to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FrontEnds {
    /// Connections that were closed as soon as they were made.
    pub rejected_connections: u64,
    /// Milliseconds since the last of them.
    pub last_rejected_ms_ago: Option<u64>,
    /// The user of the last connection that was rejected for its user.
    pub last_rejected_uid: Option<u32>,
    /// Refused messages of its front ends.
    pub refused_messages: u64,
    /// Number of pauses in which it took no connection, after one that violated the protocol.
    pub pauses: u64,
    /// Milliseconds until it takes connections again.
    pub pause_ms: u64,
    /// Log lines about it that were suppressed, because there were many.
    pub suppressed_log_lines: u64,
}

/// Counters of the switch as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchFigures {
    /// Cached flows.
    pub flows: u64,
    /// Frames that found a flow.
    pub hits: u64,
    /// Frames that found none.
    pub misses: u64,
    /// Upcalls sent to control.
    pub upcalls: u64,
    /// Frames that wait for a decision now.
    pub pending: u64,
    /// Forwarding threads.
    pub workers: u16,
    /// Histogram of the times until upcalls were answered.
    pub waits: Waits,
}

impl SwitchFigures {
    /// Adds the counters of another worker of the same switch.
    pub fn add(&mut self, other: &Self) {
        self.flows += other.flows;
        self.hits += other.hits;
        self.misses += other.misses;
        self.upcalls += other.upcalls;
        self.pending += other.pending;
        self.waits.add(&other.waits);
    }
}

/// A message of the switch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum SwitchEvent {
    /// The answer to [`SwitchCommand::Adopt`]. Descriptors: the upcall region, the upcall doorbell,
    /// the answer doorbell.
    Adopted {
        /// Epoch of the running program; 0 if there is none yet.
        epoch: u64,
        /// All ports.
        ports: Vec<PortConfig>,
        /// Those of them with limits.
        limits: Vec<(PortId, Limits)>,
        /// All mirrors.
        mirrors: Vec<Mirror>,
        /// The only users whose processes may connect, of those ports that have one.
        peers: Vec<(PortId, u32)>,
        /// Those that listen and lack their sockets.
        without_listener: Vec<PortId>,
    },
    /// The answer to [`SwitchCommand::Capture`]. Descriptor: its memory, see [`crate::capture`].
    Capture {
        /// Its number.
        id: u32,
        /// Number of threads that write to it.
        threads: u16,
    },
    /// Some stations with flows; more may follow.
    Stations(Vec<StationUse>),
    /// States of some ports; more may follow.
    PortStates(Vec<PortState>, SwitchFigures, Vec<WorkerFigures>),
    /// All flows that were requested by key.
    Found(Vec<FoundFlow>),
    /// Some of the busiest flows, the busiest first, with their command's number; more may follow.
    Flows(u64, Vec<CachedFlow>),
    /// A request is done.
    Done {
        /// The request's number.
        number: u64,
        /// The error; then nothing has changed.
        error: Option<String>,
    },
    /// Ports changed their phases; for the log and for waiting requests.
    Phases(Vec<PhaseReport>),
    /// Counters of some rules since their last report; more may follow.
    Rules(Vec<RuleUse>),
    /// The use of a scheduled port, by sender and class.
    EgressUse(PortId, Vec<EgressUse>),
}
