//! Between control and the switch: ports, programs, state, and the stations whose flows are in use.
//!
//! The switch keeps the flows and lets them expire; control keeps the stations. So no message here grows with
//! the number of flows, and all are bounded by [`MAX_STATIONS`] and the number of ports.
//!
//! Every request has a number, and exactly one [`Report::Done`] follows with the same number, after
//! whatever else answers it. Requests are followed in their order; those that concern all flows take a while, and later
//! ones may be done before them. A new control process starts with [`Order::Adopt`].

use policy::guard::Bound;
use policy::{Outdated, Program, SegmentId};
use port::PortId;
use serde::{Deserialize, Serialize};

use crate::capture::CaptureOrder;
use crate::figures::{QueueCounts, Waits, WorkerFigures};
use crate::flows::{CachedFlow, FlowsWanted, FoundFlow};
use crate::limits::Limits;
use crate::mirrors::Mirror;
use crate::rules::RuleUse;

/// Who connects to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// The switch listens, the VMM dials.
    Server,
    /// The switch dials, the VMM listens.
    Client,
}

/// The weight of a port whose configuration says nothing.
pub const WEIGHT: u16 = 100;

/// What the switch knows of a port's configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortConfig {
    /// The port's number, handed out by control.
    pub id: PortId,
    /// Its name, for logs.
    pub name: String,
    /// The vhost-user socket, relative to the runtime directory.
    pub socket: String,
    /// Who connects.
    pub role: Role,
    /// Queue pairs offered at most.
    pub queues: u16,
    /// Offered through `VIRTIO_NET_F_MTU`; also bounds frames to the guest.
    pub mtu: Option<u16>,
    /// The port's part of a worker's time, compared with others, where there is not enough for all.
    pub weight: u16,
    /// The guest's address.
    pub mac: Option<[u8; 6]>,
}

/// A request of control.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Send the state over: answered with [`Report::Adopted`], then [`Report::Stations`] of all flows.
    Adopt,
    /// Replace the forwarding program; done when the flows are forgotten that it may decide otherwise for its access lists.
    Program {
        /// The new one.
        program: Program,
        /// Flows that may be wrong now. `None`: control does not know what ran before; then all are where access lists are
        /// asked, or were.
        outdated: Option<Outdated>,
    },
    /// Create a port. A server port comes with its listening socket.
    AddPort(PortConfig),
    /// Change what can change under a running guest: MTU and weight.
    SetPort(PortConfig),
    /// What a port may send and be sent is this from now on. Buckets start full, unless nothing changes.
    SetLimits(PortId, Limits),
    /// These are all mirrors from now on, [`MAX_MIRRORS`](crate::mirrors::MAX_MIRRORS) at most. A port that is removed leaves them.
    SetMirrors(Vec<Mirror>),
    /// Disconnect the guest, forget the port and every flow from and to it. Until that is done its number cannot be
    /// used.
    RemovePort(PortId),
    /// Report the learned stations from which flows were used lately: each once, [`MAX_STATIONS`] at most.
    Stations {
        /// Milliseconds within which they were used.
        within_ms: u32,
    },
    /// These are all stations that control knows, and what is bound at ports: forget the flows that would be decided otherwise now. That heals
    /// whatever was lost between the two, with a control that died as a rule.
    Check(Vec<Station>, Vec<(PortId, Bound)>),
    /// Report the state of every port.
    PortStates,
    /// Report the flows that frames with these keys have now, [`MAX_KEYS`](crate::flows::MAX_KEYS) at most. That is no use
    /// of theirs.
    FindFlows(Vec<[u64; 8]>),
    /// Report the busiest flows.
    Flows(FlowsWanted),
    /// Copy a port's frames: answered with [`Report::Capture`]. It ends with the port, with this control, or when it says so.
    Capture(CaptureOrder),
    /// End the capture of this number, if it has not ended.
    EndCapture(u32),
    /// From now on, only processes of the user with this number may connect to the port's socket; or all that can. It comes before the port,
    /// and is forgotten with it.
    SetPeer(PortId, Option<u32>),
    /// Report what was counted for rules since that was reported last.
    CountRules,
}

/// A numbered request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by control.
    pub number: u64,
    /// What to do.
    pub order: Order,
}

/// Stations in one series of [`Report::Stations`] at most: more than control learns.
pub const MAX_STATIONS: usize = 1 << 17;

