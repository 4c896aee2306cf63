//! Connections to front ends that listen. Control has registered their paths; the switch requests a
//! connection by port.

use channel::supervision::SupervisorEvent;
use port::PortId;

use super::{Reply, Supervisor, opened};

impl Supervisor {
    /// Connects for a port; `None` for a driver, whose reply is sent when it runs.
    pub(super) fn dial(&mut self, port: PortId) -> Option<Reply> {
        if self.drivers.dial(port) {
            return None;
        }
        let path = self.sockets.dialled(port).unwrap_or_default().to_owned();
        let (socket, error) = opened(self.sockets.dial(port));
        let event = SupervisorEvent::Dialed { port, path, error };
        Some(Reply { event, socket })
    }
}
