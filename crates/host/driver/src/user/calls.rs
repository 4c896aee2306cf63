//! System calls with bytes of buffers.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use usernet::services::{IcmpError, Notice};
use usernet::{Counters, Progress, SocketQueues};

use super::memory::Bytes;
use crate::frames::BATCH;

/// Flags of every call: none waits, and none raises a signal.
const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
/// Scratch space for bytes before those that are peeked, for a socket without a peek offset.
const SCRATCH: usize = 64 << 10;
/// Pieces of a message at most (`IOV_MAX` is 1024): the frames of a batch, and scratch space.
const PIECES: usize = BATCH;

/// Probes of a silent peer between its first silence and its end, the most seconds between two, and
/// the most of silence that the system takes.
const PROBES_MAX: u32 = 8;
const INTERVAL_MAX: u32 = 75;
const IDLE_MAX: u32 = 32_767;

/// `linux/in.h`.
pub(crate) const IP_LOCAL_PORT_RANGE: u32 = 51;
/// `asm-generic/socket.h`.
pub(crate) const SO_BUF_LOCK: u32 = 72;
/// Numbers of `SO_MEMINFO` (`linux/sock_diag.h`): SK_MEMINFO_RCVBUF, SK_MEMINFO_SNDBUF,
/// SK_MEMINFO_WMEM_QUEUED.
const RECEIVE_SIZE: usize = 1;
const SEND_SIZE: usize = 3;
const SEND_USED: usize = 5;

fn last_error() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}

fn count(returned: isize) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| last_error())
}

/// Sends bytes by a connected socket, at most [`PIECES`] pieces; returns how many bytes the system
/// took.
pub(super) fn send(socket: BorrowedFd<'_>, all: &[Bytes]) -> Result<usize, Errno> {
    // SAFETY: zero is a value of this C structure.
    let mut pieces: [libc::iovec; PIECES] = unsafe { mem::zeroed() };
    for (piece, bytes) in pieces.iter_mut().zip(all) {
        piece.iov_base = bytes.pointer().cast();
        piece.iov_len = bytes.len();
    }
    let message = message(&raw mut pieces[0], all.len().min(PIECES));
    // SAFETY: the pieces live until the call returns; their bytes are mapped, and only the system
    // reads them.
    count(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, FLAGS) })
}

/// Maximum number of messages of a call.
pub(super) const MANY: usize = 16;

/// A datagram to send, or several of `segment` bytes if that is not 0; `hops` are fewer than the
/// system's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) bytes: Bytes,
    pub(super) to: SocketAddr,
    pub(super) segment: u16,
    pub(super) hops: Option<u8>,
}

/// Room for control data of a message.
type Control = [u64; 8];

/// Sends the first of these datagrams, as many as the system takes and a call has; returns their
/// number.
pub(super) fn send_many(socket: BorrowedFd<'_>, all: &[Datagram]) -> Result<usize, Errno> {
    // SAFETY: zero is a value of these C structures.
    let mut messages: [libc::mmsghdr; MANY] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut names: [libc::sockaddr_storage; MANY] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut pieces: [libc::iovec; MANY] = unsafe { mem::zeroed() };
    let mut controls = [Control::default(); MANY];
    for (at, datagram) in all.iter().take(MANY).enumerate() {
        let name_len;
        (names[at], name_len) = to_raw(datagram.to);
        pieces[at].iov_base = datagram.bytes.pointer().cast();
        pieces[at].iov_len = datagram.bytes.len();
        let header = &mut messages[at].msg_hdr;
        *header = message(&raw mut pieces[at], 1);
        header.msg_name = (&raw mut names[at]).cast();
        header.msg_namelen = name_len;
        if datagram.segment != 0 || datagram.hops.is_some() {
            header.msg_control = controls[at].as_mut_ptr().cast();
            put_control(header, datagram);
        }
    }
    let most = all.len().min(MANY);
    // SAFETY: names, pieces and control buffers live until the call returns, with the given
    // lengths; the bytes are mapped, and only the system reads them.
    count(unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            most as libc::c_uint,
            FLAGS,
        ) as isize
    })
}

