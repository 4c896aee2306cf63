//! Interfaces by name: `ioctl` requests of netdevice(7) and of TAP devices.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// `struct ifreq`: a name and a union of 24 bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Request {
    name: [u8; libc::IFNAMSIZ],
    pub(super) value: [u8; 24],
}

impl Request {
    /// A request about the interface with this name, which is shorter than `IFNAMSIZ`.
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let mut request = Self {
            name: [0; libc::IFNAMSIZ],
            value: [0; 24],
        };
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return Err(Errno::NAMETOOLONG.into());
        }
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }

    /// With bytes at the start of the union.
    pub(super) fn with(mut self, bytes: &[u8]) -> Self {
        self.value[..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// The union's first bytes as a number.
    pub(super) fn short(&self) -> i16 {
        i16::from_ne_bytes([self.value[0], self.value[1]])
    }

    pub(super) fn int(&self) -> i32 {
        let [a, b, c, d, ..] = self.value;
        i32::from_ne_bytes([a, b, c, d])
    }

    /// The address of a `struct sockaddr` for Ethernet in the union.
    pub(super) fn hardware_address(&self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f, ..] = self.value;
        [a, b, c, d, e, f]
    }

    /// Makes the request.
    pub(super) fn make(&mut self, fd: BorrowedFd<'_>, code: libc::Ioctl) -> io::Result<()> {
        // SAFETY: all requests that are made through this function read and write a `struct ifreq`
        // at most, which this is; SIOCETHTOOL is not among them.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), code, std::ptr::from_mut(self)) };
        outcome(done)
    }
}