/// A station that control has learned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Station {
    /// Its segment.
    pub segment: SegmentId,
    /// Its address.
    pub mac: [u8; 6],
    /// The port behind which it is.
    pub port: PortId,
}

/// That flows from a station are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StationUse {
    /// The station, as of the flows.
    pub station: Station,
    /// Milliseconds since the last use of any of them.
    pub idle_ms: u32,
}

/// Life of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PortPhase {
    /// The socket listens.
    Waiting,
    /// Nobody listens at the other end yet.
    Dialing,
    /// A VMM is there; the guest's driver is not ready.
    Connected,
    /// Frames can flow.
    Up,
    /// The guest broke a rule; its queue is stopped until the driver is reset.
    Faulted,
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
    /// Why it was stopped.
    pub fault: Option<String>,
    /// What was counted since it was started.
    pub counts: QueueCounts,
}

/// State of a port, for `status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortState {
    /// Which port.
    pub config: PortConfig,
    /// Where it is in its life.
    pub phase: PortPhase,
    /// Why the last connection ended, or what is wrong now.
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
    /// What it had to do against front ends.
    pub front_ends: FrontEnds,
}

/// What was done against those who connect to a port, or might.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FrontEnds {
    /// Connections that were closed as soon as they were made.
    pub turned_away: u64,
    /// How many milliseconds ago the last of them was.
    pub turned_away_ms_ago: Option<u64>,
    /// The user of the last connection that was closed because of it.
    pub last_stranger: Option<u32>,
    /// Messages of its front ends that were refused.
    pub refusals: u64,
    /// Times that it took no connection for a while, after one that did harm.
    pub pauses: u64,
    /// For how many milliseconds from now it takes none.
    pub pause_ms: u64,
    /// Lines about it that were left out of the log, because there were many.
    pub lines_left_out: u64,
}

/// Figures of the switch as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchFigures {
    /// Cached flows.
    pub flows: u64,
    /// Frames that found a flow.
    pub hits: u64,
    /// Frames that found none.
    pub misses: u64,
    /// Questions sent to control.
    pub upcalls: u64,
    /// Frames that wait for an answer now.
    pub parked: u64,
    /// Threads that forward.
    pub workers: u16,
    /// Threads that help them while their cores idle.
    pub helpers: u16,
    /// Frames that those have served.
    pub helped: u64,
    /// How long the answers to questions took.
    pub waits: Waits,
}

impl SwitchFigures {
    /// Adds what another worker of the same switch has.
    pub fn add(&mut self, other: &Self) {
        self.flows += other.flows;
        self.hits += other.hits;
        self.misses += other.misses;
        self.upcalls += other.upcalls;
        self.parked += other.parked;
        self.waits.add(&other.waits);
    }
}

/// A message of the switch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Report {
    /// The answer to [`Order::Adopt`]. Descriptors: the upcall region, the upcall doorbell, the answer
    /// doorbell.
    Adopted {
        /// Epoch of the running program; 0 if there is none yet.
        epoch: u64,
        /// All ports.
        ports: Vec<PortConfig>,
        /// Those of them with limits.
        limits: Vec<(PortId, Limits)>,
        /// All mirrors.
        mirrors: Vec<Mirror>,
        /// The only users whose processes may connect, of those ports where there is one.
        peers: Vec<(PortId, u32)>,
    },
    /// The answer to [`Order::Capture`]. Descriptor: its memory, see [`crate::capture`].
    Capture {
        /// Its number.
        id: u32,
        /// Threads that write to it.
        threads: u16,
    },
    /// Some stations with flows; more may follow.
    Stations(Vec<StationUse>),
    /// States of some ports; more may follow.
    PortStates(Vec<PortState>, SwitchFigures, Vec<WorkerFigures>),
    /// All flows that were asked for by key.
    Found(Vec<FoundFlow>),
    /// Some of the busiest flows, the busiest first. All parts of an answer have its order's number; more may follow.
    Flows(u64, Vec<CachedFlow>),
    /// A request is done.
    Done {
        /// The request's number.
        number: u64,
        /// Why it failed; then nothing has changed.
        error: Option<String>,
    },
    /// A port changed its phase; for the log and for those who wait.
    Phase {
        /// Which port.
        port: PortId,
        /// Its phase now.
        phase: PortPhase,
        /// Why.
        reason: Option<String>,
    },
    /// What was counted for some rules; more may follow. It is not told again.
    Rules(Vec<RuleUse>),
}