/// Writes the control data of a message; its buffer is a [`Control`].
fn put_control(message: &mut libc::msghdr, datagram: &Datagram) {
    message.msg_controllen = size_of::<Control>() as _;
    let mut used = 0;
    if datagram.segment != 0 {
        let segment = datagram.segment.to_ne_bytes();
        used += put(message, used, (libc::SOL_UDP, libc::UDP_SEGMENT), &segment);
    }
    if let Some(hops) = datagram.hops {
        let kind = match datagram.to {
            SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_HOPLIMIT),
        };
        let hops = libc::c_int::from(hops).to_ne_bytes();
        used += put(message, used, kind, &hops);
    }
    message.msg_controllen = used as _;
}

/// Writes a piece of control data behind `used` bytes of a [`Control`], which are whole pieces;
/// returns its length. There is room for two.
fn put(
    message: &libc::msghdr,
    used: usize,
    (level, kind): (libc::c_int, libc::c_int),
    data: &[u8],
) -> usize {
    let len = data.len() as libc::c_uint;
    // SAFETY: the macros compute with their argument only.
    let (space, whole) = unsafe { (libc::CMSG_SPACE(len), libc::CMSG_LEN(len)) };
    // SAFETY: the control buffer is aligned, pieces are multiples of its alignment, and it is as
    // long as the callers' two pieces of at most four bytes.
    unsafe {
        let header = message.msg_control.byte_add(used).cast::<libc::cmsghdr>();
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = whole as _;
        ptr::copy_nonoverlapping(data.as_ptr(), libc::CMSG_DATA(header), data.len());
    }
    space as usize
}

/// Has the system hand out several datagrams of one sender as one message. Systems without it hand
/// out each by itself.
pub(super) fn coalesce(socket: BorrowedFd<'_>) {
    let _ = set_number(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
}

/// A datagram, or several of one peer, that came to a UDP socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedDatagrams {
    /// Bytes: of a datagram, or of several.
    pub(super) len: usize,
    /// There was no room for all of them.
    pub(super) is_cut: bool,
    /// Bytes of each datagram; 0: it is one.
    pub(super) segment: u16,
    pub(super) from: SocketAddr,
}

/// Receives what has come into these places, one by one until the first without; returns the number
/// of messages. One with an address that is none is not in `got`.
pub(super) fn receive_many(
    socket: BorrowedFd<'_>,
    into: &[Option<Bytes>; MANY],
    got: &mut [Option<ReceivedDatagrams>; MANY],
) -> Result<usize, Errno> {
    // SAFETY: zero is a value of these C structures.
    let mut names: [libc::sockaddr_storage; MANY] = unsafe { mem::zeroed() };
    let mut controls = [Control::default(); MANY];
    let mut pieces = into.map(|into| libc::iovec {
        iov_base: into.map_or(ptr::null_mut(), |into| into.pointer().cast()),
        iov_len: into.map_or(0, Bytes::len),
    });
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; MANY] = unsafe { mem::zeroed() };
    for (at, each) in messages.iter_mut().enumerate() {
        each.msg_hdr = message(&raw mut pieces[at], 1);
        each.msg_hdr.msg_name = (&raw mut names[at]).cast();
        each.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        each.msg_hdr.msg_control = controls[at].as_mut_ptr().cast();
        each.msg_hdr.msg_controllen = size_of::<Control>() as _;
    }
    let most = into.iter().take_while(|into| into.is_some()).count();
    // SAFETY: names, pieces and control buffers live until the call returns, with the given
    // lengths; `into` is mapped memory that only the system writes here.
    let done = count(unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            most as libc::c_uint,
            FLAGS,
            ptr::null_mut(),
        ) as isize
    })?;
    for at in 0..done.min(MANY) {
        let header = &messages[at].msg_hdr;
        got[at] = of_raw(&names[at]).map(|from| ReceivedDatagrams {
            len: messages[at].msg_len as usize,
            is_cut: header.msg_flags & libc::MSG_TRUNC != 0,
            segment: control(header, libc::SOL_UDP, libc::UDP_GRO).map_or(0, |data| {
                let segment = data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
                segment.and_then(|len| u16::try_from(len).ok()).unwrap_or(0)
            }),
            from,
        });
    }
    Ok(done)
}

