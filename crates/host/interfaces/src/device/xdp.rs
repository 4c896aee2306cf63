//! `AF_XDP` sockets on an interface that exists: one for each of its receive queues, all with one
//! umem, which is the memory that the driver shares with the switch ([`umem`](crate::umem)).
//!
//! All that needs rights is done here, by the supervisor: the memory, the sockets, the program that
//! redirects to them. Sockets and memory are new for each process, because the location of buffers
//! of a crashed one is unknown. The program stays attached meanwhile, and passes frames to the host
//! while there is no socket.

mod program;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use ipc::driving::{BackEnd, DeviceSpec, XdpStart};
use mapping::Mapping;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_UMEM_PGOFF_FILL_RING,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};

use super::interface::Control;
use super::namespace::in_namespace;
use super::packet::promiscuous;
use super::{Device, NotReadyError, OpenError, context};
use crate::prefilter::{QUEUES, XdpFilter};
use crate::umem::{COPY_HEADROOM, LONGEST, SHAPE};
use program::Map;
pub(super) use program::attach;

/// Bytes of the Ethernet header, and of a VLAN tag in it.
const ETHERNET: u32 = 14;
const TAG: u32 = 4;
/// Bytes of packets that may be on their way out of a socket: all buffers of a queue, as the system
/// counts them.
const BACKLOG: usize = 16 << 20;
/// The system takes a moment to let go of the queue of a socket that was closed.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// State of an interface while it is open.
#[derive(Debug)]
pub(super) struct Xdp {
    /// The interface's.
    namespace: OwnedFd,
    index: u32,
    pairs: u16,
    zero_copy: bool,
    unfinished: bool,
    map: Map,
    /// It redirects to the sockets of this map.
    program: OwnedFd,
    /// The attached program.
    link: OwnedFd,
    /// A packet socket without packets.
    promiscuous: OwnedFd,
    tags: Tags,
    /// For the next process.
    next: Option<Sockets>,
    /// Parameters of the last process.
    last_start: Option<XdpStart>,
    filter: Filter,
}

/// The program of a prefilter, in the place of the one that redirects only.
#[derive(Debug)]
enum Filter {
    None,
    /// Desired: its map lacks the sockets of the process.
    Waiting(XdpFilter),
    Attached(XdpFilter),
    /// By the supervisor before this one.
    HandedOver,
}

/// State of an open interface, for a supervisor that replaces another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct XdpParts<Fd> {
    /// The interface's network namespace.
    pub namespace: Fd,
    /// Its number there.
    pub index: u32,
    /// Its receive queues.
    pub pairs: u16,
    /// It reads and writes the shared memory itself.
    pub zero_copy: bool,
    /// Frames may lack their checksum.
    pub unfinished: bool,
    /// Sockets by receive queue, for the program.
    pub map: Fd,
    /// The program that redirects to them.
    pub program: Fd,
    /// The attached program, which goes with the last copy of this.
    pub link: Fd,
    /// The attached program is a prefilter's.
    pub filtered: bool,
    /// The socket that keeps the interface promiscuous.
    pub promiscuous: Fd,
    /// The socket for changes of its VLAN offload.
    pub tags: Fd,
    /// It took tags off before it was ours.
    pub took_tags_off: bool,
}

/// One process's.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) queues: Vec<OwnedFd>,
    pub(super) memory: OwnedFd,
}

/// Opens the interface, in zero-copy or else, if `copy` will do, without.
///
/// # Errors
/// Why it cannot be had this way.
pub(super) fn open(spec: &DeviceSpec, copy: bool) -> Result<Device, OpenError> {
    let name = &spec.interface;
    let what = || format!("interface {name}");
    let control = context(Control::new(), what)?;
    let index = context(control.index(name), what)? as u32;
    let pairs = fits(spec, &control)?;
    let unfinished = context(control.driver(name), what)?.as_deref() == Some("veth");
    let (sockets, zero_copy) = match sockets(index, pairs, true) {
        Err(_) if copy => (sockets(index, pairs, false), false),
        first => (first, true),
    };
    let sockets = sockets.map_err(|error| no_sockets(&error))?;
    check_rings(&sockets)?;
    let map = context(Map::new(pairs.into()), || "a map of sockets".to_owned())?;
    enlist(&map, &sockets)?;
    let tags = Tags::leave(name, context(Control::new(), what)?)?;
    let promiscuous = context(promiscuity(index), || "promiscuous mode".to_owned())?;
    let program = map.program().map_err(|error| refused(&error))?;
    let link = program::attach(&program, index).map_err(|error| refused(&error))?;
    let xdp = Xdp {
        namespace: context(own_namespace(), || "the network namespace".to_owned())?,
        index,
        pairs,
        zero_copy,
        unfinished,
        map,
        program,
        link,
        promiscuous,
        tags,
        next: Some(sockets),
        last_start: None,
        filter: Filter::None,
    };
    let device = Device::new(name, control, BackEnd::Xdp { zero_copy }, false, Vec::new());
    Ok(Device {
        xdp: Some(xdp),
        ..device
    })
}

