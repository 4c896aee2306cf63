//! Calls that move bytes and connections.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use interpose::Mask;
use libc::{POLLIN, POLLOUT, c_int};
use rustix::io::Errno;

use super::{Socket, insert, socket};
use crate::net::Interest;
use crate::stack::{Kind, ReceivedBytes};

impl Socket {
    /// Repeats a call until it has something, where the program wants to wait.
    fn wait<T>(
        &self,
        events: i16,
        flags: c_int,
        mut act: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut left = self.limit(events == POLLOUT);
        let blocks =
            flags & libc::MSG_DONTWAIT == 0 && !self.is_nonblocking.load(Ordering::Relaxed);
        loop {
            match act() {
                Err(Errno::AGAIN) if blocks => {}
                result => return result,
            }
            if left == Some(Duration::ZERO) {
                return Err(Errno::AGAIN);
            }
            let began = sys::time::monotonic();
            self.sleep(events, left)?;
            let slept = sys::time::monotonic().saturating_sub(began);
            left = left.map(|left| left.saturating_sub(slept));
        }
    }

    fn sleep(&self, events: i16, limit: Option<Duration>) -> Result<(), Errno> {
        let interest = Interest {
            id: self.id,
            events,
            known: None,
        };
        let slept = self.net.wait(&[interest], &mut [], limit, Mask::NONE);
        slept.map(drop)
    }

    /// Checks that an address is of the socket's family.
    fn check(&self, address: SocketAddr) -> Result<(), Errno> {
        match address.is_ipv6() && self.domain == libc::AF_INET {
            true => Err(Errno::AFNOSUPPORT),
            false => Ok(()),
        }
    }
}

/// bind(2).
///
/// # Errors
/// Those of bind(2).
pub fn bind(fd: RawFd, address: Option<SocketAddr>) -> Result<(), Errno> {
    let socket = socket(fd)?;
    let address = address.ok_or(Errno::AFNOSUPPORT)?;
    socket.check(address)?;
    socket.net.bind(socket.id, address)
}

/// listen(2).
///
/// # Errors
/// Those of listen(2).
pub fn listen(fd: RawFd, backlog: c_int) -> Result<(), Errno> {
    let socket = socket(fd)?;
    socket.net.listen(socket.id, backlog)
}

/// accept4(2). Returns the new descriptor, the peer, and the family of the socket.
///
/// # Errors
/// Those of accept4(2).
pub fn accept(fd: RawFd, flags: c_int) -> Result<(RawFd, SocketAddr, c_int), Errno> {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Errno::INVAL);
    }
    let socket = socket(fd)?;
    let net = socket.net;
    let id = socket.wait(POLLIN, 0, || net.accept(socket.id))?;
    let (domain, is_nonblocking) = (socket.domain, flags & libc::SOCK_NONBLOCK != 0);
    let peer = net.peer(id);
    let new = insert(net, id, Kind::Stream, (domain, is_nonblocking))?;
    match peer {
        Ok(peer) => Ok((new, peer, domain)),
        // It was reset meanwhile: reading from it says so.
        Err(_) => Ok((new, SocketAddr::from(([0, 0, 0, 0], 0)), domain)),
    }
}

/// connect(2); `None`: `AF_UNSPEC`.
///
/// # Errors
/// Those of connect(2).
pub fn connect(fd: RawFd, to: Option<SocketAddr>) -> Result<(), Errno> {
    let socket = socket(fd)?;
    let net = socket.net;
    let Some(to) = to else {
        return net.disconnect(socket.id);
    };
    socket.check(to)?;
    let begun = net.connect(socket.id, to);
    let waits = matches!(begun, Err(Errno::INPROGRESS | Errno::ALREADY));
    if !waits || socket.is_nonblocking.load(Ordering::Relaxed) {
        return begun;
    }
    socket.sleep(POLLOUT, socket.limit(true))?;
    match net.take_error(socket.id) {
        Some(error) => Err(error),
        None if net.ready(socket.id, POLLOUT) == 0 => Err(Errno::INPROGRESS),
        None => Ok(()),
    }
}

/// getsockname(2). Returns the address, and the family of the socket.
///
/// # Errors
/// Those of getsockname(2).
pub fn getsockname(fd: RawFd) -> Result<(SocketAddr, c_int), Errno> {
    let socket = socket(fd)?;
    Ok((socket.net.local(socket.id)?, socket.domain))
}

/// getpeername(2). Returns the address, and the family of the socket.
///
/// # Errors
/// Those of getpeername(2).
pub fn getpeername(fd: RawFd) -> Result<(SocketAddr, c_int), Errno> {
    let socket = socket(fd)?;
    Ok((socket.net.peer(socket.id)?, socket.domain))
}

/// shutdown(2).
///
/// # Errors
/// Those of shutdown(2).
pub fn shutdown(fd: RawFd, how: c_int) -> Result<(), Errno> {
    let socket = socket(fd)?;
    let (reads, writes) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Err(Errno::INVAL),
    };
    socket.net.shutdown(socket.id, reads, writes)
}

/// sendto(2). A blocking one of TCP sends everything.
///
/// # Errors
/// Those of sendto(2). `EPIPE` without the signal.
pub fn send(fd: RawFd, bytes: &[u8], flags: c_int, to: Option<SocketAddr>) -> Result<usize, Errno> {
    let socket = socket(fd)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if let Some(to) = to {
        socket.check(to)?;
    }
    let mut sent = 0;
    loop {
        let rest = &bytes[sent..];
        let result = socket.wait(POLLOUT, flags, || socket.net.send(socket.id, rest, to));
        match result {
            Ok(len) => sent += len,
            // It is reported by the next call.
            Err(_) if sent > 0 => return Ok(sent),
            Err(error) => return Err(error),
        }
        if sent >= bytes.len() || socket.kind == Kind::Datagram {
            return Ok(sent);
        }
    }
}

/// Bytes that a TCP socket can take at once, one at least; waits for that where the program does.
///
/// # Errors
/// `EAGAIN`, `ENOTCONN`; `EINVAL`: the socket is UDP's.
pub fn room(fd: RawFd, flags: c_int) -> Result<usize, Errno> {
    let socket = socket(fd)?;
    if socket.kind == Kind::Datagram {
        return Err(Errno::INVAL);
    }
    socket.wait(POLLOUT, flags, || {
        socket.net.peer(socket.id)?;
        match socket.net.room(socket.id) {
            0 => Err(Errno::AGAIN),
            room => Ok(room),
        }
    })
}

/// recvfrom(2). Returns the family of the socket too.
///
/// # Errors
/// Those of recvfrom(2).
pub fn receive(fd: RawFd, bytes: &mut [u8], flags: c_int) -> Result<(ReceivedBytes, c_int), Errno> {
    let socket = socket(fd)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::INVAL);
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let receive = |bytes: &mut [u8]| {
        socket.wait(POLLIN, flags, || socket.net.receive(socket.id, bytes, peek))
    };
    let mut received = receive(bytes)?;
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && !peek && socket.kind == Kind::Stream;
    while waits_for_all && received.len < bytes.len() {
        match receive(&mut bytes[received.len..]) {
            Ok(more) if more.len > 0 => received.len += more.len,
            _ => break,
        }
    }
    Ok((received, socket.domain))
}
