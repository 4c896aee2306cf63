//! Connections to front ends that listen. Control has registered their paths; the switch requests a
//! connection by port.

use std::os::fd::AsFd;

use channel::supervision::SupervisorEvent;
use port::PortId;

use super::{ProcessRef, Supervisor};

impl Supervisor {
    /// Connects for a port. For a driver the reply is sent when it runs.
    pub(super) fn dial(&mut self, process: ProcessRef, port: PortId) {
        if self.drivers.dial(port) {
            return;
        }
        let path = self.sockets.dialled(port).unwrap_or_default().to_owned();
        let (socket, error) = match self.sockets.dial(port) {
            Ok(socket) => (Some(socket), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let fds: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
        self.reply(
            process,
            &SupervisorEvent::Dialed { port, path, error },
            &fds,
        );
    }
}
