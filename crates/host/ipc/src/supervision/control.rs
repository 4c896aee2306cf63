//! Messages between the supervisor and control.

use port::PortId;
use serde::{Deserialize, Serialize};

use super::{FoundVcpus, ProcessInfo, ProcessUsage, Request, SocketDir, WatchedGuests};
use crate::driving::{DriverSpec, DriverState, UserNetwork};
use crate::forwards::ForwardReach;
use crate::names::{PortName, SocketPath};
use crate::owners::{NoSocket, SocketOwner};
use crate::sockets::SocketType;
use crate::user_reports::{UserPage, UserQuestion};

/// Request of control to the supervisor; those about one matter are in an enum of their own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ControlRequest {
    /// Everything configured is in place.
    Ready,
    /// The answer to [`EventToControl::Ping`].
    Heartbeat,
    /// The API is closed and the state is in the state file; answers [`EventToControl::Freeze`].
    Frozen,
    /// Control ends because the switch is gone, without which it cannot work. An exit status would
    /// come too late: a process whose link is closed is killed.
    SwitchGone,
    /// Report the supervisor's events; answered with one [`EventToControl::Events`], as soon as
    /// there is an event.
    Events {
        /// The last events were delivered to all clients. Otherwise they are sent again: the former
        /// control died with them.
        had: bool,
    },
    /// Report the processes; answered with [`EventToControl::Processes`].
    Processes,
    /// Report the resource usage of the processes; answered with [`EventToControl::ProcessUsage`].
    ProcessUsage,
    /// About sockets with paths; answered with [`EventToControl::Sockets`].
    Sockets(SocketRequest),
    /// About the drivers of ports; answered with [`EventToControl::Drivers`].
    Drivers(PortDriverRequest),
    /// About vCPUs of guests; answered with [`EventToControl::Guests`].
    Guests(GuestRequest),
    /// About user ports; answered with [`EventToControl::Users`].
    Users(UserPortRequest),
    /// Send the table of connections to the switch and, read-only, to control; answered with
    /// [`EventToControl::ConnectionTable`].
    ConnectionTable {
        /// Length of its file, up to [`MAX_TABLE_BYTES`](crate::connections::MAX_TABLE_BYTES).
        bytes: u64,
    },
}

impl Request for ControlRequest {
    /// Messages about all ports are the longest.
    const MAX_BYTES: usize = 1 << 20;
}

/// Request about sockets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SocketRequest {
    /// Bind and listen; answered with [`SocketAnswer::Listening`].
    Listen {
        /// The socket's path, or [`tcp_path`](super::tcp_path).
        path: SocketPath,
    },
    /// As [`SocketRequest::Listen`], for a port or a pipe. The attributes of an existing socket are
    /// changed, and one of another type is replaced. Answered with [`SocketAnswer::ListeningFor`].
    ListenFor {
        /// The socket's path.
        path: SocketPath,
        /// The requested attributes.
        owner: SocketOwner,
        /// The type.
        socket_type: SocketType,
    },
    /// Close and remove a listening socket, whose other descriptors are closed by then. It has no
    /// answer; those to later requests come after it.
    Unlisten {
        /// The socket's path.
        path: SocketPath,
    },
    /// Replace the addresses of the ports' front ends; answered with [`SocketAnswer::Dials`].
    Dials(Vec<(PortId, SocketPath)>),
    /// Report the directories that may contain sockets; answered with [`SocketAnswer::Dirs`].
    Dirs,
    /// Report the sockets that more than one user can connect to; answered with
    /// [`SocketAnswer::Shared`].
    Shared,
}

/// Request about the drivers of ports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PortDriverRequest {
    /// Replace the set of drivers; answered with [`PortDriverAnswer::Set`].
    Set(Vec<DriverSpec>),
    /// Report the drivers; answered with [`PortDriverAnswer::States`].
    States,
    /// Report the speeds of the drivers' interfaces; answered with [`PortDriverAnswer::Speeds`].
    Speeds,
    /// The bytes that may wait in the interfaces of scheduled ports, by the names of ports; after
    /// [`PortDriverRequest::Set`]. Those of others are not bounded.
    Rooms(Vec<(PortName, u64)>),
    /// Send the prefilter's table of a port, which has one writer; answered with
    /// [`PortDriverAnswer::Prefilter`].
    Prefilter(PortName),
}

/// Request about vCPUs of guests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GuestRequest {
    /// The names of the vCPU threads (`vcpus::vcpus::names::matches`) of ports with such a setting;
    /// at the start of control and after every change.
    Watch(Vec<(PortId, String)>),
    /// Report the source of vCPU states; answered with [`GuestAnswer::Watched`].
    Watched,
    /// Report the vCPUs that were found; answered with [`GuestAnswer::FoundVcpus`].
    FoundVcpus,
}

