//! Addresses, as programs have them (ip(7), ipv6(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use rustix::io::Errno;

/// Reads the address of a call. `None`: `AF_UNSPEC`. An IPv4 address in an IPv6 one is IPv4.
///
/// # Errors
/// `EINVAL`: it is too short. `EAFNOSUPPORT`. `EFAULT`: it is null.
///
/// # Safety
/// It is null, or has `len` bytes.
pub unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() {
        return Err(Errno::FAULT);
    }
    let len = len as usize;
    if len < size_of::<sa_family_t>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: it has bytes for a family at least.
    let family = unsafe { address.cast::<sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: it is long enough.
            let inet = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(inet.sin_addr.s_addr));
            let port = u16::from_be(inet.sin_port);
            Ok(Some(SocketAddr::new(ip.into(), port)))
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: it is long enough.
            let inet = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = IpAddr::from(Ipv6Addr::from(inet.sin6_addr.s6_addr));
            let port = u16::from_be(inet.sin6_port);
            Ok(Some(SocketAddr::new(ip.to_canonical(), port)))
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno::INVAL),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// An address for a program with a socket of this family: IPv4 is mapped where that is IPv6.
fn mapped(address: SocketAddr, domain: i32) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if domain == libc::AF_INET6 => {
            let ip = match ip.is_unspecified() {
                true => Ipv6Addr::UNSPECIFIED,
                false => ip.to_ipv6_mapped(),
            };
            SocketAddrV6::new(ip, address.port(), 0, 0).into()
        }
        _ => address,
    }
}

/// Writes an address for a program, as much as there is room for; `len` is the room, and then the
/// address's bytes.
///
/// # Safety
/// `to` is null, or has as many bytes as `len` says; `len` is null or leads to a number.
pub unsafe fn write(address: SocketAddr, domain: i32, to: *mut sockaddr, len: *mut socklen_t) {
    let mut bytes = [0; size_of::<sockaddr_in6>()];
    let used = match mapped(address, domain) {
        SocketAddr::V4(address) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as sa_family_t).to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as sa_family_t).to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            size_of::<sockaddr_in6>()
        }
    };
    if to.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the caller says what the pointers are.
    unsafe {
        let room = (len.read() as usize).min(used);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), room);
        len.write(used as socklen_t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address as a program with a socket of this family gets it, read again.
    fn there_and_back(text: &str, domain: i32) -> (usize, SocketAddr) {
        let mut bytes = [0_u8; 64];
        let mut len = 64;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: there are 64 bytes.
        let read = unsafe {
            write(text.parse().unwrap(), domain, to, &mut len);
            read(to, len)
        };
        (len as usize, read.unwrap().unwrap())
    }

    #[test]
    fn addresses_come_back() {
        for (text, domain, len) in [
            ("10.0.0.1:80", libc::AF_INET, 16),
            ("10.0.0.1:80", libc::AF_INET6, 28),
            ("[fd00::1]:443", libc::AF_INET6, 28),
        ] {
            assert_eq!(there_and_back(text, domain), (len, text.parse().unwrap()));
        }
        let any = there_and_back("0.0.0.0:7", libc::AF_INET6);
        assert_eq!(any, (28, "[::]:7".parse().unwrap()));
    }

    #[test]
    fn what_is_short_or_of_others_is_refused() {
        let mut bytes = [0_u8; 28];
        let with = |bytes: &[u8; 28], len| {
            // SAFETY: there are 28 bytes.
            unsafe { read(bytes.as_ptr().cast(), len) }
        };
        assert_eq!(with(&bytes, 28), Ok(None));
        assert_eq!(with(&bytes, 1), Err(Errno::INVAL));
        bytes[0] = libc::AF_INET as u8;
        assert_eq!(with(&bytes, 15), Err(Errno::INVAL));
        bytes[0] = libc::AF_INET6 as u8;
        assert_eq!(with(&bytes, 27), Err(Errno::INVAL));
        bytes[0] = libc::AF_UNIX as u8;
        assert_eq!(with(&bytes, 28), Err(Errno::AFNOSUPPORT));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { read(std::ptr::null(), 28) }, Err(Errno::FAULT));
    }

    #[test]
    fn a_short_room_is_filled_and_the_length_is_the_whole() {
        let (mut bytes, mut len) = ([0xff_u8; 16], 4);
        // SAFETY: there are more bytes than the length says.
        unsafe {
            let to = bytes.as_mut_ptr().cast();
            write("1.2.3.4:5".parse().unwrap(), libc::AF_INET, to, &mut len);
        }
        assert_eq!((len, &bytes[2..5]), (16, &[0, 5, 0xff][..]));
    }
}
