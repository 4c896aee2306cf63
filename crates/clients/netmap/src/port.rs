//! A port of the switch, as one process has it: its rings, and a vhost-user session.
//!
//! The rings outlive the session. A lost connection is dialled again from waits and syncs, and the
//! switch continues at the indices in memory: nothing is lost or sent twice by it.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use vhost_frontend::{Front, Queue};
use wire::virtio::features::Features;
use wire::virtio::vhost_user::ProtocolFeatures;

use crate::names::Name;
use crate::region::{Block, LINES, Region};
use crate::ring::{Places, Ring, Role};
use crate::view::lock;
use crate::{SAY, refuse};
use interpose::system::out_of_the_way;

/// Bounds of the number of slots of a ring.
pub(crate) const MIN_SLOTS: u16 = 64;
pub(crate) const MAX_SLOTS: u16 = 4096;
/// Their number where a switch does not say it.
const DEFAULT_SLOTS: u16 = 1024;
/// Ring pairs of a port at most.
pub(crate) const MAX_PAIRS: u16 = 16;
/// Slots of a host ring.
const HOST_SLOTS: u16 = 64;

/// Time for the set-up of all queues.
const SETUP: Duration = Duration::from_secs(3);
/// Time for the switch to stop the queues of a port that is closed.
const STOP: Duration = Duration::from_millis(500);
/// Time for the switch to notice that a port's client has left, and the interval of attempts.
const LEAVING: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(10);
/// Interval of attempts to connect again.
pub(crate) const REDIAL: Duration = Duration::from_millis(100);

/// First word of the set-up line: "LHSQ" in memory.
const MAGIC: u32 = 0x5153_484c;
/// Its version.
const VERSION: u16 = 1;
/// Offset of the set-up line from the line with our index.
const SETUP_LINE: usize = 64;

/// Marks of descriptors in the epoll instance of a device.
pub(crate) const MARK_CALL: u64 = 0;
/// The session's socket.
pub(crate) const MARK_SESSION: u64 = 1;
/// The switch has stopped a queue.
pub(crate) const MARK_ERROR: u64 = 2;

/// A ring and its room in the shared file.
#[derive(Debug)]
struct OwnedRing {
    ring: Arc<Ring>,
    block: Block,
}

#[derive(Debug)]
struct Session {
    front: Option<Front>,
    /// When to dial again.
    retry: Instant,
    /// Epoll instances that have the socket.
    watchers: Vec<Weak<OwnedFd>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Port {
    name: Name,
    path: PathBuf,
    region: Arc<Region>,
    /// Ring pair i has queues 2 i (to us) and 2 i + 1 (from us).
    receive: Vec<OwnedRing>,
    send: Vec<OwnedRing>,
    /// Host rings, for transmission and reception.
    host: Mutex<[Vec<OwnedRing>; 2]>,
    /// Bytes before each frame.
    header: AtomicU16,
    error: OwnedFd,
    is_connected: AtomicBool,
    session: Mutex<Session>,
}

/// Rings of a port as the switch has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferedShape {
    /// Ring pairs at most.
    pub(crate) pairs: u16,
    /// Slots, unless the program requests others.
    pub(crate) slots: u16,
}

/// Rings of a port as a program requests them; 0: the default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) pairs: u16,
    pub(crate) send_slots: u32,
    pub(crate) receive_slots: u32,
}

/// The number of slots that a program gets for what it requests: a power of two within bounds.
pub(crate) fn slots(requested: u32, default: u16) -> u16 {
    match u16::try_from(requested) {
        Ok(0) => default,
        Ok(slots) if slots < MAX_SLOTS => slots.max(MIN_SLOTS).next_power_of_two(),
        _ => MAX_SLOTS,
    }
}