/// Checks the preconditions; returns the number of receive queues.
fn fits(spec: &DeviceSpec, control: &Control) -> Result<u16, OpenError> {
    let name = &spec.interface;
    let what = || format!("interface {name}");
    if !context(control.is_ethernet(name), what)? {
        return Err(OpenError::new("it is not an Ethernet interface"));
    }
    let queues = context(control.receive_queues(name), what)?;
    // A queue without a thread of ours would give its frames to the host.
    let pairs = u16::try_from(queues)
        .ok()
        .filter(|pairs| *pairs <= spec.queues);
    let pairs = pairs.ok_or_else(|| {
        let have = spec.queues;
        OpenError::new(format!(
            "it has {queues} receive queues, the port queues = {have}"
        ))
    })?;
    let mtu = context(control.mtu(name), what)?;
    let most = LONGEST - ETHERNET - TAG;
    if mtu > most {
        return Err(OpenError::new(format!(
            "its MTU is {mtu}, more than {most}"
        )));
    }
    Ok(pairs)
}

/// Why there are no sockets, for people.
fn no_sockets(error: &io::Error) -> OpenError {
    OpenError::new(match error.raw_os_error() {
        Some(libc::EBUSY) => "the queue already has an AF_XDP socket of another process".to_owned(),
        Some(libc::EAFNOSUPPORT) => "the kernel has no AF_XDP sockets".to_owned(),
        Some(libc::EOPNOTSUPP) => "its kernel driver cannot do that".to_owned(),
        _ => format!("AF_XDP sockets: {error}"),
    })
}

/// Why a program is not attached, for people.
pub(super) fn refused(error: &io::Error) -> OpenError {
    OpenError::new(match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => "another XDP program is attached to it".to_owned(),
        Some(libc::EOPNOTSUPP) => "its kernel driver knows no XDP".to_owned(),
        Some(libc::ERANGE) => "its MTU is too large for XDP".to_owned(),
        _ => format!("attaching the XDP program: {error}"),
    })
}

/// Memory for a process and a bound socket for each queue.
fn sockets(index: u32, pairs: u16, zero_copy: bool) -> io::Result<Sockets> {
    let memory = sys::file::fixed(crate::MEMORY, SHAPE.size(pairs))?;
    let mapping = Mapping::shared(&memory, SHAPE.size(pairs), 0).map_err(io::Error::other)?;
    let mut queues: Vec<OwnedFd> = Vec::new();
    for queue in 0..pairs {
        let socket = socket()?;
        let first = queues.first();
        if first.is_none() {
            register(&socket, &mapping, zero_copy)?;
        }
        bind(&socket, index, queue, first, zero_copy)?;
        queues.push(socket);
    }
    // The system holds the pages; the mapping was only how to name them.
    Ok(Sockets { queues, memory })
}

/// Maps a ring of a bound socket, as the driver process will: some kernels (Linux 6.1) do that for
/// unbound ones only.
fn check_rings(sockets: &Sockets) -> Result<(), OpenError> {
    let Some(socket) = sockets.queues.first() else {
        return Ok(());
    };
    let (len, flags) = (4096, MapFlags::SHARED);
    let at = XDP_UMEM_PGOFF_FILL_RING;
    // SAFETY: a new mapping at an address of the system's choice aliases nothing of ours.
    let mapped = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ,
            flags,
            socket,
            at,
        )
    };
    let base = mapped.map_err(|error| {
        OpenError::new(match error {
            Errno::BUSY => "this kernel does not map the rings of a bound AF_XDP socket".to_owned(),
            _ => format!("the rings of an AF_XDP socket: {error}"),
        })
    })?;
    // SAFETY: it is the mapping that was just made, and nothing refers to it.
    context(unsafe { munmap(base, len) }, || "a ring".to_owned())
}

/// A socket with its four rings.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
    let entries = SHAPE.entries.into();
    sockopt::set_xdp_umem_fill_ring_size(&socket, entries)?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, entries)?;
    sockopt::set_xdp_rx_ring_size(&socket, entries)?;
    sockopt::set_xdp_tx_ring_size(&socket, entries)?;
    if sockopt::set_socket_send_buffer_size_force(&socket, BACKLOG).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, BACKLOG)?;
    }
    Ok(socket)
}

