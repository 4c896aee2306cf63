//! `AF_PACKET` sockets (packet(7)) on an interface that exists. What the host itself sends there is
//! not received: the port leads to the wire. Where there are several queues, the system spreads
//! flows over them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ipc::driving::{BackEnd, DeviceSpec, PACKET_BACKLOG};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};
use wire::virtio::net::SHORT_LEN;

use super::interface::{Control, is_up, outcome};
use super::{Device, NotReadyError, OpenError, context};

/// All protocols, in network byte order.
const EVERYTHING: u16 = (libc::ETH_P_ALL as u16).to_be();
/// Maximum number of frames that are discarded of a socket. It has no room for as many.
const MOST_WAITING: usize = 1 << 16;
/// `PACKET_IGNORE_OUTGOING` of `linux/if_packet.h`, since Linux 4.20.
const PACKET_IGNORE_OUTGOING: i32 = 23;

pub(super) fn open(spec: &DeviceSpec, control: Control) -> Result<Device, OpenError> {
    let name = &spec.interface;
    let what = || format!("interface {name}");
    let index = context(control.index(name), what)?;
    if !context(control.is_ethernet(name), what)? {
        return Err(OpenError::new(format!(
            "interface {name}: not an Ethernet interface"
        )));
    }
    let mut queues = Vec::new();
    for _ in 0..spec.queues {
        let socket = socket(index, &queues, spec.queues);
        queues.push(context(socket, || format!("a packet socket on {name}"))?);
    }
    let uso = kernel_is_at_least(6, 2);
    Ok(Device::new(name, control, BackEnd::Packet, uso, queues))
}

/// One more socket beside `others`, `all` in the end.
fn socket(index: i32, others: &[OwnedFd], all: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it receives nothing before it is bound.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    for (option, value) in [
        (libc::PACKET_VNET_HDR, 1),
        (libc::PACKET_AUXDATA, 1),
        (PACKET_IGNORE_OUTGOING, 1),
    ] {
        set(&socket, option, &value)?;
    }
    let backlog = PACKET_BACKLOG as usize;
    if sockopt::set_socket_recv_buffer_size_force(&socket, backlog).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, backlog)?;
    }
    set_room(&socket, backlog)?;
    bind(&socket, index)?;
    promiscuous(&socket, index)?;
    if all > 1 {
        join(&socket, others.first())?;
    }
    Ok(socket)
}

/// Bounds the bytes that may wait in the interface for frames sent by a socket. The system counts
/// its own bytes of each frame, too, so it doubles the number (socket(7)).
pub(super) fn set_room(socket: &OwnedFd, bytes: usize) -> io::Result<()> {
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    Ok(())
}

/// Makes the interface promiscuous, as guests have addresses of their own. That ends with the
/// packet socket.
pub(super) fn promiscuous(socket: &OwnedFd, index: i32) -> io::Result<()> {
    let everything = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let member = libc::PACKET_ADD_MEMBERSHIP;
    set(socket, member, &everything)
}

fn bind(socket: &OwnedFd, index: i32) -> io::Result<()> {
    // SAFETY: zero is a value of this C structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = EVERYTHING;
    address.sll_ifindex = index;
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is a `struct sockaddr_ll` of the size that is given.
    outcome(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })
}

/// Joins the group of the first socket, or makes a new one: packets of a flow go to the same
/// socket.
fn join(socket: &OwnedFd, first: Option<&OwnedFd>) -> io::Result<()> {
    // How in the high half, the group's number in the low one; the system chooses the number.
    let value = match first {
        None => (libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16,
        Some(first) => {
            let group = number(first.as_fd(), libc::PACKET_FANOUT)?;
            group & 0xffff | libc::PACKET_FANOUT_HASH << 16
        }
    };
    set(socket, libc::PACKET_FANOUT, &value)
}

/// Discards the frames that wait in a socket, which gets no more from then on. Returns their
/// number; a super-frame counts as one.
pub(super) fn discard(socket: &OwnedFd) -> io::Result<u64> {
    // A program of one instruction that lets no frame pass (`SO_ATTACH_FILTER`, socket(7)).
    let mut refuse = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let filter = libc::sock_fprog {
        len: 1,
        filter: &raw mut refuse,
    };
    set_at(socket, (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), &filter)?;
    let mut header = [0; SHORT_LEN];
    let mut frames = 0;
    for _ in 0..MOST_WAITING {
        match rustix::net::recv(socket, &mut header[..], RecvFlags::DONTWAIT) {
            // Or no header can describe it.
            Ok(_) | Err(Errno::INVAL) => frames += 1,
            Err(Errno::AGAIN) => break,
            // The socket reports once that the interface is down or gone.
            Err(_) => {}
        }
    }
    Ok(frames)
}

/// Sets an option of packet sockets.
fn set<T>(socket: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    set_at(socket, (libc::SOL_PACKET, option), value)
}

/// Sets an option of a level.
fn set_at<T>(socket: &OwnedFd, (level, option): (i32, i32), value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    let fd = socket.as_raw_fd();
    // SAFETY: the value has the size that is given, and the kernel only reads it.
    outcome(unsafe { libc::setsockopt(fd, level, option, value, size) })
}

/// Returns the value of an option of packet sockets that is a number.
fn number(socket: BorrowedFd<'_>, option: i32) -> io::Result<u32> {
    let mut value = 0u32;
    let mut size = size_of_val(&value) as libc::socklen_t;
    let (fd, place) = (socket.as_raw_fd(), (&raw mut value).cast());
    // SAFETY: the kernel writes at most `size` bytes to the value.
    outcome(unsafe { libc::getsockopt(fd, libc::SOL_PACKET, option, place, &raw mut size) })?;
    Ok(value)
}

/// Returns whether the interface is there and on. Sockets stay bound to one that is switched off
/// and on.
pub(super) fn check(sockets: &[OwnedFd], name: &str) -> Result<(), NotReadyError> {
    let socket = sockets.first().ok_or(NotReadyError::Gone)?.as_fd();
    // A socket that has lost its interface is bound to none, even if there is a new one of that
    // name.
    let bound = bound_to(socket).map_err(|_| NotReadyError::Gone)?;
    if bound <= 0 {
        return Err(NotReadyError::Gone);
    }
    match is_up(socket, name) {
        Ok(true) => {
            // Each socket has a pending error from being down, which would end its next user.
            let mut errors = sockets.iter().map(sockopt::socket_error);
            errors
                .try_for_each(|read| read.map(drop))
                .map_err(|_| NotReadyError::Gone)
        }
        Ok(false) => Err(NotReadyError::Down(name.to_owned())),
        Err(_) => Err(NotReadyError::Gone),
    }
}

fn bound_to(socket: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: zero is a value of this C structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&address) as libc::socklen_t;
    let place = (&raw mut address).cast();
    // SAFETY: the kernel writes at most `size` bytes to the address.
    outcome(unsafe { libc::getsockname(socket.as_raw_fd(), place, &raw mut size) })?;
    Ok(address.sll_ifindex)
}

/// Returns whether the running kernel is of this version or later.
fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let system = rustix::system::uname();
    version(&system.release().to_string_lossy()) >= (major, minor)
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions() {
        assert_eq!(version("6.18.44-fc-v657"), (6, 18));
        assert_eq!(version("6.2-rc1"), (6, 2));
        assert_eq!(version("strange"), (0, 0));
        assert!(version("6.1.0") < (6, 2));
    }
}
