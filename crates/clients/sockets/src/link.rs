//! A queue pair with buffers in memory of our own, and the vhost-user session that connects it to
//! the switch.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use interpose::system::out_of_the_way;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use vhost_frontend::queue::{Direction, Fault, Queue};
use vhost_frontend::region::Region;
use vhost_frontend::{Front, Queue as Description};
use wire::virtio::features::Features;
use wire::virtio::net::{LEN, NetHeader};
use wire::virtio::shape::Shape;
use wire::virtio::vhost_user::ProtocolFeatures;

use crate::SAY;
use crate::device::Wire;

/// Descriptor of the session with the switch, for a child of fork(2) to close; -1 without one.
static SESSION: AtomicI32 = AtomicI32::new(-1);

/// Time for the set-up of the queues.
const SETUP: Duration = Duration::from_secs(3);
/// Time until the switch notices that a port's client has left, and the interval of attempts.
const LEAVING: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(10);
/// Bytes of a buffer.
const BUFFER: u32 = Shape::LONG.buffer;
/// Buffers of a queue.
const ENTRIES: u16 = Shape::LONG.entries;
/// Taken buffers that the switch gets back at once: a stack that handles many frames in one turn
/// must not leave it without.
const RETURN: u16 = ENTRIES / 4;

const FEATURES: Features = Features::VERSION_1
    .union(Features::RING_EVENT_IDX)
    .union(Features::NET_CSUM)
    .union(Features::NET_GUEST_CSUM);
/// Super-frames in both directions.
const SUPER_FRAMES: Features = Features::NET_GUEST_TSO4
    .union(Features::NET_GUEST_TSO6)
    .union(Features::NET_HOST_TSO4)
    .union(Features::NET_HOST_TSO6);

/// Notes the session's descriptor.
pub(crate) fn note_session(fd: RawFd) {
    SESSION.store(fd, Ordering::Relaxed);
}

/// Returns the session's descriptor, once. It only uses an atomic: a child of fork(2) calls it.
pub(crate) fn forget_session() -> Option<RawFd> {
    let fd = SESSION.swap(-1, Ordering::Relaxed);
    (fd >= 0).then_some(fd)
}

/// The event descriptors of a link. They outlive it, because threads sleep on them.
#[derive(Debug)]
pub struct Events {
    /// We signal these: buffers for frames to us, and frames from us.
    kicks: [OwnedFd; 2],
    /// The switch signals it.
    call: OwnedFd,
}

impl Events {
    /// New ones, for one link after another.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn new() -> io::Result<Self> {
        let event = || sys::event::create().map(out_of_the_way);
        Ok(Self {
            kicks: [event()?, event()?],
            call: event()?,
        })
    }

    /// The descriptor to sleep on.
    #[must_use]
    pub fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}

/// A queue pair in memory of this process, and the session with the switch that uses it.
#[derive(Debug)]
pub struct Link {
    front: Front,
    events: Arc<Events>,
    /// Frames to us; all buffers are the switch's, but for the one that is copied.
    to_us: Queue,
    from_us: Queue,
    /// Buffers of `from_us` that are here.
    free: Vec<u16>,
    /// The switch cuts super-frames.
    segments: bool,
    /// The session is gone, or the switch broke a rule: nothing moves any more.
    is_lost: bool,
}

/// Connects to a port, although its last client may have left a moment ago.
fn dial(path: &Path, features: Features) -> io::Result<Front> {
    let until = Instant::now() + LEAVING;
    loop {
        match greet(path, features) {
            Err(error) if is_hang_up(&error) && Instant::now() < until => {
                std::thread::sleep(RETRY);
            }
            greeted => return greeted,
        }
    }
}

fn greet(path: &Path, features: Features) -> io::Result<Front> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::STREAM;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut front = Front::new(out_of_the_way(socket), Instant::now() + SETUP)?;
    front.negotiate(features, ProtocolFeatures::empty(), 1)?;
    Ok(front)
}

/// Whether the switch has closed the connection: the port has one already.
pub(crate) fn is_hang_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Shows the switch the buffers of a queue, and wakes it if it sleeps.
fn publish(queue: &mut Queue, kick: &OwnedFd) -> io::Result<()> {
    if queue.publish() {
        sys::event::ring(kick)?;
    }
    Ok(())
}

