//! Messages between the supervisor and the switch.

use port::PortId;
use serde::{Deserialize, Serialize};

use super::{Request, SwitchSettings};
use crate::connections::AdoptedTable;
use crate::driving::{DriverCounters, InterfaceStart};
use crate::keeping::{MAX_RECORD, MAX_SAVED};

/// Request of the switch to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SwitchRequest {
    /// The answer to [`EventToSwitch::Ping`].
    Heartbeat,
    /// Connect to the front end of this port, whose address control has sent
    /// ([`SocketRequest::Dials`](super::SocketRequest::Dials)), or to a driver
    /// ([`PortDriverRequest::Set`](super::PortDriverRequest::Set)); answered with
    /// [`EventToSwitch::Dialed`] or [`EventToSwitch::Interface`]. The switch cannot choose the
    /// address: an attacker in it could connect to any socket that the supervisor may open.
    Dial {
        /// The port.
        port: PortId,
    },
    /// About saved sessions of ports; only the serving switch owns them.
    Sessions(SessionRequest),
    /// The saved sessions that have come are prepared; answers [`EventToSwitch::Prepare`].
    Prepared,
    /// No queue is served any more, and everything that the next switch needs is stored; answers
    /// [`EventToSwitch::Quiesce`].
    Quiesced {
        /// Time at which the first queue was released, nanoseconds of the machine's monotonic
        /// clock.
        at_ns: u64,
    },
    /// The connections of the former switch continue; answers [`EventToSwitch::TakeOver`].
    Serving {
        /// Time at which all queues were served again, nanoseconds of the machine's monotonic
        /// clock.
        at_ns: u64,
        /// Number of connections that continue.
        connections: u32,
        /// The table of tracked connections, if there is one.
        table: Option<AdoptedTable>,
    },
    /// The interface of this port fails: its descriptors are closed, and the switch will dial
    /// again.
    InterfaceLost {
        /// The port.
        port: PortId,
        /// The reason: printable, and no longer than
        /// [`REASON_CHARS_MAX`](crate::driving::REASON_CHARS_MAX).
        reason: String,
        /// The interface must be opened anew.
        device_lost: bool,
    },
    /// Counters of the interface of a port since its descriptors came: with heartbeats if they
    /// changed, and last when the descriptors are closed, before
    /// [`InterfaceLost`](Self::InterfaceLost) and before the next [`Dial`](Self::Dial).
    InterfaceCounters {
        /// The port.
        port: PortId,
        /// The counters.
        counters: DriverCounters,
    },
}

impl Request for SwitchRequest {
    /// A [`SessionRequest::StoreSession`] with a record of [`MAX_RECORD`] bytes and [`MAX_SAVED`]
    /// numbers, each of ten bytes at most.
    const MAX_BYTES: usize = MAX_RECORD + 10 * MAX_SAVED + 80;
}

/// Request about saved sessions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SessionRequest {
    /// Store the attached descriptor for the port's session.
    StoreDescriptor {
        /// The port.
        port: PortId,
        /// Its number within the session.
        number: u64,
    },
    /// Store this record for the port's session, in place of the one before, and drop the port's
    /// descriptors that the record does not need.
    StoreSession {
        /// The port.
        port: PortId,
        /// The record, in an encoding that only the switch reads.
        record: Vec<u8>,
        /// The numbers of all descriptors that are still needed.
        numbers: Vec<u64>,
    },
    /// The port's session is over; drop its descriptors and record.
    DropSession {
        /// The port.
        port: PortId,
    },
}

/// Part of a saved session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SavedPart {
    /// Descriptors of a port's session. Descriptors: as many.
    Descriptors {
        /// The port.
        port: PortId,
        /// Their numbers.
        numbers: Vec<u64>,
    },
    /// The record of a port's session, after its descriptors. It replaces one that was sent before.
    Record {
        /// The port.
        port: PortId,
        /// The record as it was stored.
        record: Vec<u8>,
        /// The session is to be ended: the switch has crashed repeatedly while it served the port,
        /// or was given up while it closed a descriptor of the connection.
        quarantined: bool,
    },
    /// The session that was sent before is over.
    Over {
        /// The port.
        port: PortId,
    },
}

/// Event or answer of the supervisor to the switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EventToSwitch {
    /// The first message. Descriptors: the counters, and the crash record (see
    /// [`crate::keeping::CRASH_RECORD_LEN`]). The saved sessions follow, and then
    /// [`EventToSwitch::ControlLink`].
    Start(SwitchSettings),
    /// End the process.
    Stop,
    /// Confirm that all threads are alive, with [`SwitchRequest::Heartbeat`].
    Ping,
    /// Parts of saved sessions, of many ports in one message. Descriptors: those of all parts, in
    /// their order.
    SavedSessions(Vec<SavedPart>),
    /// All saved sessions were sent that there are now, while the former switch still serves them:
    /// map their memory, and restore what needs no queue. What changes after that is sent again.
    /// Answered with [`SwitchRequest::Prepared`].
    Prepare,
    /// A new control process. Descriptor: the link to it.
    ControlLink,
    /// The answer to [`SwitchRequest::Dial`]; with the connection, or a reason.
    Dialed {
        /// The port.
        port: PortId,
        /// The registered path; empty where there is none.
        path: String,
        /// The error, if there is no connection.
        error: Option<String>,
    },
    /// Release all queues and handle only messages of the supervisor. Answered with
    /// [`SwitchRequest::Quiesced`].
    Quiesce,
    /// Serve the queues again after [`EventToSwitch::Quiesce`].
    Resume,
    /// All saved sessions were sent, and the former switch has released its queues. Answered with
    /// [`SwitchRequest::Serving`].
    TakeOver,
    /// The memory with the vCPU states. Descriptors: the memory (`sched::View`), and with BPF the
    /// ring of block events (`sched::BlockEvents`).
    GuestStates,
    /// The slots of a port's vCPUs, in place of the former ones.
    GuestThreads {
        /// The port.
        port: PortId,
        /// Their slots.
        slots: Vec<u16>,
    },
    /// Queues of an interface with more than one message has room for; the others follow, in order,
    /// in further such messages and in [`EventToSwitch::Interface`]. Descriptors: the queues.
    InterfaceQueues {
        /// The port.
        port: PortId,
    },
    /// The other answer to [`SwitchRequest::Dial`]: the interface of a port that the switch itself
    /// serves. A new switch gets those of the one before with the saved sessions, without a dial.
    /// Descriptors: its last queues; with those before there is one for each queue pair. The
    /// supervisor has them, too: they outlive the switch.
    Interface {
        /// The port.
        port: PortId,
        /// The registered path.
        path: String,
        /// Properties of the interface.
        interface: InterfaceStart,
    },
    /// Close the descriptors of this interface, send its last
    /// [counters](SwitchRequest::InterfaceCounters), and dial again: it was changed. Without
    /// effect for a port that has none.
    CloseInterface {
        /// The port.
        port: PortId,
        /// The reason, for the log.
        reason: String,
    },
    /// The table of connections, for [`SwitchCommand::Track`](crate::switching::SwitchCommand);
    /// one that has a table keeps it. Descriptors: its file; the filter of connections that
    /// prefilters read, if there is one.
    ConnectionTable,
}
