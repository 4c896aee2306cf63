//! Interfaces that a new switch gets with the saved sessions, without a dial: those that it may
//! serve itself and that can be used. It serves nothing before it has them, so no frame finds its
//! interface missing.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ipc::supervision::EventToSwitch;
use port::PortId;

use crate::child::is_full;
use crate::reply::Reply;

/// Interfaces that a new switch has not received.
#[derive(Debug, Default)]
pub(super) struct Offers {
    ports: VecDeque<PortId>,
    /// Messages about the interface of one port: copies of the queues of others would be many.
    parts: VecDeque<Reply>,
}

impl Offers {
    /// Returns the offers of interfaces of these ports.
    pub(super) fn of(ports: impl Iterator<Item = PortId>) -> Self {
        Self {
            ports: ports.collect(),
            parts: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.parts.is_empty()
    }

    /// Sends what fits, without waiting. `copies` returns the message with the interface of a port,
    /// if it can still be used. `send` fails with [`io::ErrorKind::WouldBlock`] where a message
    /// does not fit.
    ///
    /// # Errors
    /// Other errors of `send`.
    pub(super) fn send(
        &mut self,
        mut copies: impl FnMut(PortId) -> Option<Reply>,
        send: impl Fn(&EventToSwitch, &[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            while let Some(part) = self.parts.front() {
                let fds: Vec<_> = part.fds.iter().map(AsFd::as_fd).collect();
                let sent = send(&part.event, &fds);
                if is_full(&sent) {
                    return Ok(());
                }
                sent?;
                self.parts.pop_front().into_iter().for_each(Reply::end);
            }
            let Some(port) = self.ports.pop_front() else {
                return Ok(());
            };
            self.parts = copies(port).map(Reply::parts).unwrap_or_default();
        }
    }
}
