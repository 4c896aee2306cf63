//! Dials of the switch, and their answers.

use std::io;
use std::os::fd::OwnedFd;

use interfaces::device::{NotReadyError, OpenError};
use ipc::driving::InterfaceStart;
use ipc::supervision::EventToSwitch;
use port::PortId;
use sys::foreign::ForeignFd;
use sys::limit;

use crate::reply::{Reply, opened};
use crate::saved_sessions::{CRASH_WINDOW, MAX_CRASHES};

/// Dial without an answer.
pub(in crate::drivers) struct Dial {
    pub(super) port: PortId,
    pub(super) path: String,
    /// The switch must not serve the port itself.
    pub(super) is_quarantined: bool,
}

/// Connection of the switch to a driver.
pub(super) enum Connection {
    /// With a process.
    Process(OwnedFd),
    /// The interface itself, with its queues.
    Interface(InterfaceStart, Vec<ForeignFd>),
}

/// Reason why a driver does not serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum DriverError {
    #[error(transparent)]
    Interface(#[from] OpenError),
    #[error(transparent)]
    NotReady(#[from] NotReadyError),
    #[error("its network is not known yet")]
    NoNetwork,
    #[error(
        "out of service: the switch has crashed {MAX_CRASHES} times while it served this port; \
         it is served again {} seconds after the last crash, and at once by a process of its own \
         (driver_process = true)", CRASH_WINDOW.as_secs()
    )]
    Quarantined,
    #[error("{}", limit::in_words(.0))]
    NoProcess(io::Error),
    #[error("cannot start the driver: {}", limit::in_words(.0))]
    SetUp(io::Error),
}

impl Dial {
    /// Returns the answer.
    pub(super) fn answered(self, connected: Result<Connection, impl ToString>) -> Reply {
        let Self { port, path, .. } = self;
        let socket = match connected {
            Ok(Connection::Interface(interface, fds)) => {
                let event = EventToSwitch::Interface {
                    port,
                    path,
                    interface,
                };
                return Reply { event, fds };
            }
            Ok(Connection::Process(socket)) => Ok(ForeignFd::from(socket)),
            Err(error) => Err(error),
        };
        let (socket, error) = opened(socket);
        Reply {
            event: EventToSwitch::Dialed { port, path, error },
            fds: socket.into_iter().collect(),
        }
    }
}