/// Makes the region the umem.
fn register(socket: &OwnedFd, region: &Mapping, zero_copy: bool) -> io::Result<()> {
    let umem = XdpUmemReg {
        addr: region.as_ptr() as u64,
        len: region.len() as u64,
        chunk_size: SHAPE.buffer,
        headroom: if zero_copy { 0 } else { COPY_HEADROOM },
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    Ok(sockopt::set_xdp_umem_reg(socket, umem)?)
}

/// Binds a socket to a queue; all but the first share the umem of the first, and how that was
/// bound.
fn bind(
    socket: &OwnedFd,
    index: u32,
    queue: u16,
    first: Option<&OwnedFd>,
    zero_copy: bool,
) -> io::Result<()> {
    use SocketAddrXdpFlags as Flags;
    let mode = if zero_copy {
        Flags::XDP_ZEROCOPY
    } else {
        Flags::XDP_COPY
    };
    let address = |flags| SocketAddrXdp::new(flags, index, queue.into());
    let try_once = || match first {
        Some(first) => {
            let shared = SocketAddrXdpWithSharedUmem {
                addr: address(Flags::XDP_SHARED_UMEM),
                shared_umem_fd: first.as_fd(),
            };
            rustix::net::bind(socket, &shared)
        }
        None => rustix::net::bind(socket, &address(mode | Flags::XDP_USE_NEED_WAKEUP)),
    };
    for _ in 0..TRIES {
        match try_once() {
            Err(Errno::BUSY) => thread::sleep(PAUSE),
            done => return Ok(done?),
        }
    }
    Ok(try_once()?)
}

/// Leads the frames of each queue to its socket.
fn enlist(map: &Map, sockets: &Sockets) -> Result<(), OpenError> {
    for (queue, socket) in (0..).zip(&sockets.queues) {
        let inserted = map.insert(queue, socket.as_fd());
        context(inserted, || format!("the socket of queue {queue}"))?;
    }
    Ok(())
}

fn promiscuity(index: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    // Without a protocol it receives nothing.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    promiscuous(&socket, index as i32)?;
    Ok(socket)
}

fn own_namespace() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(
        "/proc/thread-self/ns/net",
        flags,
        Mode::empty(),
    )?)
}

/// An interface that keeps VLAN tags in frames: stripped tags would be lost here. The setting is
/// restored when this is dropped.
#[derive(Debug)]
pub(super) struct Tags {
    interface: String,
    control: Control,
    taken_off: bool,
}

impl Tags {
    /// Has an interface leave tags in frames.
    ///
    /// # Errors
    /// It cannot.
    pub(super) fn leave(interface: &str, control: Control) -> Result<Self, OpenError> {
        let what = || format!("interface {interface}");
        let taken_off = context(control.takes_tags_off(interface), what)?;
        if taken_off {
            let refused = |_| OpenError::new("it does not leave VLAN tags in frames");
            let left = control.take_tags_off(interface, false);
            left.map_err(refused)?;
        }
        Ok(Self {
            interface: interface.to_owned(),
            control,
            taken_off,
        })
    }

    /// Returns those that a supervisor before this one had changed, or not.
    pub(super) fn of(interface: &str, control: Control, taken_off: bool) -> Self {
        Self {
            interface: interface.to_owned(),
            control,
            taken_off,
        }
    }

    /// Returns the socket for changes, and whether the interface took tags off.
    pub(super) fn parts(&self) -> (BorrowedFd<'_>, bool) {
        (self.control.as_fd(), self.taken_off)
    }
}

impl Drop for Tags {
    fn drop(&mut self) {
        if self.taken_off {
            // An interface that was removed has nothing to go back to.
            let _ = self.control.take_tags_off(&self.interface, true);
        }
    }
}

impl Xdp {
    /// Returns its parts except for sockets.
    pub(super) fn parts<'a, Fd>(
        &'a self,
        mut pass: impl FnMut(BorrowedFd<'a>) -> Fd,
    ) -> XdpParts<Fd> {
        let (tags, took_tags_off) = self.tags.parts();
        XdpParts {
            namespace: pass(self.namespace.as_fd()),
            index: self.index,
            pairs: self.pairs,
            zero_copy: self.zero_copy,
            unfinished: self.unfinished,
            map: pass(self.map.as_fd()),
            program: pass(self.program.as_fd()),
            link: pass(self.link.as_fd()),
            filtered: matches!(self.filter, Filter::Attached(_) | Filter::HandedOver),
            promiscuous: pass(self.promiscuous.as_fd()),
            tags: pass(tags),
            took_tags_off,
        }
    }

    /// Of the interface of this name that these are the parts of.
    pub(super) fn of<Fd, E>(
        interface: &str,
        parts: XdpParts<Fd>,
        mut take: impl FnMut(Fd) -> Result<OwnedFd, E>,
    ) -> Result<Self, E> {
        Ok(Self {
            namespace: take(parts.namespace)?,
            index: parts.index,
            pairs: parts.pairs,
            zero_copy: parts.zero_copy,
            unfinished: parts.unfinished,
            map: Map(take(parts.map)?),
            program: take(parts.program)?,
            link: take(parts.link)?,
            promiscuous: take(parts.promiscuous)?,
            tags: Tags::of(interface, Control(take(parts.tags)?), parts.took_tags_off),
            next: None,
            last_start: None,
            filter: match parts.filtered {
                true => Filter::HandedOver,
                false => Filter::None,
            },
        })
    }