pub(super) fn outcome(done: i32) -> io::Result<()> {
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct in6_ifreq` of `linux/ipv6.h`.
#[repr(C)]
struct Request6 {
    address: [u8; 16],
    prefix: u32,
    index: i32,
}

/// A socket for requests about interfaces, in the network namespace of the thread that made it.
#[derive(Debug)]
pub(super) struct Control(pub(super) OwnedFd);

impl Control {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(datagram(AddressFamily::INET)?))
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn ask(&self, name: &str, code: libc::Ioctl) -> io::Result<Request> {
        self.notify(Request::new(name)?, code)
    }

    fn notify(&self, mut request: Request, code: libc::Ioctl) -> io::Result<Request> {
        request.make(self.0.as_fd(), code)?;
        Ok(request)
    }

    /// The interface's number.
    pub(super) fn index(&self, name: &str) -> io::Result<i32> {
        Ok(self.ask(name, libc::SIOCGIFINDEX)?.int())
    }

    /// Returns whether its frames are Ethernet frames.
    pub(super) fn is_ethernet(&self, name: &str) -> io::Result<bool> {
        let kind = self.ask(name, libc::SIOCGIFHWADDR)?.short();
        Ok(kind as u16 == libc::ARPHRD_ETHER)
    }

    /// Switches the interface on.
    pub(super) fn up(&self, name: &str) -> io::Result<()> {
        self.change_flags(name, |flags| flags | libc::IFF_UP as i16)
    }

    /// Switches the interface off.
    pub(super) fn down(&self, name: &str) -> io::Result<()> {
        self.change_flags(name, |flags| flags & !(libc::IFF_UP as i16))
    }

    fn change_flags(&self, name: &str, change: impl FnOnce(i16) -> i16) -> io::Result<()> {
        let flags = change(self.ask(name, libc::SIOCGIFFLAGS)?.short());
        let request = Request::new(name)?.with(&flags.to_ne_bytes());
        self.notify(request, libc::SIOCSIFFLAGS).map(drop)
    }

    /// Gives the interface, which is off, another name; in place of `%d` a number that makes it
    /// unique.
    pub(super) fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        let request = Request::new(name)?.with(&Request::new(to)?.name);
        self.notify(request, libc::SIOCSIFNAME).map(drop)
    }

    /// Returns whether the interface is switched on.
    pub(super) fn is_up(&self, name: &str) -> io::Result<bool> {
        is_up(self.0.as_fd(), name)
    }

    /// Returns whether the host has an address there that others can reach. Of IPv6 that is looked
    /// up in the network namespace of this thread.
    pub(super) fn has_address(&self, name: &str) -> bool {
        let v6 = sys::file::text("/proc/thread-self/net/if_inet6");
        self.ask(name, libc::SIOCGIFADDR).is_ok() || lists_address(&v6.unwrap_or_default(), name)
    }

    /// Bytes that a frame may have behind its Ethernet header.
    pub(super) fn mtu(&self, name: &str) -> io::Result<u32> {
        let mtu = self.ask(name, libc::SIOCGIFMTU)?.int();
        Ok(u32::try_from(mtu).unwrap_or(0))
    }

    pub(super) fn set_mtu(&self, name: &str, mtu: u16) -> io::Result<()> {
        let request = Request::new(name)?.with(&i32::from(mtu).to_ne_bytes());
        self.notify(request, libc::SIOCSIFMTU).map(drop)
    }

    /// Its MAC address.
    pub(super) fn mac(&self, name: &str) -> io::Result<[u8; 6]> {
        Ok(self.ask(name, libc::SIOCGIFHWADDR)?.hardware_address())
    }

    pub(super) fn set_mac(&self, name: &str, mac: [u8; 6]) -> io::Result<()> {
        let family = libc::ARPHRD_ETHER.to_ne_bytes();
        let request = Request::new(name)?.with(&[&family[..], &mac].concat());
        self.notify(request, libc::SIOCSIFHWADDR).map(drop)
    }

    /// Gives the interface an address.
    pub(super) fn set_address(&self, name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
        match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                let set = |bytes: [u8; 4], code| {
                    let request = Request::new(name)?.with(&socket_address(bytes));
                    self.notify(request, code)
                };
                set(address.octets(), libc::SIOCSIFADDR)?;
                set(mask.to_be_bytes(), libc::SIOCSIFNETMASK).map(drop)
            }
            IpAddr::V6(address) => {
                let request = Request6 {
                    address: address.octets(),
                    prefix: prefix.into(),
                    index: self.index(name)?,
                };
                let socket = datagram(AddressFamily::INET6)?;
                let fd = socket.as_raw_fd();
                // SAFETY: on such a socket the request is a `struct in6_ifreq`, which this is.
                outcome(unsafe { libc::ioctl(fd, libc::SIOCSIFADDR, &raw const request) })
            }
        }
    }
}

fn datagram(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        family,
        SocketType::DGRAM,
        flags,
        None,
    )?)
}

/// `struct sockaddr_in` without a port.
fn socket_address(address: [u8; 4]) -> [u8; 8] {
    let [a, b] = (libc::AF_INET as u16).to_ne_bytes();
    let [c, d, e, f] = address;
    [a, b, 0, 0, c, d, e, f]
}

/// Returns whether the interface is up; `socket` selects the network namespace.
pub(super) fn is_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let mut request = Request::new(name)?;
    request.make(socket, libc::SIOCGIFFLAGS)?;
    Ok(request.short() & libc::IFF_UP as i16 != 0)
}

/// Returns whether `/proc/net/if_inet6` knows an address of an interface, other than one of its
/// link alone: address, index, prefix length, scope, flags, name.
fn lists_address(table: &str, name: &str) -> bool {
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(3);
        let (scope, whose) = (words.next(), words.nth(1));
        whose == Some(name) && scope != Some("20")
    })
}

#[cfg(test)]
mod tests {
    use super::lists_address;

    #[test]
    fn addresses_of_a_link_are_not_the_hosts() {
        let table = "fe800000000000000000000000000001 02 40 20 80     eth0\n\
                     fd000000000000000000000000000001 03 40 00 80     eth1\n";
        assert!(!lists_address(table, "eth0"));
        assert!(lists_address(table, "eth1"));
        assert!(!lists_address(table, "eth"));
        // Another interface's name may be any bytes.
        let other = b"fd000000000000000000000000000002 04 40 00 80     caf\xe9\n";
        let all = [&other[..], table.as_bytes()].concat();
        assert!(lists_address(&String::from_utf8_lossy(&all), "eth1"));
    }
}
