//! What of a port's connection is deposited with the supervisor, so that the next switch goes on with it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use channel::link::Link;
use channel::supervision::{Ask, Tell};
use port::PortId;

/// The way to the supervisor, for those who only send.
#[derive(Clone, Debug)]
pub struct Deposits(Rc<Link<Ask, Tell>>);

impl Deposits {
    /// Over a copy of the supervision link's descriptor.
    #[must_use]
    pub fn new(link: OwnedFd) -> Self {
        Self(Rc::new(Link::new(link)))
    }

    /// Those of one port.
    #[must_use]
    pub fn of(&self, port: PortId) -> Keeper {
        Keeper {
            deposits: self.clone(),
            port,
            last: None,
            more: false,
            failed: false,
        }
    }

    /// Has everything dropped that was kept for a port.
    pub fn forget(&self, port: PortId) {
        // A supervisor that is gone has dropped it.
        let _ = self.0.send(&Ask::Forget { port }, &[]);
    }
}

/// The deposits of one port.
#[derive(Debug)]
pub struct Keeper {
    deposits: Deposits,
    port: PortId,
    /// The record that was sent last, with the numbers of its descriptors.
    last: Option<(Vec<u8>, Vec<u64>)>,
    /// Descriptors were deposited since then; the next record says which of them are of use.
    more: bool,
    failed: bool,
}

impl Keeper {
    /// Deposits a descriptor under a number.
    pub fn keep(&mut self, number: u64, fd: BorrowedFd<'_>) {
        self.more = true;
        let port = self.port;
        self.ask(&Ask::Keep { port, number }, &[fd]);
    }

    /// Deposits a record, if something has changed.
    pub fn record(&mut self, record: Vec<u8>, numbers: Vec<u64>) {
        let new = Some((record, numbers));
        if !std::mem::take(&mut self.more) && self.last == new {
            return;
        }
        self.last = new;
        let Some((record, numbers)) = self.last.clone() else {
            return;
        };
        let port = self.port;
        let ask = Ask::KeepRecord {
            port,
            record,
            numbers,
        };
        self.ask(&ask, &[]);
    }

    /// The connection is over.
    pub fn forget(&mut self) {
        (self.last, self.more, self.failed) = (None, false, false);
        self.deposits.forget(self.port);
    }

    fn ask(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) {
        if self.failed {
            return;
        }
        let sent = self.deposits.0.send(ask, fds);
        if let Err(error) = sent {
            // Half a deposit would be worse than none.
            self.failed = true;
            self.deposits.forget(self.port);
            let port = self.port.0;
            tracing::warn!(
                port,
                "its connection would not outlive this process: {error}"
            );
        }
    }
}
