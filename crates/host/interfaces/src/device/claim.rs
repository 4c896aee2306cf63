//! Detection of interfaces that a port of another Lasthop uses, too.
//!
//! A process that opens an interface binds a socket to a name made of its index, and keeps it while
//! the interface is open. Such abstract names (unix(7)) belong to a network namespace, as interface
//! indices do; they are released with their socket, so that a crashed process leaves nothing
//! behind; and binding one needs no right. So any process in that namespace can take the name. That
//! causes a false warning, and nothing else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::interface::Control;
use super::namespace::{self, in_namespace};
use super::{OpenError, context};

/// A claim to an interface: see the module.
#[derive(Debug)]
pub(super) struct Claim {
    /// In the interface's network namespace, bound or not.
    socket: OwnedFd,
    name: SocketAddrUnix,
    pub(super) shared: bool,
}

impl Claim {
    /// A claim to the interface of this name where `control` is.
    ///
    /// # Errors
    /// There is no such interface any more, or the rights are missing that opening it needs.
    pub(super) fn of(interface: &str, control: &Control) -> Result<Self, OpenError> {
        let what = || format!("a claim to interface {interface}");
        let index = context(control.index(interface), what)?;
        let namespace = context(namespace::of_socket(control), what)?;
        in_namespace(namespace.as_fd(), || context(Self::here(index), what))
    }

    /// A claim to the interface with this number in this thread's network namespace.
    fn here(index: i32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
        let socket = rustix::net::socket_with(family, kind, flags, None)?;
        let name = SocketAddrUnix::new_abstract_name(format!("lasthop-uplink-{index}").as_bytes())?;
        let mut claim = Self {
            socket,
            name,
            shared: true,
        };
        claim.is_shared();
        Ok(claim)
    }

    /// Returns whether another process has claimed the interface before; once that one has ended
    /// the claim is ours.
    pub(super) fn is_shared(&mut self) -> bool {
        self.shared = self.shared && rustix::net::bind(&self.socket, &self.name).is_err();
        self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_claim_is_shared_until_the_first_is_gone() {
        // No interface has such a number, and no other test run.
        let index = -i32::try_from(std::process::id()).unwrap();
        let first = Claim::here(index).unwrap();
        let other = Claim::here(index - 1).unwrap();
        let mut second = Claim::here(index).unwrap();
        assert_eq!((first.shared, other.shared), (false, false));
        assert!(second.shared && second.is_shared());
        drop(first);
        assert!(!second.is_shared());
        assert!(!second.shared && !second.is_shared(), "it is ours");
        assert!(Claim::here(index).unwrap().shared);
    }
}
