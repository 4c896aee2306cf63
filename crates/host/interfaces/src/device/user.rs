//! In place of an interface: the network namespace of the sockets of a user port.

use std::os::fd::OwnedFd;

use ipc::driving::{BackEnd, ForwardProtocol, Listen};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, listen as listen_at, socket_with, sockopt,
};
use sys::limit;

use super::interface::Control;
use super::{Device, OpenError, context};

/// The namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens in the namespace that this thread is in.
pub(super) fn listen(at: Listen) -> Result<OwnedFd, OpenError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if at.address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let is_tcp = at.protocol == ForwardProtocol::Tcp;
    let kind = if is_tcp {
        SocketType::STREAM
    } else {
        SocketType::DGRAM
    };
    let opened = || -> Result<OwnedFd, Errno> {
        let socket = socket_with(family, kind, flags, None)?;
        if is_tcp {
            // Connections of a Lasthop before do not keep the port. Of UDP, another program could
            // take the port by the same option.
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        if at.address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        bind(&socket, &at.address)?;
        if is_tcp {
            listen_at(&socket, BACKLOG)?;
        }
        Ok(socket)
    };
    opened().map_err(|error| OpenError::new(limit::in_words(&error.into())))
}

/// Opens the namespace that this thread is in. It stays as long as its descriptor.
pub(super) fn open(control: Control) -> Result<Device, OpenError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(OWN, flags, Mode::empty());
    let namespace = context(opened, || "the network namespace".to_owned())?;
    // There is no interface, and so no name of one.
    let queues = vec![namespace];
    Ok(Device::new("", control, BackEnd::User, true, queues))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn a_port_that_is_taken_is_refused_in_words() {
        for protocol in [ForwardProtocol::Tcp, ForwardProtocol::Udp] {
            for ip in ["127.0.0.1", "::1"] {
                let any = SocketAddr::new(ip.parse().unwrap(), 0);
                let listen_at = |address| listen(Listen { protocol, address });
                let Ok(first) = listen_at(any) else {
                    eprintln!("skipped: no {ip} here");
                    continue;
                };
                let name = rustix::net::getsockname(&first).unwrap();
                let address = SocketAddr::try_from(name).unwrap();
                let error = listen_at(address).unwrap_err().to_string();
                assert!(error.contains("in use"), "{error}");
                drop(first);
                listen_at(address).unwrap();
            }
        }
    }
}
