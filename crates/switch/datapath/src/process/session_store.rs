//! Saving the sessions of ports with the supervisor, so that the next switch process continues
//! them.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use ipc::link::Link;
use ipc::supervision::{EventToSwitch, SessionRequest, SwitchRequest};
use port::PortId;

/// The switch's client for saved sessions.
#[derive(Clone, Debug)]
pub struct SessionStore(Rc<Link<SwitchRequest, EventToSwitch>>);

impl SessionStore {
    /// Creates a client with a copy of the supervision link's descriptor.
    #[must_use]
    pub fn new(link: OwnedFd) -> Self {
        Self(Rc::new(Link::new(link)))
    }

    /// Returns the client of one port.
    #[must_use]
    pub fn for_port(&self, port: PortId) -> PortSessionStore {
        PortSessionStore {
            store: self.clone(),
            port,
            last: None,
            new_descriptors: false,
            failed: false,
        }
    }

    /// Drops the saved session of a port.
    pub fn drop_session(&self, port: PortId) {
        // A supervisor that has exited has dropped it.
        let _ = self.send(SessionRequest::DropSession { port }, &[]);
    }

    fn send(&self, request: SessionRequest, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.send(&request.into(), fds)
    }
}

/// The client for the saved session of one port.
#[derive(Debug)]
pub struct PortSessionStore {
    store: SessionStore,
    port: PortId,
    /// The last saved record, with the numbers of its descriptors.
    last: Option<(Vec<u8>, Vec<u64>)>,
    /// Descriptors were stored since then; the next record lists those in use.
    new_descriptors: bool,
    failed: bool,
}

impl PortSessionStore {
    /// Stores a descriptor under a number.
    pub fn store_descriptor(&mut self, number: u64, fd: BorrowedFd<'_>) {
        self.new_descriptors = true;
        let port = self.port;
        self.send(SessionRequest::StoreDescriptor { port, number }, &[fd]);
    }

    /// Continues the session that the supervisor has: this record and its descriptors.
    pub fn resume(&mut self, record: Vec<u8>, mut numbers: Vec<u64>) {
        numbers.sort_unstable();
        (self.last, self.new_descriptors) = (Some((record, numbers)), false);
    }

    /// Stores a record, if it or its descriptors have changed.
    pub fn store_session(&mut self, record: Vec<u8>, mut numbers: Vec<u64>) {
        numbers.sort_unstable();
        let new = Some((record, numbers));
        if !std::mem::take(&mut self.new_descriptors) && self.last == new {
            return;
        }
        self.last = new;
        let Some((record, numbers)) = self.last.clone() else {
            return;
        };
        let port = self.port;
        let request = SessionRequest::StoreSession {
            port,
            record,
            numbers,
        };
        self.send(request, &[]);
    }

    /// Drops the saved session: the connection has ended.
    pub fn drop_session(&mut self) {
        (self.last, self.new_descriptors, self.failed) = (None, false, false);
        self.store.drop_session(self.port);
    }

    fn send(&mut self, request: SessionRequest, fds: &[BorrowedFd<'_>]) {
        if self.failed {
            return;
        }
        let sent = self.store.send(request, fds);
        if let Err(error) = sent {
            // An incomplete session would be worse than none.
            self.failed = true;
            self.store.drop_session(self.port);
            let port = self.port.0;
            tracing::warn!(port, "session not saved: {error}");
        }
    }
}
