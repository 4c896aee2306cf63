//! Ways for the frames of the one client to each peer: the queue pair of the library, the framing
//! of QEMU's `-netdev stream`, and a packet socket on the TAP interface of a network namespace.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use sockets::{Events, Link, Wire};
use wire::checksum::{Sum, complete_partial};
use wire::virtio::net::{LEN, NetHeader};

/// Bytes of the length in front of each frame of a stream.
const PREFIX: usize = 4;
/// Bytes of the longest frame.
const LONGEST: usize = 65_535 + 14;
/// Bytes of a stream that are written or read at once, and that wait to be written at most.
const STREAM: usize = 256 << 10;
/// Bytes of the header of virtio-net as packet sockets have it: without the number of buffers.
const PACKET_HEADER: usize = 10;
/// Of packet sockets (packet(7)).
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// Bytes that may wait in a packet socket.
const PACKETS: i32 = 4 << 20;

/// A way for frames.
pub(super) enum AnyWire {
    Queues(Box<Queues>),
    Stream(Stream),
    Tap(Tap),
}

impl AnyWire {
    /// Shows the peer what was sent.
    pub(super) fn flush(&mut self) {
        match self {
            Self::Queues(queues) => queues.flush(),
            Self::Stream(stream) => stream.flush(),
            Self::Tap(_) => {}
        }
    }

    /// Prepares to sleep. `true`: there is a frame already.
    pub(super) fn arm(&mut self) -> bool {
        match self {
            Self::Queues(queues) => queues.link.arm(),
            Self::Stream(stream) => stream.has_frame(),
            Self::Tap(_) => false,
        }
    }

    /// The descriptor to sleep on, and the events of poll(2) to sleep for.
    pub(super) fn waits(&self) -> (BorrowedFd<'_>, i16) {
        match self {
            Self::Queues(queues) => (queues.events.call(), libc::POLLIN),
            Self::Stream(stream) => {
                let writes = if stream.unsent.is_empty() {
                    0
                } else {
                    libc::POLLOUT
                };
                (stream.socket.as_fd(), libc::POLLIN | writes)
            }
            Self::Tap(tap) => (tap.socket.as_fd(), libc::POLLIN),
        }
    }

    /// After a sleep.
    pub(super) fn woke(&self) {
        if let Self::Queues(queues) = self {
            sys::event::clear(queues.events.call());
        }
    }

    /// Whether the peer is gone.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Queues(queues) => queues.link.is_lost() || has_ended(queues.link.session()),
            Self::Stream(stream) => stream.is_over,
            Self::Tap(_) => false,
        }
    }
}

/// Whether the other end of a session has closed it: after the set-up it says nothing.
fn has_ended(session: BorrowedFd<'_>) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: one byte is written at most, and there is room for it.
    let got = unsafe { libc::recv(session.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    got >= 0 || io::Error::last_os_error().kind() != ErrorKind::WouldBlock
}

impl Wire for AnyWire {
    fn segments(&self) -> bool {
        match self {
            Self::Queues(queues) => queues.link.segments(),
            // They have long packets in place of segmentation.
            Self::Stream(_) | Self::Tap(_) => false,
        }
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        match self {
            Self::Queues(queues) => queues.link.receive(frame),
            Self::Stream(stream) => stream.receive(frame),
            Self::Tap(tap) => tap.receive(frame),
        }
    }

    fn has_room(&mut self) -> bool {
        match self {
            Self::Queues(queues) => queues.link.has_room(),
            Self::Stream(stream) => stream.has_room(),
            Self::Tap(_) => true,
        }
    }

    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> (R, NetHeader)) -> R {
        match self {
            Self::Queues(queues) => queues.link.transmit(len, fill),
            Self::Stream(stream) => stream.transmit(len, fill),
            Self::Tap(tap) => tap.transmit(len, fill),
        }
    }
}

/// A port of Lasthop.
pub(super) struct Queues {
    link: Link,
    events: Arc<Events>,
    socket: PathBuf,
    super_frames: bool,
}

impl Queues {
    pub(super) fn open(socket: PathBuf, super_frames: bool) -> Result<Self> {
        let events = Arc::new(Events::new()?);
        Ok(Self {
            link: Link::open(&socket, &events, super_frames)?,
            events,
            socket,
            super_frames,
        })
    }

    fn flush(&mut self) {
        self.link.flush();
    }

    /// Connects again to a switch that has been replaced.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.link = Link::open(&self.socket, &self.events, self.super_frames)?;
        Ok(())
    }
}

/// A stream of frames, each behind its length in network order.
pub(super) struct Stream {
    socket: UnixStream,
    /// Bytes that were read, of which the first are used up.
    read: Vec<u8>,
    used: usize,
    unsent: Vec<u8>,
    is_over: bool,
}