/// Request about user ports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UserPortRequest {
    /// Their networks, by the names of ports; before [`PortDriverRequest::Set`].
    Networks(Vec<(PortName, UserNetwork)>),
    /// Report a part of a table of a port; answered with [`UserPortAnswer::Page`].
    Table {
        /// The name of the port.
        port: PortName,
        /// The part.
        question: UserQuestion,
    },
    /// Report where forwards may listen; answered with [`UserPortAnswer::ForwardReach`].
    ForwardReach,
}

/// Event or answer of the supervisor to control.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EventToControl {
    /// The first message. Descriptors: the link to the switch, the API's listening socket, the
    /// state file, the counters.
    Start {
        /// The runtime directory, absolute.
        runtime_dir: String,
        /// As after [`EventToControl::Freeze`]: another control still serves the API.
        frozen: bool,
    },
    /// End the process.
    Stop,
    /// Confirm that all threads are alive, with [`ControlRequest::Heartbeat`].
    Ping,
    /// Close the API, save the state, and continue to answer upcalls. Answered with
    /// [`ControlRequest::Frozen`].
    Freeze,
    /// Open the API, and save again.
    Thaw,
    /// The supervisor's events, the oldest first: events of the API as JSON, without ids. Sent once
    /// per request ([`ControlRequest::Events`]).
    Events(Vec<String>),
    /// The answer to [`ControlRequest::Processes`].
    Processes(Vec<ProcessInfo>),
    /// The answer to [`ControlRequest::ProcessUsage`]; without processes that do not run.
    ProcessUsage(Vec<ProcessUsage>),
    /// The answer to a [`ControlRequest::Sockets`].
    Sockets(SocketAnswer),
    /// The answer to a [`ControlRequest::Drivers`].
    Drivers(PortDriverAnswer),
    /// The answer to a [`ControlRequest::Guests`].
    Guests(GuestAnswer),
    /// The answer to a [`ControlRequest::Users`].
    Users(UserPortAnswer),
    /// The answer to [`ControlRequest::ConnectionTable`]; with the file, or the reason why there is
    /// none.
    ConnectionTable(Result<(), String>),
}

/// Answer about sockets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SocketAnswer {
    /// To [`SocketRequest::Listen`]; with the socket, or a reason.
    Listening {
        /// The requested path.
        path: SocketPath,
        /// The error, if there is no socket.
        error: Option<String>,
    },
    /// To [`SocketRequest::ListenFor`]; with the socket, or a reason.
    ListeningFor {
        /// The requested path.
        path: SocketPath,
        /// The number of the only user whose processes may connect, if it is restricted; or the
        /// reason why there is no such socket.
        outcome: Result<Option<u32>, NoSocket>,
    },
    /// To [`SocketRequest::Dials`].
    Dials {
        /// The error; then nothing has changed.
        error: Option<String>,
    },
    /// To [`SocketRequest::Dirs`].
    Dirs(Vec<SocketDir>),
    /// To [`SocketRequest::Shared`]: the requested paths of sockets without a user that alone may
    /// connect, with the names of the users that can, root excepted; no name means all users.
    Shared(Vec<(String, Vec<String>)>),
}

/// Answer about the drivers of ports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PortDriverAnswer {
    /// To [`PortDriverRequest::Set`].
    Set {
        /// The first interface that is not available, with the reason; by the name of its port.
        error: Option<(String, String)>,
    },
    /// To [`PortDriverRequest::States`].
    States(Vec<DriverState>),
    /// To [`PortDriverRequest::Speeds`], in bits a second, by the names of ports; without those
    /// that are not known.
    Speeds(Vec<(String, u64)>),
    /// To [`PortDriverRequest::Prefilter`]; with the map of the table, or the reason why there is
    /// none.
    Prefilter {
        /// The name of the port.
        port: String,
        /// The reason.
        table: Result<(), String>,
    },
}

/// Answer about vCPUs of guests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GuestAnswer {
    /// To [`GuestRequest::Watched`].
    Watched(WatchedGuests),
    /// To [`GuestRequest::FoundVcpus`].
    FoundVcpus(FoundVcpus),
}

/// Answer about user ports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UserPortAnswer {
    /// To [`UserPortRequest::Table`].
    Page {
        /// The name of the port.
        port: String,
        /// The part.
        question: UserQuestion,
        /// Its rows, or the reason why there are none.
        page: Result<UserPage, String>,
    },
    /// To [`UserPortRequest::ForwardReach`].
    ForwardReach(ForwardReach),
}