fn features(pairs: u16, header: u16) -> Features {
    let mut features = Features::VERSION_1 | Features::NET_MRG_RXBUF;
    features.set(Features::NET_MQ, pairs > 1);
    if header > 0 {
        features |= Features::NET_CSUM
            | Features::NET_GUEST_CSUM
            | Features::NET_GUEST_TSO4
            | Features::NET_GUEST_TSO6
            | Features::NET_HOST_TSO4
            | Features::NET_HOST_TSO6;
    }
    features
}

/// Connects to a socket without waiting.
///
/// # Errors
/// The error of the system call.
pub(crate) fn dial(path: &Path, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(out_of_the_way(socket))
}

/// The error number that a program gets when a socket cannot be used, with a line that says why.
pub(crate) fn refusal(name: &Name, path: &Path, error: &io::Error) -> Errno {
    let path = path.display();
    let (errno, why) = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => (
            Errno::NXIO,
            format!("there is no such port ({path}: {error})"),
        ),
        io::ErrorKind::PermissionDenied => (Errno::ACCESS, format!("{path}: {error}")),
        _ if is_hang_up(error) => (
            Errno::BUSY,
            format!("another process has the port ({path})"),
        ),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            (Errno::BUSY, format!("the switch does not answer ({path})"))
        }
        _ => (Errno::IO, format!("{path}: {error}")),
    };
    refuse(errno, &format!("{name}: {why}"))
}

/// The name of this program, for the switch to show.
pub(crate) fn program() -> [u8; 16] {
    let mut program = [0; 16];
    let name = std::fs::read("/proc/self/comm").unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let len = name.len().min(15);
    program[..len].copy_from_slice(&name[..len]);
    program
}

impl OwnedRing {
    fn new(region: &Arc<Region>, role: Role, slots: u16, number: u16) -> Result<Self, Errno> {
        let block = region.block(slots)?;
        let made = Self::ring(region, block, role, slots, number);
        if made.is_err() {
            region.give_block(block, slots);
        }
        made.map(|ring| Self { ring, block })
    }

    fn ring(
        region: &Arc<Region>,
        block: Block,
        role: Role,
        slots: u16,
        number: u16,
    ) -> Result<Arc<Ring>, Errno> {
        let places = Places::new(region, block, slots, region.lines(block))?;
        let ring = Ring::new(places, role, slots, (new_event()?, new_event()?));
        fill(region, &ring)?;
        describe(region, &ring, number);
        Ok(Arc::new(ring))
    }

    /// Writes the set-up line, which the switch reads when the queue starts.
    fn set_up(&self, region: &Region, header: u16) {
        let mut line = [0; 64];
        line[..4].copy_from_slice(&MAGIC.to_le_bytes());
        line[4..6].copy_from_slice(&VERSION.to_le_bytes());
        line[6..8].copy_from_slice(&header.to_le_bytes());
        line[8..16].copy_from_slice(&region.geometry.pool.to_le_bytes());
        line[16..20].copy_from_slice(&region.geometry.buffer_size.to_le_bytes());
        line[20..24].copy_from_slice(&region.geometry.buffers.to_le_bytes());
        line[24..40].copy_from_slice(&program());
        let at = self.block.lines + SETUP_LINE as u64;
        let to = region.view.shared(at, line.len() as u64);
        // SAFETY: the line is ours to write, and the switch reads it when the queue starts, later.
        unsafe { std::ptr::copy_nonoverlapping(line.as_ptr(), to.as_ptr(), line.len()) };
    }

    fn queue<'a>(&'a self, error: &'a OwnedFd) -> Queue<'a> {
        Queue {
            size: self.ring.slots(),
            descriptors: self.block.slots,
            driver: self.block.lines,
            device: self.block.lines + LINES,
            kick: self.ring.kick(),
            call: self.ring.call(),
            error: Some(error.as_fd()),
        }
    }
}

fn new_event() -> Result<OwnedFd, Errno> {
    let event = sys::event::create().map(out_of_the_way);
    event.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))
}

/// Puts new buffers into all slots.
pub(crate) fn fill(region: &Region, ring: &Ring) -> Result<(), Errno> {
    let buffers = region.take_buffers(usize::from(ring.slots()))?;
    for (slot, buffer) in (0..).zip(buffers) {
        ring.set_buffer(slot, buffer);
    }
    Ok(())
}