/// Returns the first control data of a kind in a message that the system has filled.
fn control(header: &libc::msghdr, level: libc::c_int, kind: libc::c_int) -> Option<&[u8]> {
    // SAFETY: the header's control buffer is as long as it says, and the system has written the
    // control data in it; the macros stay inside of it.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(data) = next.as_ref() {
            if (data.cmsg_level, data.cmsg_type) == (level, kind) {
                let len = data.cmsg_len.checked_sub(libc::CMSG_LEN(0) as usize)?;
                return Some(std::slice::from_raw_parts(libc::CMSG_DATA(next), len));
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    None
}

/// A datagram that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UndeliveredDatagram {
    /// Where it was to go.
    pub(super) to: SocketAddr,
    /// Bytes that came back of it.
    pub(super) len: usize,
    pub(super) notice: Notice,
}

/// Has the system keep errors about packets of a socket for [`next_error`] (ip(7), ipv6(7)), or no
/// more. It does so for a TCP socket of IPv4 that connects in any case (Linux 5.11).
pub(super) fn keep_errors(socket: BorrowedFd<'_>, is_v4: bool, keeps: bool) -> Result<(), Errno> {
    let (level, option) = match is_v4 {
        true => (libc::SOL_IP, libc::IP_RECVERR),
        false => (libc::SOL_IPV6, libc::IPV6_RECVERR),
    };
    set_number(socket, level, option, keeps.into())
}

/// Sets the hop limit of a socket, or the system's own.
pub(super) fn set_hops(socket: BorrowedFd<'_>, is_v4: bool, hops: Option<u8>) -> Result<(), Errno> {
    let (level, option) = match is_v4 {
        true => (libc::SOL_IP, libc::IP_TTL),
        false => (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS),
    };
    let hops = hops.map_or(-1, libc::c_int::from);
    set_number(socket, level, option, hops)
}

/// Has the system probe the peer of a TCP socket after these seconds of silence, and then in parts
/// of them (tcp(7)).
pub(super) fn set_probes(socket: BorrowedFd<'_>, seconds: u32) -> Result<(), Errno> {
    let interval = (seconds / PROBES_MAX).clamp(1, INTERVAL_MAX);
    for (option, value) in [
        (libc::TCP_KEEPCNT, PROBES_MAX + 1),
        (libc::TCP_KEEPINTVL, interval),
        (libc::TCP_KEEPIDLE, seconds.min(IDLE_MAX)),
    ] {
        set_number(socket, libc::IPPROTO_TCP, option, value as libc::c_int)?;
    }
    Ok(())
}

/// Takes the oldest error of a socket, and what came back of the datagram. `None`: it is none that
/// a guest gets.
pub(super) fn next_error(
    socket: BorrowedFd<'_>,
    quoted: &mut [u8],
) -> Result<Option<UndeliveredDatagram>, Errno> {
    // SAFETY: zero is a value of this C structure.
    let mut name: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut room = [0u64; 16];
    let mut piece = libc::iovec {
        iov_base: quoted.as_mut_ptr().cast(),
        iov_len: quoted.len(),
    };
    let mut header = message(&raw mut piece, 1);
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    header.msg_control = room.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&room) as _;
    let flags = FLAGS | libc::MSG_ERRQUEUE;
    // SAFETY: name, piece and control buffer live until the call returns, with the given lengths.
    let len = count(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    let data = control(&header, libc::SOL_IP, libc::IP_RECVERR)
        .or_else(|| control(&header, libc::SOL_IPV6, libc::IPV6_RECVERR));
    let found = of_raw(&name).zip(data.and_then(error_of));
    Ok(found.map(|(to, notice)| UndeliveredDatagram { to, len, notice }))
}

