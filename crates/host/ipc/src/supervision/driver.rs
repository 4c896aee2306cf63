//! Messages between the supervisor and a driver.

use serde::{Deserialize, Serialize};

use super::Request;
use crate::driving::{DriverCounters, DriverStart, UserForward, UserNetwork};
use crate::user_reports::{UserFigures, UserPage, UserQuestion};

/// Request of a driver to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DriverRequest {
    /// The answer to [`EventToDriver::Ping`], from all its threads.
    Pong(DriverCounters),
    /// The last message before it ends.
    Ends {
        /// The reason.
        reason: String,
        /// The interface must be opened anew.
        device_lost: bool,
    },
    /// About its user port; those of other drivers have none.
    User(UserDriverRequest),
}

impl Request for DriverRequest {
    /// A part of a table of a user port is the longest.
    const MAX_BYTES: usize = 16 << 10;
}

/// Request of the driver of a user port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UserDriverRequest {
    /// Keep the attached sockets of flows, by the numbers of their records; answered with
    /// [`EventToDriver::FlowsTaken`]. A driver waits for answers to a few messages.
    KeepFlows(Vec<u32>),
    /// Keep sockets no longer; answered with [`EventToDriver::FlowsTaken`].
    DropFlows(Vec<u32>),
    /// Pass the next sockets of its predecessor; answered with [`EventToDriver::KeptFlows`].
    NextFlows,
    /// Pass the next forwards with their listening sockets; answered with
    /// [`EventToDriver::Forwards`].
    NextForwards,
    /// The system denies its user port all IP packets (`EPERM`), as the unit of the package does.
    NetworkDenied,
    /// The figures of its user port; after each answer to a ping.
    Figures(Box<UserFigures>),
    /// The answer to [`EventToDriver::UserQuestion`].
    Page(UserPage),
}

/// Event or answer of the supervisor to a driver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EventToDriver {
    /// The first message. Descriptor: the connection to the switch.
    Start(DriverStart),
    /// End the process.
    Stop,
    /// Confirm that all threads are alive, with [`DriverRequest::Pong`].
    Ping,
    /// A queue of its interface. Descriptors: the queue; its vhost device, if it has one.
    Queue,
    /// The network of its user port, after its queue, and after each change.
    UserNetwork(Box<UserNetwork>),
    /// The memory for records of flows and leases of its user port, after the network. Descriptor:
    /// the memory.
    FlowRecords {
        /// Number of records of flows; leases are behind them
        /// ([`crate::driving::records_len`]).
        slots: u32,
    },
    /// Sockets of its predecessor's flows, by the numbers of their records; none behind the last.
    /// Descriptors: as many.
    KeptFlows(Vec<u32>),
    /// One message about flows was handled.
    FlowsTaken,
    /// Forwards of its user port; none behind the last. Descriptors: as many listening sockets.
    Forwards(Vec<UserForward>),
    /// The forwards have changed, and are to be asked for from the first.
    ForwardsChanged,
    /// A question for a part of a table of its user port; answered with
    /// [`UserDriverRequest::Page`]. The next one comes after the answer.
    UserQuestion(UserQuestion),
}
