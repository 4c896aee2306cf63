//! Replies with descriptors.

use std::collections::VecDeque;

use ipc::supervision::EventToSwitch;
use sys::descriptors::MAX_FDS;
use sys::foreign::ForeignFd;

/// Message to the switch about a port.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) event: EventToSwitch,
    pub(super) fds: Vec<ForeignFd>,
}

impl Reply {
    /// Sends it.
    pub(super) fn send_by(self, mut send: impl FnMut(&EventToSwitch, &[ForeignFd])) {
        for part in self.parts() {
            send(&part.event, &part.fds);
            part.end();
        }
    }

    /// Returns its messages: the queues of an interface may need several.
    pub(super) fn parts(mut self) -> VecDeque<Self> {
        let mut parts = VecDeque::new();
        if let EventToSwitch::Interface { port, .. } = self.event {
            while self.fds.len() > MAX_FDS {
                let rest = self.fds.split_off(MAX_FDS);
                let event = EventToSwitch::InterfaceQueues { port };
                let fds = std::mem::replace(&mut self.fds, rest);
                parts.push_back(Self { event, fds });
            }
        }
        parts.push_back(self);
        parts
    }

    /// Closes the descriptors of a message that was sent.
    pub(super) fn end(self) {
        if let EventToSwitch::Interface { .. } | EventToSwitch::InterfaceQueues { .. } = self.event
        {
            // Copies of queues are not the last ones: their close releases nothing.
            let queues = self.fds.into_iter().map(ForeignFd::vouch);
            queues.for_each(drop);
        }
    }
}

/// Returns a socket that was opened, or the reason why not.
pub(super) fn opened(
    socket: Result<ForeignFd, impl ToString>,
) -> (Option<ForeignFd>, Option<String>) {
    match socket {
        Ok(socket) => (Some(socket), None),
        Err(error) => (None, Some(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use ipc::driving::{BackEnd, InterfaceStart};
    use port::PortId;

    use super::*;

    #[test]
    fn the_queues_of_an_interface_come_in_messages_with_room_for_them() {
        let port = PortId(3);
        let event = EventToSwitch::Interface {
            port,
            path: "driver:p".to_owned(),
            interface: InterfaceStart {
                back_end: BackEnd::Tap,
                uso: true,
            },
        };
        let more = EventToSwitch::InterfaceQueues { port };
        for (queues, parts) in [
            (1, &[1][..]),
            (8, &[8]),
            (9, &[8, 1]),
            (16, &[8, 8]),
            (64, &[8; 8]),
        ] {
            let queue = |_| ForeignFd::from(sys::event::create().unwrap());
            let reply = Reply {
                event: event.clone(),
                fds: (0..queues).map(queue).collect(),
            };
            let mut sent = Vec::new();
            reply.send_by(|event, fds| sent.push((event.clone(), fds.len())));
            let (last, before) = sent.split_last().unwrap();
            assert_eq!(last.0, event);
            assert!(before.iter().all(|(event, _)| *event == more));
            let lens: Vec<_> = sent.iter().map(|(_, len)| *len).collect();
            assert_eq!(lens, parts);
        }
    }
}