/// Returns the error for the guest of a `struct sock_extended_err` (`linux/errqueue.h`). The
/// address of the router that has sent it follows.
fn error_of(data: &[u8]) -> Option<Notice> {
    const ORIGIN_LOCAL: u8 = 1;
    const ORIGIN_ICMP: u8 = 2;
    const ORIGIN_ICMP6: u8 = 3;
    let (number, rest) = data.split_first_chunk::<4>()?;
    let [origin, kind, code, _, info @ ..] = rest else {
        return None;
    };
    let number = Errno::from_raw_os_error(i32::from_ne_bytes(*number));
    let error = match (*origin, *kind, *code) {
        // The time to live ended; the other code is about the time for reassembly.
        (ORIGIN_ICMP, 11, 0) | (ORIGIN_ICMP6, 3, 0) => IcmpError::HopLimit,
        (ORIGIN_ICMP, 3, 9 | 10 | 13) => IcmpError::Prohibited,
        (ORIGIN_LOCAL, ..) | (ORIGIN_ICMP, 3, _) | (ORIGIN_ICMP6, 1 | 2, _) => match number {
            Errno::CONNREFUSED | Errno::NOPROTOOPT => IcmpError::Port,
            Errno::MSGSIZE => IcmpError::TooBig(u32::from_ne_bytes(*info.first_chunk()?)),
            Errno::NETUNREACH => IcmpError::Network,
            Errno::ACCESS | Errno::PERM => IcmpError::Prohibited,
            Errno::HOSTUNREACH | Errno::HOSTDOWN => IcmpError::Host,
            _ => return None,
        },
        _ => return None,
    };
    let from = match *origin {
        ORIGIN_LOCAL => None,
        _ => data.get(EXTENDED_ERROR..).and_then(offender),
    };
    Some(Notice { error, from })
}

/// Bytes of a `struct sock_extended_err`.
const EXTENDED_ERROR: usize = 16;