impl Stream {
    pub(super) fn new(socket: UnixStream) -> Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            read: Vec::with_capacity(STREAM),
            used: 0,
            unsent: Vec::with_capacity(STREAM),
            is_over: false,
        })
    }

    /// The length of the next frame, if all of it has been read.
    fn next_len(&self) -> Option<usize> {
        let bytes = &self.read[self.used..];
        let prefix: &[u8; PREFIX] = bytes.first_chunk()?;
        let len = u32::from_be_bytes(*prefix) as usize;
        (bytes.len() - PREFIX >= len).then_some(len)
    }

    fn has_frame(&self) -> bool {
        self.next_len().is_some()
    }

    /// Reads what there is. `false`: nothing.
    fn fill(&mut self) -> bool {
        self.read.drain(..self.used);
        self.used = 0;
        let before = self.read.len();
        self.read.resize(before + STREAM, 0);
        let got = self.socket.read(&mut self.read[before..]);
        let len = match got {
            Ok(0) => {
                self.is_over = true;
                0
            }
            Ok(len) => len,
            Err(error) => {
                self.is_over |= error.kind() != ErrorKind::WouldBlock;
                0
            }
        };
        self.read.truncate(before + len);
        len > 0
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let len = loop {
            match self.next_len() {
                Some(len) => break len,
                None if self.fill() => {}
                None => return None,
            }
        };
        let start = self.used + PREFIX;
        frame.clear();
        frame.extend_from_slice(&self.read[start..start + len]);
        self.used = start + len;
        Some(NetHeader::default())
    }

    fn has_room(&mut self) -> bool {
        if self.unsent.len() >= STREAM {
            self.flush();
        }
        self.unsent.len() < STREAM
    }

    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> (R, NetHeader)) -> R {
        let start = self.unsent.len() + PREFIX;
        self.unsent.extend_from_slice(&(len as u32).to_be_bytes());
        self.unsent.resize(start + len, 0);
        let frame = &mut self.unsent[start..];
        let (result, header) = fill(frame);
        complete(frame, &header);
        result
    }

    fn flush(&mut self) {
        while !self.unsent.is_empty() && !self.is_over {
            match self.socket.write(&self.unsent) {
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.is_over = true,
            }
        }
    }
}

/// Completes the checksum that the stack has left.
fn complete(frame: &mut [u8], header: &NetHeader) {
    if header.needs_csum() {
        let (start, offset) = (header.csum_start, header.csum_offset);
        // The stack's own headers are in the frame.
        let _ = complete_partial(frame, start, offset, Sum::new());
    }
}

/// A packet socket on a TAP interface, in whose place the kernel's own stack would be.
pub(super) struct Tap {
    socket: OwnedFd,
    frame: Vec<u8>,
}

fn set_option<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: the option's value is read, `len` bytes, and lives until the call returns.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), len) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Tap {
    /// On an interface of the calling thread's network namespace.
    pub(super) fn open(interface: &str) -> Result<Self> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is passed; the descriptor is new and ours.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, all.into());
            if fd < 0 {
                return Err(io::Error::last_os_error()).context("a packet socket");
            }
            OwnedFd::from_raw_fd(fd)
        };
        set_option(&socket, libc::SOL_PACKET, PACKET_VNET_HDR, &1_i32)?;
        set_option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1_i32)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &PACKETS)?;
        let name = std::ffi::CString::new(interface)?;
        // SAFETY: zero is a value of this C structure; name and address live through the calls.
        let bound = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = all;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
        };
        if bound != 0 {
            return Err(io::Error::last_os_error()).context("a packet socket on an interface");
        }
        Ok(Self {
            socket,
            frame: vec![0; PACKET_HEADER + LONGEST],
        })
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let room = &mut self.frame[..];
        let len = rustix::io::read(&self.socket, room).ok()?;
        let bytes = self.frame[..len].split_at_checked(PACKET_HEADER);
        let (head, bytes) = bytes?;
        let mut header = [0; LEN];
        header[..PACKET_HEADER].copy_from_slice(head);
        frame.clear();
        frame.extend_from_slice(bytes);
        Some(NetHeader::decode(&header))
    }

    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> (R, NetHeader)) -> R {
        let (head, rest) = self.frame.split_at_mut(PACKET_HEADER);
        let (result, header) = fill(&mut rest[..len]);
        head.copy_from_slice(&header.encode()[..PACKET_HEADER]);
        // What finds no room is lost, as on any wire.
        let _ = rustix::io::write(&self.socket, &self.frame[..PACKET_HEADER + len]);
        result
    }
}
