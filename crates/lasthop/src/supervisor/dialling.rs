//! The switch wants a connection for a port whose front end listens. Where that is, control has said.

use std::os::fd::AsFd;

use channel::supervision::Tell;
use port::PortId;

use super::{Supervisor, Who};

impl Supervisor {
    /// Connects for a port; a driver answers when it runs.
    pub(super) fn dial(&mut self, who: Who, port: PortId) {
        if self.drivers.dial(port) {
            return;
        }
        let path = self.sockets.dialled(port).unwrap_or_default().to_owned();
        let (socket, error) = match self.sockets.dial(port) {
            Ok(socket) => (Some(socket), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let fds: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
        self.reply(who, &Tell::Dialed { port, path, error }, &fds);
    }

    /// The same for a switch that says where: only if that is where the port's front end is.
    pub(super) fn dial_path(&mut self, who: Who, port: PortId, path: String) {
        let driver = self.drivers.address(port);
        if driver.as_deref().or(self.sockets.dialled(port)) == Some(&*path) {
            return self.dial(who, port);
        }
        let error = Some(format!("{path:?} is not registered for this port"));
        self.reply(who, &Tell::Dialed { port, path, error }, &[]);
    }
}