/// Returns the buffers that lie in the slots.
pub(crate) fn empty(region: &Region, ring: &Ring) {
    for slot in 0..ring.slots() {
        region.give_buffer(ring.buffer_of(slot));
    }
}

/// Fills the fields of a ring's header that do not change.
pub(crate) fn describe(region: &Region, ring: &Ring, number: u16) {
    let buf_ofs = region.pool_in_view() as i64 - ring.offset() as i64;
    ring.describe(buf_ofs, region.geometry.buffer_size, number);
}

impl Port {
    /// Connects to a port, and sets its rings up in the process's memory.
    ///
    /// # Errors
    /// See [`refusal`]; `ENOMEM`: there is no room for the rings or their buffers.
    pub(crate) fn open(name: &Name, shape: Shape, header: u16) -> Result<Arc<Self>, Errno> {
        Self::open_at(name, &name.socket(), Region::own()?, shape, header)
    }

    fn open_at(
        name: &Name,
        path: &Path,
        region: &Arc<Region>,
        shape: Shape,
        header: u16,
    ) -> Result<Arc<Self>, Errno> {
        let refused = |error: io::Error| refusal(name, path, &error);
        let (mut front, offered) = greet_soon(path, header).map_err(refused)?;
        let most = offered.pairs;
        let pairs = if shape.pairs == 0 {
            most
        } else {
            shape.pairs.min(most)
        };
        let mut port = Self {
            name: name.clone(),
            path: path.to_owned(),
            region: Arc::clone(region),
            receive: Vec::new(),
            send: Vec::new(),
            host: Mutex::default(),
            header: AtomicU16::new(header),
            error: new_event()?,
            is_connected: AtomicBool::new(true),
            session: Mutex::new(Session {
                front: None,
                retry: Instant::now(),
                watchers: Vec::new(),
            }),
        };
        let receives = slots(shape.receive_slots, offered.slots);
        let sends = slots(shape.send_slots, offered.slots);
        let of_pair = usize::from(receives) + usize::from(sends);
        region.need(name, usize::from(pairs) * of_pair)?;
        // What was taken is returned when the port is dropped.
        for number in 0..pairs {
            let ring = OwnedRing::new(region, Role::Receive, receives, number)?;
            port.receive.push(ring);
            let ring = OwnedRing::new(region, Role::Send, sends, number)?;
            port.send.push(ring);
        }
        port.start(&mut front).map_err(refused)?;
        lock(&port.session).front = Some(front);
        Ok(Arc::new(port))
    }

    /// Hands memory and queues over.
    fn start(&self, front: &mut Front) -> io::Result<()> {
        let header = self.header.load(Ordering::Relaxed);
        front.renegotiate(features(self.pairs(), header))?;
        front.share(self.region.file(), self.region.geometry.file_size)?;
        self.start_queues(front)
    }

    fn start_queues(&self, front: &mut Front) -> io::Result<()> {
        let header = self.header.load(Ordering::Relaxed);
        for (pair, (receive, send)) in (0..).zip(self.receive.iter().zip(&self.send)) {
            for (index, own) in [(2 * pair, receive), (2 * pair + 1, send)] {
                own.set_up(&self.region, header);
                front.start(index, &own.queue(&self.error))?;
            }
        }
        front.settle()
    }

    /// Number of ring pairs.
    pub(crate) fn pairs(&self) -> u16 {
        self.receive.len() as u16
    }

    /// The memory.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Slots of a ring for transmission, and of one for reception.
    pub(crate) fn slots(&self) -> (u16, u16) {
        let slots = |rings: &[OwnedRing]| rings.first().map_or(0, |own| own.ring.slots());
        (slots(&self.send), slots(&self.receive))
    }