/// Returns the address of a `struct sockaddr` of IPv4 or IPv6 (ip(7), ipv6(7)).
fn offender(name: &[u8]) -> Option<IpAddr> {
    let (family, rest) = name.split_first_chunk()?;
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => Some(IpAddr::from(*rest.get(2..)?.first_chunk::<4>()?)),
        libc::AF_INET6 => Some(IpAddr::from(*rest.get(6..)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// Reads without consuming, from the socket's peek offset on; returns the number of bytes, 0 at the
/// end.
pub(super) fn peek(socket: BorrowedFd<'_>, into: Bytes) -> Result<usize, Errno> {
    let flags = FLAGS | libc::MSG_PEEK;
    // SAFETY: `into` is mapped memory that only the system writes here.
    count(unsafe { libc::recv(socket.as_raw_fd(), into.pointer().cast(), into.len(), flags) })
}

/// As [`peek`], `offset` bytes after the first that was not consumed, of a socket without a peek
/// offset. `None`: that is further than can be read at once.
pub(super) fn peek_at(
    socket: BorrowedFd<'_>,
    offset: u32,
    into: Bytes,
) -> Option<Result<usize, Errno>> {
    let mut scratch = [0u8; SCRATCH];
    let nothing = libc::iovec {
        iov_base: scratch.as_mut_ptr().cast(),
        iov_len: 0,
    };
    let mut pieces = [nothing; PIECES];
    let mut left = offset as usize;
    let mut used = 0;
    while left > 0 {
        let piece = pieces[..PIECES - 1].get_mut(used)?;
        piece.iov_len = left.min(SCRATCH);
        left -= piece.iov_len;
        used += 1;
    }
    pieces[used] = libc::iovec {
        iov_base: into.pointer().cast(),
        iov_len: into.len(),
    };
    let mut message = message(&raw mut pieces[0], used + 1);
    // SAFETY: all pieces are the scratch space, which nobody reads, or mapped memory that only the
    // system writes here; their number is right.
    let got = count(unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut message, FLAGS | libc::MSG_PEEK)
    });
    Some(got.and_then(|len| match len.checked_sub(offset as usize) {
        // The end, or less than was there before: the bytes after it have not come.
        Some(0) if offset > 0 => Err(Errno::AGAIN),
        Some(len) => Ok(len),
        None => Err(Errno::AGAIN),
    }))
}

/// Consumes bytes of a TCP socket that were peeked; returns how many.
pub(super) fn discard(socket: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
    let flags = FLAGS | libc::MSG_TRUNC;
    // SAFETY: with this flag a TCP socket writes nothing (tcp(7)).
    count(unsafe { libc::recv(socket.as_raw_fd(), ptr::null_mut(), len, flags) })
}

/// Sets the offset of [`peek`].
pub(super) fn set_peek_offset(socket: BorrowedFd<'_>, offset: u32) -> Result<(), Errno> {
    set_number(
        socket,
        libc::SOL_SOCKET,
        libc::SO_PEEK_OFF,
        offset as libc::c_int,
    )
}

/// Has the system choose the port of a socket from these, in place of all of
/// `ip_local_port_range` (`IP_LOCAL_PORT_RANGE`, `linux/in.h`), whatever its IP version.
pub(super) fn set_port_range(socket: BorrowedFd<'_>, first: u16, last: u16) -> Result<(), Errno> {
    let range = u32::from(last) << 16 | u32::from(first);
    let option = IP_LOCAL_PORT_RANGE as libc::c_int;
    set_number(socket, libc::SOL_IP, option, range as libc::c_int)
}

/// Sets the sizes of the buffers of a socket, for receiving and for sending, which the system
/// doubles and then changes no more.
pub(super) fn set_buffers(socket: BorrowedFd<'_>, [receive, send]: [u32; 2]) -> Result<(), Errno> {
    let level = libc::SOL_SOCKET;
    set_number(socket, level, libc::SO_RCVBUF, receive as libc::c_int)?;
    set_number(socket, level, libc::SO_SNDBUF, send as libc::c_int)
}

/// Has the system change the sizes of the buffers of a socket no more, or again (`SO_BUF_LOCK`,
/// Linux 5.14).
pub(super) fn fix_buffers(socket: BorrowedFd<'_>, fixed: bool) -> Result<(), Errno> {
    // `linux/socket.h`: SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK.
    let locks = if fixed { 1 | 2 } else { 0 };
    set_number(socket, libc::SOL_SOCKET, SO_BUF_LOCK as libc::c_int, locks)
}

/// Returns the memory that is used of both buffers.
#[cfg(test)]
pub(super) fn used_memory(socket: BorrowedFd<'_>) -> Option<u64> {
    let numbers = memory_of(socket)?;
    Some(u64::from(numbers[0]) + u64::from(numbers[SEND_USED]))
}

/// Sets an option that is a number.
fn set_number(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> Result<(), Errno> {
    // SAFETY: the options of the callers read one int, and its length is given.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Returns the bytes of a TCP socket that its peer has not acknowledged (`SIOCOUTQ`, tcp(7)).
pub(super) fn unacknowledged(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    number_by_ioctl(socket, libc::TIOCOUTQ)
}

/// Returns the bytes that lie in a TCP socket; none after an error.
pub(super) fn queues(socket: BorrowedFd<'_>) -> SocketQueues {
    SocketQueues {
        unread: number_by_ioctl(socket, libc::FIONREAD).unwrap_or(0),
        unsent: unacknowledged(socket).unwrap_or(0),
    }
}

/// The memory for bytes that a TCP socket is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendMemory {
    size: u32,
    used: u32,
    /// Size of the receive buffer.
    receive: u32,
}

impl SendMemory {
    /// Asks the system (`SO_MEMINFO`, Linux 4.12); `None` where it does not say.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let numbers = memory_of(socket)?;
        Some(Self {
            size: numbers[SEND_SIZE],
            used: numbers[SEND_USED],
            receive: numbers[RECEIVE_SIZE],
        })
    }

    /// Bytes of both buffers.
    pub(super) fn buffers(self) -> u64 {
        u64::from(self.size) + u64::from(self.receive)
    }

    /// Bytes that the system certainly takes: short segments need almost twice their payload.
    pub(super) fn room(self) -> u32 {
        self.size.saturating_sub(self.used) / 2
    }

    /// Whether the system does not call the socket writable: less than a third is free.
    pub(super) fn is_short(self) -> bool {
        self.size.saturating_sub(self.used) < self.used / 2
    }
}

/// Returns numbers about the memory of a socket (`SO_MEMINFO`, Linux 4.12).
fn memory_of(socket: BorrowedFd<'_>) -> Option<[u32; 9]> {
    let mut numbers = [0u32; 9];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the system writes at most `len` bytes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let is_whole = done == 0 && len as usize > SEND_USED * size_of::<u32>();
    is_whole.then_some(numbers)
}

fn number_by_ioctl(socket: BorrowedFd<'_>, request: libc::Ioctl) -> Result<u32, Errno> {
    let mut value: libc::c_int = 0;
    // SAFETY: the requests of the callers write one int.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut value) };
    if done < 0 {
        return Err(last_error());
    }
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Returns how far a TCP socket has come, by what the system knows; `None` for a socket that has
/// failed, or is no connection of TCP. `connected`: it was not accepted; `room`: free bytes of its
/// send buffer.
pub(super) fn progress(socket: BorrowedFd<'_>, connected: bool, room: u32) -> Option<Progress> {
    if !matches!(rustix::net::sockopt::socket_error(socket), Ok(Ok(()))) {
        return None;
    }
    // The peer's segments come meanwhile: numbers of different times would move the stream.
    let mut before = counters(socket, room)?;
    for _ in 0..READINGS {
        let counters = counters(socket, room)?;
        if counters == before {
            return Progress::of(&counters, connected);
        }
        before = counters;
    }
    None
}

/// Returns the bytes that a TCP socket has taken from the guest, and given to it, about: its
/// numbers may change while they are read.
pub(super) fn moved(socket: BorrowedFd<'_>, connected: bool) -> Option<[u64; 2]> {
    let progress = Progress::of(&counters(socket, 0)?, connected)?;
    Some([progress.taken, progress.given])
}

/// Maximum number of readings of a socket's numbers. Each takes some microseconds, and two of them
/// agree soon.
const READINGS: u32 = 1000;

fn counters(socket: BorrowedFd<'_>, room: u32) -> Option<Counters> {
    let info = tcp_info(socket)?;
    Some(Counters {
        state: info.state,
        acked: info.acked,
        received: info.received,
        unacknowledged: unacknowledged(socket).ok()?,
        unread: number_by_ioctl(socket, libc::FIONREAD).ok()?,
        room,
    })
}

/// Fields of `struct tcp_info` (`linux/tcp.h`).
struct TcpInfo {
    state: u8,
    /// `tcpi_bytes_acked`.
    acked: u64,
    /// `tcpi_bytes_received`.
    received: u64,
}

fn tcp_info(socket: BorrowedFd<'_>) -> Option<TcpInfo> {
    const LEN: usize = 136;
    let mut bytes = [0u8; LEN];
    let mut len = LEN as libc::socklen_t;
    // SAFETY: the system writes at most `len` bytes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    (done == 0 && len as usize == LEN).then(|| TcpInfo {
        state: bytes[0],
        acked: number(120),
        received: number(128),
    })
}