impl Link {
    /// Connects to a port, with super-frames in both directions or without.
    ///
    /// # Errors
    /// The system's refusal, or the switch's.
    pub fn open(path: &Path, events: &Arc<Events>, super_frames: bool) -> io::Result<Self> {
        let features = match super_frames {
            true => FEATURES.union(SUPER_FRAMES),
            false => FEATURES,
        };
        let mut front = dial(path, features)?;
        let file = vhost_frontend::region::file("lasthop-sockets", Shape::LONG, 1)?;
        let region = Arc::new(Region::over(out_of_the_way(file), Shape::LONG, 1)?);
        let mut link = Self {
            events: Arc::clone(events),
            to_us: Queue::new(Arc::clone(&region), 0, Direction::Inbound),
            from_us: Queue::new(Arc::clone(&region), 1, Direction::Outbound),
            free: (0..ENTRIES).rev().collect(),
            segments: super_frames,
            is_lost: false,
            front: {
                front.share(region.file(), region.size())?;
                front
            },
        };
        for id in 0..ENTRIES {
            link.to_us.submit(id, 0, BUFFER);
        }
        link.to_us.publish();
        link.from_us.disarm();
        link.start()?;
        Ok(link)
    }

    fn start(&mut self) -> io::Result<()> {
        let queues = [&self.to_us, &self.from_us];
        for ((index, queue), kick) in (0..).zip(queues).zip(&self.events.kicks) {
            let place = queue.place();
            self.front.start(
                index,
                &Description {
                    size: place.shape.entries,
                    descriptors: place.descriptors,
                    driver: place.available,
                    device: place.used,
                    kick: kick.as_fd(),
                    call: self.events.call(),
                    error: None,
                },
            )?;
        }
        self.front.settle()
    }

    /// The session's socket. It has something to read when the switch is gone.
    #[must_use]
    pub fn session(&self) -> BorrowedFd<'_> {
        self.front.as_fd()
    }

    /// Whether nothing moves any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Nothing moves any more.
    pub(crate) fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Shows the switch what was sent and taken, and wakes it if it sleeps.
    pub fn flush(&mut self) {
        if self.is_lost {
            return;
        }
        for (queue, kick) in [&mut self.to_us, &mut self.from_us]
            .into_iter()
            .zip(&self.events.kicks)
        {
            self.is_lost |= publish(queue, kick).is_err();
        }
    }

    /// Requests a call for the next frame; without room, for room, because no frame is taken
    /// without. `true`: it is there already.
    pub fn arm(&mut self) -> bool {
        let has_room = self.has_room();
        if self.is_lost {
            return false;
        }
        let armed = match has_room {
            true => self.to_us.arm(),
            false => self.from_us.arm(),
        };
        armed.unwrap_or_else(|fault| {
            self.fail(fault);
            false
        })
    }

    #[cold]
    fn fail(&mut self, fault: Fault) {
        SAY.once(&format!("the switch {fault}"));
        self.is_lost = true;
    }

    /// Takes buffers back that the switch has sent.
    fn take_back(&mut self) {
        loop {
            match self.from_us.take() {
                Ok(Some(used)) => self.free.push(used.id),
                Ok(None) => return,
                Err(fault) => return self.fail(fault),
            }
        }
    }
}

impl Wire for Link {
    fn segments(&self) -> bool {
        self.segments
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        frame.clear();
        while !self.is_lost {
            let used = match self.to_us.take() {
                Ok(used) => used?,
                Err(fault) => {
                    self.fail(fault);
                    return None;
                }
            };
            let len = used.len as usize;
            let buffer = self.to_us.buffer(used.id).cast_const();
            let mut header = [0; LEN];
            if len > LEN {
                frame.reserve(len - LEN);
                // SAFETY: the buffer has at least `len` bytes, which the queue has checked, and
                // there is room for them. The switch may write them meanwhile: they are copied
                // once, and any bytes are a frame.
                unsafe {
                    std::ptr::copy_nonoverlapping(buffer, header.as_mut_ptr(), LEN);
                    let from = buffer.add(LEN);
                    std::ptr::copy_nonoverlapping(from, frame.as_mut_ptr(), len - LEN);
                    frame.set_len(len - LEN);
                }
            }
            self.to_us.submit(used.id, 0, BUFFER);
            if self.to_us.unpublished() >= RETURN {
                self.is_lost |= publish(&mut self.to_us, &self.events.kicks[0]).is_err();
            }
            if len > LEN {
                return Some(NetHeader::decode(&header));
            }
        }
        None
    }

    fn has_room(&mut self) -> bool {
        if self.free.is_empty() {
            self.take_back();
        }
        !self.is_lost && !self.free.is_empty()
    }

    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> (R, NetHeader)) -> R {
        let room = BUFFER as usize - LEN;
        let id = if len <= room { self.free.pop() } else { None };
        let Some(id) = id else {
            return fill(&mut vec![0; len]).0;
        };
        let buffer = self.from_us.buffer(id);
        // SAFETY: the buffer has room for header and frame, and is ours until it is submitted. The
        // switch reads such a buffer only; one that writes it all the same changes what it gets,
        // and nothing here depends on these bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, LEN + len) };
        let (head, frame) = bytes.split_at_mut(LEN);
        let (result, header) = fill(frame);
        head.copy_from_slice(&header.encode());
        self.from_us.submit(id, 0, (LEN + len) as u32);
        result
    }
}