    /// All rings of a direction.
    pub(crate) fn rings(&self, sends: bool) -> impl Iterator<Item = &Arc<Ring>> {
        let rings = if sends { &self.send } else { &self.receive };
        rings.iter().map(|own| &own.ring)
    }

    /// So many host rings for transmission and reception. They are made when they are first asked
    /// for.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn host_rings(&self, counts: [usize; 2]) -> Result<[Vec<Arc<Ring>>; 2], Errno> {
        let mut host = lock(&self.host);
        let missing = |at: usize| counts[at].saturating_sub(host[at].len());
        let slots = (missing(0) + missing(1)) * usize::from(HOST_SLOTS);
        self.region.need(&self.name, slots)?;
        let mut rings = [Vec::new(), Vec::new()];
        let roles = [Role::Discard, Role::Silent];
        for (direction, (role, count)) in roles.into_iter().zip(counts).enumerate() {
            while host[direction].len() < count {
                let number = self.pairs() + host[direction].len() as u16;
                host[direction].push(OwnedRing::new(&self.region, role, HOST_SLOTS, number)?);
            }
            let made = host[direction][..count].iter();
            rings[direction] = made.map(|own| Arc::clone(&own.ring)).collect();
        }
        Ok(rings)
    }

    /// Bytes before each frame.
    pub(crate) fn header(&self) -> u16 {
        self.header.load(Ordering::Relaxed)
    }

    /// Changes the header: the queues are stopped, and started again.
    ///
    /// # Errors
    /// `EIO`: the switch refuses it.
    pub(crate) fn set_header(&self, header: u16) -> Result<(), Errno> {
        let mut session = lock(&self.session);
        if self.header.swap(header, Ordering::Relaxed) == header {
            return Ok(());
        }
        let Some(front) = &mut session.front else {
            // The next session has it.
            return Ok(());
        };
        let pairs = self.pairs();
        let until = Instant::now() + SETUP;
        let changed = (0..2 * pairs)
            .try_for_each(|index| front.stop(index, until))
            .and_then(|()| front.renegotiate(features(pairs, header)))
            .and_then(|()| self.start_queues(front));
        changed.map_err(|error| {
            let why = format!("{}: header of {header} bytes: {error}", self.name);
            refuse(Errno::IO, &why)
        })
    }

    /// Whether the switch is connected, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Adds call, error and session descriptors to the epoll instance of a device.
    pub(crate) fn watch<'a>(
        &self,
        epoll: &Arc<OwnedFd>,
        rings: impl Iterator<Item = &'a Arc<Ring>>,
    ) -> Result<(), Errno> {
        for ring in rings {
            add_event(epoll, ring)?;
        }
        let mark = EventData::new_u64(MARK_ERROR);
        epoll::add(&**epoll, &self.error, mark, EventFlags::IN | EventFlags::ET)?;
        let mut session = lock(&self.session);
        session
            .watchers
            .retain(|watcher| watcher.strong_count() > 0);
        session.watchers.push(Arc::downgrade(epoll));
        if let Some(front) = &session.front {
            watch_session(epoll, front)?;
        }
        Ok(())
    }

    /// The switch has stopped a queue.
    pub(crate) fn failed(&self) {
        sys::event::clear(&self.error);
        SAY.once(&format!(
            "{}: the switch has stopped its queues; `lasthop status` has the reason",
            self.name
        ));
        for ring in self.rings(true).chain(self.rings(false)) {
            ring.stop();
        }
    }

    /// Notes a lost connection and dials again, when it is time for that. Returns whether there is
    /// a connection.
    pub(crate) fn tend(&self) -> bool {
        let Ok(mut session) = self.session.try_lock() else {
            return true;
        };
        if let Some(front) = &session.front {
            // After the set-up the switch says nothing: it is gone.
            let now = Some(Instant::now());
            let is_silent =
                sys::wait::ready(front, PollFlags::IN, now).is_ok_and(|flags| flags.is_empty());
            if is_silent {
                return true;
            }
            session.front = None;
            self.is_connected.store(false, Ordering::Relaxed);
        }
        if Instant::now() < session.retry {
            return false;
        }
        match self.dial_again() {
            Ok(front) => {
                let epolls = session.watchers.iter().filter_map(Weak::upgrade);
                for epoll in epolls {
                    // A device without its session in the set finds out by its next look.
                    let _ = watch_session(&epoll, &front);
                }
                session.front = Some(front);
                self.is_connected.store(true, Ordering::Relaxed);
                true
            }
            Err(_) => {
                session.retry = Instant::now() + REDIAL;
                false
            }
        }
    }

    fn dial_again(&self) -> io::Result<Front> {
        let (mut front, offered) = greet(&self.path, self.pairs(), self.header())?;
        if offered.pairs < self.pairs() {
            return Err(io::Error::other("the port has fewer queues now"));
        }
        self.start(&mut front)?;
        Ok(front)
    }
}