/// A message of pieces, without name and control data.
fn message(pieces: *mut libc::iovec, count: usize) -> libc::msghdr {
    // SAFETY: zero is a value of this C structure: null pointers and lengths of 0.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = pieces;
    message.msg_iovlen = count as _;
    message
}

fn to_raw(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: zero is a value of this C structure.
    let mut raw: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let place = &raw mut raw;
    let len = match address {
        SocketAddr::V4(v4) => {
            let value = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as long and as aligned as every address.
            unsafe { place.cast::<libc::sockaddr_in>().write(value) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let value = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(value) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (raw, len as libc::socklen_t)
}

fn of_raw(raw: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let place = ptr::from_ref(raw);
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is as long and as aligned as every address.
            let v4 = unsafe { place.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { place.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the system has them: errno, origin, type, code, a pad, the MTU, and the router.
    #[test]
    fn errors_are_those_that_concern_the_guest() {
        let said = |errno: Errno, (origin, kind, code): (u8, u8, u8), mtu: u32, from: &[u8]| {
            let number = errno.raw_os_error().to_ne_bytes();
            let bytes = [
                &number[..],
                &[origin, kind, code, 0],
                &mtu.to_ne_bytes(),
                &[0; 4],
                from,
            ];
            error_of(&bytes.concat())
        };
        let error = |errno, of, mtu| said(errno, of, mtu, &[]).map(|notice| notice.error);
        let (host, access) = (Errno::HOSTUNREACH, Errno::ACCESS);
        assert_eq!(
            error(Errno::CONNREFUSED, (2, 3, 3), 0),
            Some(IcmpError::Port)
        );
        assert_eq!(error(host, (2, 3, 1), 0), Some(IcmpError::Host));
        assert_eq!(error(host, (2, 3, 13), 0), Some(IcmpError::Prohibited));
        assert_eq!(error(access, (3, 1, 1), 0), Some(IcmpError::Prohibited));
        let too_big = Some(IcmpError::TooBig(1400));
        for (origin, kind) in [(1, 0), (2, 3), (3, 2)] {
            assert_eq!(error(Errno::MSGSIZE, (origin, kind, 0), 1400), too_big);
        }
        // The time to live ended; the time for reassembly; a time stamp; bytes that are none.
        assert_eq!(error(host, (2, 11, 0), 0), Some(IcmpError::HopLimit));
        assert_eq!(error(host, (3, 3, 0), 0), Some(IcmpError::HopLimit));
        assert_eq!(error(host, (2, 11, 1), 0), None);
        assert_eq!(error(Errno::NOMSG, (4, 0, 0), 0), None);
        assert_eq!(error_of(&[0; 7]), None);
        for text in ["192.0.2.1:0", "[2001:db8::1]:0"] {
            let (raw, len) = to_raw(text.parse().unwrap());
            // SAFETY: the storage has `len` bytes, all of which are initialised.
            let raw = unsafe { std::slice::from_raw_parts((&raw const raw).cast(), len as usize) };
            let notice = said(host, (2, 11, 0), 0, raw).unwrap();
            let router: SocketAddr = text.parse().unwrap();
            assert_eq!(notice.from, Some(router.ip()));
            // What the host says itself has no router.
            assert_eq!(said(host, (1, 0, 0), 0, raw).unwrap().from, None);
        }
    }

    #[test]
    fn the_system_takes_what_was_promised() {
        use std::io::Write as _;
        use std::os::fd::AsFd as _;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        let memory = || SendMemory::of(stream.as_fd());
        // An old kernel does not say.
        while let Some(memory) = memory().filter(|memory| memory.room() > 0) {
            let len = memory.room().min(1448) as usize;
            assert_eq!(
                (&stream).write(&[1; 1448][..len]).unwrap(),
                len,
                "{memory:?}"
            );
        }
        if let Some(memory) = memory() {
            assert!(memory.is_short(), "{memory:?}");
        }
        stream.flush().unwrap();
    }

    #[test]
    fn addresses_keep_their_values() {
        for text in ["192.0.2.1:53", "[2001:db8::1]:65535", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(of_raw(&to_raw(address).0), Some(address));
        }
    }
}
