//! The part of the host's ephemeral ports that sockets for guests may have: the lower half of
//! `net.ipv4.ip_local_port_range` in their network namespace, so that whatever guests do, a program
//! of the host that asks for any port finds one in the upper half.
//!
//! Since Linux 6.3 the system keeps a socket to it (`IP_LOCAL_PORT_RANGE`, ip(7)), also one that is
//! closed and waits for late segments. Before, a port of UDP is chosen here; those of TCP are only
//! bounded for each destination.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketType, bind};
use usernet::Family;

use super::{calls, random, sockets};

/// The range of a namespace, as two numbers.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// The system's default.
const DEFAULT: (u16, u16) = (32768, 60999);
/// Ports that are tried for a socket where the system does not choose.
const TRIES: u32 = 256;
/// Identifiers of echo requests for guests, of 65535.
const IDENTIFIERS: u32 = 1 << 15;

/// The first and the last of these ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPorts {
    first: u16,
    last: u16,
    /// The system keeps sockets to a range.
    by_system: bool,
}

impl HostPorts {
    /// Reads the range of this thread's network namespace. A later change holds for the next
    /// process.
    pub(crate) fn read() -> Self {
        let range = fs::read_to_string(RANGE).unwrap_or_default();
        Self::half_of(parse(&range).unwrap_or(DEFAULT))
    }

    fn half_of((first, last): (u16, u16)) -> Self {
        let mut ports = Self {
            first,
            last: first + (last - first).saturating_sub(1) / 2,
            by_system: true,
        };
        let probe = sockets::open(Ipv4Addr::LOCALHOST.into(), SocketType::DGRAM);
        ports.by_system = probe.is_ok_and(|probe| ports.restrict(&probe).is_ok());
        ports
    }

    /// Returns the ports of each user port of `sharers` in the namespace: at least one.
    pub(super) fn share(self, sharers: u32) -> u32 {
        let count = u32::from(self.last - self.first) + 1;
        (count / sharers.max(1)).max(1)
    }

    fn restrict(self, fd: &OwnedFd) -> Result<(), Errno> {
        calls::set_port_range(fd.as_fd(), self.first, self.last)
    }

    /// Opens a socket with one of these ports, if the system chooses it.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn open(self, address: IpAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
        let fd = sockets::open(address, kind)?;
        if self.by_system {
            self.restrict(&fd)?;
        }
        Ok(fd)
    }

    /// Opens a datagram socket that has one of these ports.
    ///
    /// # Errors
    /// The system's refusal: `EADDRINUSE` if no port is left.
    pub(super) fn open_udp(self, family: Family) -> Result<OwnedFd, Errno> {
        let any: IpAddr = match family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let fd = self.open(any, SocketType::DGRAM)?;
        if self.by_system {
            bind(&fd, &SocketAddr::new(any, 0))?;
            return Ok(fd);
        }
        for _ in 0..TRIES {
            let count = u64::from(self.last - self.first) + 1;
            let port = self.first + (random() % count) as u16;
            match bind(&fd, &SocketAddr::new(any, port)) {
                Ok(()) => return Ok(fd),
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::ADDRINUSE)
    }

    /// Works as on a system that keeps no socket to a range.
    #[cfg(test)]
    pub(super) fn without_system(self) -> Self {
        Self {
            by_system: false,
            ..self
        }
    }
}

/// Returns the identifiers of echo requests for each user port of `sharers` in a namespace: at
/// least one.
pub(super) fn identifiers(sharers: u32) -> usize {
    (IDENTIFIERS / sharers.max(1)).max(1) as usize
}

fn parse(range: &str) -> Option<(u16, u16)> {
    let mut words = range.split_ascii_whitespace();
    let mut next = || words.next()?.parse::<u16>().ok();
    let range = (next()?, next()?);
    (0 < range.0 && range.0 <= range.1).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_half_of_a_range_is_the_hosts() {
        for (range, half, count) in [
            ("32768\t60999\n", (32768, 46883), 14_116),
            ("1024 65535", (1024, 33279), 32_256),
            ("40000 41022", (40000, 40510), 511),
            ("5000 5001", (5000, 5000), 1),
            ("5000 5000", (5000, 5000), 1),
        ] {
            let ports = HostPorts::half_of(parse(range).unwrap());
            assert_eq!((ports.first, ports.last), half, "{range}");
            let shares = [1, 2, 1 << 20].map(|sharers| ports.share(sharers));
            assert_eq!(shares, [count, (count / 2).max(1), 1]);
        }
        for range in ["", "5", "7 5", "0 9", "a b", "1 65536"] {
            assert_eq!(parse(range), None, "{range}");
        }
        assert_eq!([1, 256, 1 << 20].map(identifiers), [32_768, 128, 1]);
    }
}