/// Dials, and agrees on features; returns what the port has.
fn greet(path: &Path, pairs: u16, header: u16) -> io::Result<(Front, OfferedShape)> {
    let socket = dial(path, SocketType::STREAM)?;
    let mut front = Front::new(socket, Instant::now() + SETUP)?;
    let slots = ProtocolFeatures::SLOT_QUEUES;
    let answer = front.negotiate(features(pairs, header), slots, pairs)?;
    // The upper half is the number of slots: a part of this protocol feature.
    let pairs = u16::try_from((answer & 0xffff_ffff) / 2).unwrap_or(MAX_PAIRS);
    let slots = u32::try_from(answer >> 32).unwrap_or(0);
    let offered = OfferedShape {
        pairs: pairs.clamp(1, MAX_PAIRS),
        slots: self::slots(slots, DEFAULT_SLOTS),
    };
    Ok((front, offered))
}

/// Whether the switch has closed the connection: the port has one already.
fn is_hang_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Dials a port that its last client may have left a moment ago.
fn greet_soon(path: &Path, header: u16) -> io::Result<(Front, OfferedShape)> {
    let until = Instant::now() + LEAVING;
    loop {
        match greet(path, 1, header) {
            Err(error) if is_hang_up(&error) && Instant::now() < until => {
                std::thread::sleep(RETRY);
            }
            greeted => return greeted,
        }
    }
}

/// The rings of a port that is not open.
///
/// # Errors
/// See [`refusal`].
pub(crate) fn offered_by(name: &Name) -> Result<OfferedShape, Errno> {
    let path = name.socket();
    let greeted = greet(&path, 1, 0).map_err(|error| refusal(name, &path, &error));
    greeted.map(|(_, offered)| offered)
}

/// Adds a ring's call descriptor to an epoll instance. Each signal is an edge: nothing is read.
pub(crate) fn add_event(epoll: &OwnedFd, ring: &Ring) -> Result<(), Errno> {
    let mark = EventData::new_u64(MARK_CALL);
    epoll::add(epoll, ring.call(), mark, EventFlags::IN | EventFlags::ET)
}

fn watch_session(epoll: &OwnedFd, front: &Front) -> Result<(), Errno> {
    let mark = EventData::new_u64(MARK_SESSION);
    epoll::add(epoll, front, mark, EventFlags::IN | EventFlags::RDHUP)
}

impl Drop for Port {
    fn drop(&mut self) {
        // The switch must not use the rings any more. A process that shares the port with this one
        // keeps it.
        if let Some(mut front) = lock(&self.session).front.take()
            && !interpose::forks::happened()
        {
            let until = Instant::now() + STOP;
            let queues = 0..2 * self.pairs();
            // Without an answer there is no switch.
            let _ = queues
                .into_iter()
                .try_for_each(|index| front.stop(index, until));
        }
        let host = lock(&self.host);
        let host = host.iter().flatten();
        for own in self.send.iter().chain(&self.receive).chain(host) {
            empty(&self.region, &own.ring);
            self.region.give_block(own.block, own.ring.slots());
        }
    }
}