    /// Sockets for a new process; those before must have been closed.
    ///
    /// # Errors
    /// The interface is gone, or has changed so that it cannot be used this way any more.
    pub(super) fn take(&mut self, name: &str, control: &Control) -> Result<Sockets, OpenError> {
        if let Some(sockets) = self.next.take() {
            return Ok(sockets);
        }
        let queues = context(control.receive_queues(name), || name.to_owned())?;
        if queues != u32::from(self.pairs) {
            return Err(OpenError::new(format!("{name} has {queues} queues now")));
        }
        let (index, pairs, zero_copy) = (self.index, self.pairs, self.zero_copy);
        let made = in_namespace(self.namespace.as_fd(), || {
            sockets(index, pairs, zero_copy).map_err(|error| no_sockets(&error))
        })?;
        enlist(&self.map, &made)?;
        self.attach_filter(&made)?;
        Ok(made)
    }

    /// Puts the program of a prefilter in place, or the other one again. The next process has it
    /// where its sockets are not here.
    ///
    /// # Errors
    /// The system's refusal, or too many queues.
    pub(super) fn set_filter(&mut self, filter: Option<&XdpFilter>) -> Result<(), OpenError> {
        let Some(filter) = filter else {
            return self.detach_filter();
        };
        if self.pairs > QUEUES {
            return Err(OpenError::new(format!(
                "it has {} receive queues, a prefilter at most {QUEUES}",
                self.pairs
            )));
        }
        let copy = context(filter.try_clone(), || "the XDP program".to_owned())?;
        if matches!(self.filter, Filter::HandedOver) {
            self.filter = Filter::Attached(copy);
            return Ok(());
        }
        self.filter = Filter::Waiting(copy);
        match self.next.take() {
            Some(next) => {
                let attached = self.attach_filter(&next);
                self.next = Some(next);
                attached
            }
            None => Ok(()),
        }
    }

    /// Leads frames to new sockets by the program of a prefilter, if it is desired.
    fn attach_filter(&mut self, sockets: &Sockets) -> Result<(), OpenError> {
        let (Filter::Waiting(filter) | Filter::Attached(filter)) = &self.filter else {
            return self.detach_filter();
        };
        let what = || "the XDP program".to_owned();
        let filter = context(filter.try_clone(), what)?;
        let map = context(filter.sockets.try_clone(), what)?;
        enlist(&Map(map), sockets)?;
        context(program::replace(&self.link, &filter.program), what)?;
        self.filter = Filter::Attached(filter);
        Ok(())
    }

    /// Leads frames to the sockets by the other program.
    fn detach_filter(&mut self) -> Result<(), OpenError> {
        if matches!(self.filter, Filter::None) {
            return Ok(());
        }
        self.filter = Filter::None;
        let restored = program::replace(&self.link, &self.program);
        context(restored, || "the XDP program".to_owned())
    }

    /// Returns whether the next process has a desired program, and not this one.
    pub(super) fn awaits_filter(&self) -> bool {
        matches!(self.filter, Filter::Waiting(_))
    }

    /// Returns the parameters for a new process.
    pub(super) fn start(&mut self, name: &str, control: &Control) -> Result<XdpStart, OpenError> {
        let mtu = context(control.mtu(name), || format!("interface {name}"))?;
        Ok(*self.last_start.insert(self.facts(mtu)))
    }

    fn facts(&self, mtu: u32) -> XdpStart {
        XdpStart {
            longest: mtu.saturating_add(ETHERNET + TAG).min(LONGEST),
            unfinished: self.unfinished,
        }
    }

    /// Returns whether the parameters have changed since the last process started.
    pub(super) fn has_changed(&self, name: &str, control: &Control) -> bool {
        // An interface that cannot be read is gone, which is detected elsewhere.
        let now = control.mtu(name).ok().map(|mtu| self.facts(mtu));
        self.last_start.is_some() && now.is_some() && now != self.last_start
    }

    /// Returns whether the interface is there and on.
    pub(super) fn check(&self, name: &str, control: &Control) -> Result<(), NotReadyError> {
        // There may be a new one of that name.
        if control.index(name).ok() != i32::try_from(self.index).ok() {
            return Err(NotReadyError::Gone);
        }
        match control.is_up(name) {
            Ok(true) => Ok(()),
            Ok(false) => Err(NotReadyError::Down(name.to_owned())),
            Err(_) => Err(NotReadyError::Gone),
        }
    }
}

#[cfg(test)]
mod tests;
