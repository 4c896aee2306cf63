//! Memory of the host in the buffers of guests' sockets: a budget for each guest, and one for all.
//!
//! Bytes that a guest does not take wait in a socket, up to the size of its receive buffer, and
//! bytes that a peer does not take up to that of its send buffer. The system enlarges both while a
//! connection is fast (tcp(7), `tcp_rmem` and `tcp_wmem`). A socket counts with the sizes that its
//! buffers have, whatever is in them.
//!
//! ```text
//! up to half of a budget    the system chooses the sizes, as for any program
//! beyond                    buffers that are there keep their sizes, and new ones are the least
//! at its end                no more flows
//! ```
//!
//! The receive buffer grows when its socket is read (`tcp_rcv_space_adjust` of Linux), so the size
//! is looked at after that; the send buffer is filled up to the size that was looked at last.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use wire::MacAddr;

use super::calls::{self, SendMemory};

/// Sizes of the least buffers, for receiving and for sending, as they are set: the system doubles
/// them for its own needs.
const LEAST: [u32; 2] = [8 << 10, 4 << 10];
/// Bytes of a socket with the least buffers. Half of the default budget has room for those of as
/// many flows as a guest may have.
const LEAST_BYTES: u64 = 2 * (LEAST[0] + LEAST[1]) as u64;

/// Bytes of buffers, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Of a guest.
    pub(super) guest: u64,
    /// Of all.
    pub(super) port: u64,
}

/// The buffers of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketBuffers {
    station: MacAddr,
    bytes: u64,
    /// They keep their sizes.
    is_fixed: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Buffers {
    budget: Budget,
    all: u64,
    guests: HashMap<MacAddr, u64>,
}

impl SocketBuffers {
    /// Bytes that are read before they are counted again: the system enlarges a receive buffer when
    /// more was read in a round trip than in any before, which is more than this.
    pub(super) fn interval(&self) -> u32 {
        u32::try_from(self.bytes / 16).unwrap_or(u32::MAX)
    }
}

impl Buffers {
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            budget,
            all: 0,
            guests: HashMap::new(),
        }
    }

    /// Changes the budgets. Buffers that are there follow when their sockets are read next.
    pub(super) fn set(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Bytes of all.
    #[cfg(test)]
    pub(super) fn all(&self) -> u64 {
        self.all
    }

    fn of(&self, station: MacAddr) -> u64 {
        self.guests.get(&station).copied().unwrap_or(0)
    }

    /// Buffers grow no more.
    fn is_spent(&self, station: MacAddr) -> bool {
        let (guest, port) = (self.budget.guest / 2, self.budget.port / 2);
        // Before each read: a guest has no more than all have.
        self.all >= port || self.all >= guest && self.of(station) >= guest
    }

    /// Gives a new socket of a guest its buffers.
    ///
    /// # Errors
    /// `ENOBUFS` at the end of a budget; the system's refusal.
    pub(super) fn give(&mut self, station: MacAddr, fd: &OwnedFd) -> Result<SocketBuffers, Errno> {
        let is_fixed = self.is_spent(station);
        if is_fixed {
            let has_room = self.of(station) + LEAST_BYTES <= self.budget.guest
                && self.all + LEAST_BYTES <= self.budget.port;
            if !has_room {
                return Err(Errno::NOBUFS);
            }
            calls::set_buffers(fd.as_fd(), LEAST)?;
        }
        Ok(self.add(station, fd, is_fixed))
    }

    /// Counts the buffers of a socket that a predecessor has opened.
    pub(super) fn adopt(&mut self, station: MacAddr, fd: &OwnedFd) -> SocketBuffers {
        let is_fixed = self.is_spent(station);
        // Where the system cannot, the sizes stay as they are.
        let _ = calls::fix_buffers(fd.as_fd(), is_fixed);
        self.add(station, fd, is_fixed)
    }

    fn add(&mut self, station: MacAddr, fd: &OwnedFd, is_fixed: bool) -> SocketBuffers {
        let mut held = SocketBuffers {
            station,
            bytes: 0,
            is_fixed,
        };
        self.count(fd, &mut held);
        held
    }

    /// Lets the buffers of a socket grow before it is read, or not.
    pub(super) fn prepare(&self, fd: &OwnedFd, held: &mut SocketBuffers) {
        let is_spent = self.is_spent(held.station);
        if is_spent != held.is_fixed && calls::fix_buffers(fd.as_fd(), is_spent).is_ok() {
            held.is_fixed = is_spent;
        }
    }

    /// Counts the buffers of a socket as they are now.
    pub(super) fn count(&mut self, fd: &OwnedFd, held: &mut SocketBuffers) {
        if let Some(memory) = SendMemory::of(fd.as_fd()) {
            self.change(held, memory.buffers());
        }
    }

    /// Counts the buffers of a socket, with known sizes.
    pub(super) fn note(&mut self, fd: &OwnedFd, held: &mut SocketBuffers, bytes: u64) {
        if held.bytes != bytes {
            self.change(held, bytes);
        }
        self.prepare(fd, held);
    }

    /// A socket is closed.
    pub(super) fn take_back(&mut self, mut held: SocketBuffers) {
        self.change(&mut held, 0);
    }

    fn change(&mut self, held: &mut SocketBuffers, bytes: u64) {
        let guest = self.guests.entry(held.station).or_default();
        *guest = *guest - held.bytes + bytes;
        if *guest == 0 {
            self.guests.remove(&held.station);
        }
        self.all = self.all - held.bytes + bytes;
        held.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustix::net::SocketType;

    use super::*;
    use crate::user::sockets;

    const ONE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn open() -> OwnedFd {
        sockets::open(Ipv4Addr::LOCALHOST.into(), SocketType::STREAM).unwrap()
    }

    /// Opens sockets until there is no room for another.
    fn fill(buffers: &mut Buffers, station: MacAddr) -> Vec<(OwnedFd, SocketBuffers)> {
        let sockets = std::iter::from_fn(|| {
            let fd = open();
            let held = buffers.give(station, &fd).ok()?;
            Some((fd, held))
        });
        sockets.collect()
    }

    #[test]
    fn no_guest_and_no_port_has_more_than_its_budget() {
        let budget = Budget {
            guest: 2 << 20,
            port: 3 << 20,
        };
        let mut buffers = Buffers::new(budget);
        let first = fill(&mut buffers, ONE);
        assert!(buffers.all() <= budget.guest);
        assert!(buffers.all() > budget.guest - LEAST_BYTES);
        let second = fill(&mut buffers, OTHER);
        assert!(!second.is_empty() && buffers.all() <= budget.port);
        // What is given back is had again; a larger budget lets buffers grow again.
        for (_, held) in first {
            buffers.take_back(held);
        }
        let (fd, mut held) = fill(&mut buffers, ONE).pop().unwrap();
        assert!(held.is_fixed);
        buffers.set(Budget {
            guest: 1 << 30,
            port: 1 << 30,
        });
        buffers.prepare(&fd, &mut held);
        assert!(!held.is_fixed);
    }
}
