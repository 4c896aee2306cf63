//! One end of a pipe: two rings with slots that both ends map. A sync moves indices alone.
//!
//! The first end makes the memory and offers it to control, which passes it to the second. After
//! that the ends need no other process. When the connection to control breaks, an end dials again
//! and brings what it has.
//!
//! Each pipe has memory of its own, which alone the other end maps. A pipe of a port that this
//! process has open is in the memory of its ports instead: programs like `lb` swap buffers between
//! the two, and the other end maps all of it. If the pipe is there already, in another memory, the
//! end of a program that requests its ports' has rings of its own in there, and copies.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use pipes::{Offer, Register, Rings};
use rustix::event::PollFlags;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketType;

use crate::meeting::{self, MeetResult};
use crate::names::{End, Name};
use crate::port::{self, MARK_SESSION, Shape};
use crate::region::{Block, Geometry, LINES, OWN_MEMORY, Region};
use crate::ring::{Far, Places, Ring, Role};
use crate::view::lock;
use crate::{SAY, refuse};
use interpose::system::out_of_the_way;

/// Slots of a ring, unless the program requests others.
pub(crate) const DEFAULT_SLOTS: u16 = 2048;
/// Time for control's answer.
const ANSWER: Duration = Duration::from_secs(3);
const NO_MEMORY: &str = "the program has no memory with this number in which its rings could be";
/// Interval of attempts to find control again. Nothing depends on it but the next end to come.
const REDIAL: Duration = Duration::from_secs(1);

/// The parts that both ends share.
#[derive(Debug)]
struct SharedParts {
    region: Arc<Region>,
    offer: Offer,
    /// Signalled for the master, and for the slave.
    events: [OwnedFd; 2],
}

#[derive(Debug)]
struct Connection {
    socket: Option<OwnedFd>,
    retry: Instant,
    watchers: Vec<Weak<OwnedFd>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    name: Name,
    path: PathBuf,
    shared: SharedParts,
    send: Arc<Ring>,
    receive: Arc<Ring>,
    /// The memory with the program's slots, and the rooms of both rings there, if it is another
    /// than the pipe's.
    apart: Option<Apart>,
    connection: Mutex<Connection>,
    is_connected: AtomicBool,
}

/// Rings in a memory of the program's choice.
#[derive(Debug)]
struct Apart {
    region: Arc<Region>,
    slots: u16,
    blocks: [Block; 2],
}

/// Rooms for pipes beside the ports of this process. Another process may have mapped them, so they
/// are used again for the same pipe only.
static ROOMS: Mutex<BTreeMap<(String, u16), Rings>> = Mutex::new(BTreeMap::new());

/// Memories of the pipes of a process, which may have both ends of one.
#[derive(Debug, Default)]
struct Memories(Mutex<Vec<Weak<Region>>>);

/// Those of this process.
static MEMORIES: Memories = Memories(Mutex::new(Vec::new()));

impl Memories {
    /// Returns a number for a further memory.
    fn number() -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(OWN_MEMORY + 1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a memory.
    fn add(&self, region: Region) -> Arc<Region> {
        let region = Arc::new(region);
        let mut all = lock(&self.0);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&region));
        region
    }

    /// Returns the memory with this number, that of the ports included, if it has room for rings of
    /// ours.
    ///
    /// # Errors
    /// `EINVAL`: there is none. The system's refusal of memory for the ports.
    fn numbered(&self, mem_id: u16) -> Result<Arc<Region>, Errno> {
        if mem_id == OWN_MEMORY {
            return Region::own().cloned();
        }
        let all = lock(&self.0);
        let mut known = all.iter().filter_map(Weak::upgrade);
        let found = known.find(|region| region.mem_id == mem_id && region.is_ours());
        found.ok_or_else(|| refuse(Errno::INVAL, &format!("memory {mem_id}: {NO_MEMORY}")))
    }

    /// Returns the memory of a file that this process has mapped already.
    fn of(&self, file: BorrowedFd<'_>) -> Option<Arc<Region>> {
        let all = lock(&self.0);
        let mut known = all.iter().filter_map(Weak::upgrade);
        known.find(|region| region.is_file(file))
    }
}

fn parts(name: &Name) -> Result<(&str, u16, End), Errno> {
    match name {
        Name::Pipe { of, id, end } => Ok((of, *id, *end)),
        Name::Port(_) => Err(Errno::INVAL),
    }
}

impl PipeEnd {
    /// Meets the other end, or makes the pipe: in the memory of the port whose pipe it is, if this
    /// process has that open, else in a new one. The program's rings are in the memory with the
    /// number `mem_id`; 0: in the pipe's.
    ///
    /// # Errors
    /// `ENXIO`: there is no such pipe. `EBUSY`: another process has this end. `EINVAL`: there is no
    /// such memory. `ENOMEM`: there is no room, or there are no buffers.
    pub(crate) fn open(
        name: &Name,
        port: Option<&Arc<Region>>,
        mem_id: u16,
        shape: Shape,
    ) -> Result<Arc<Self>, Errno> {
        Self::open_at(name, &name.socket(), (port, &MEMORIES), mem_id, shape)
    }

    fn open_at(
        name: &Name,
        path: &Path,
        (port, memories): (Option<&Arc<Region>>, &Memories),
        mem_id: u16,
        shape: Shape,
    ) -> Result<Arc<Self>, Errno> {
        let (_, id, end) = parts(name)?;
        let refused = |error: io::Error| port::refusal(name, path, &error);
        let memory = match mem_id {
            0 => None,
            number => Some(memories.numbered(number)?),
        };
        let requested = shape.send_slots.max(shape.receive_slots);
        let chosen = port::slots(requested, DEFAULT_SLOTS);
        let register = register(id, end, 0, chosen);
        let until = Instant::now() + ANSWER;
        let dialled = port::dial(path, SocketType::SEQPACKET);
        let socket = dialled.map_err(|errno| refused(errno.into()))?;
        let mut made = None;
        let met = meeting::meet(socket.as_fd(), &register, until, |slots| {
            let slots = if slots == 0 { chosen } else { slots };
            let shared = made.insert(create((port, memories), name, slots)?);
            let [master, slave] = &shared.events;
            let file = shared.region.file();
            Ok((shared.offer, [file, master.as_fd(), slave.as_fd()]))
        });
        let (offer, fds) = match met.map_err(refused)? {
            MeetResult::Joined(offer, fds) => (offer, fds),
            MeetResult::Refused(reason) => {
                return Err(refuse(Errno::BUSY, &format!("{name}: {reason}")));
            }
        };
        let shared = join((port, memories), offer, fds).map_err(refused)?;
        let apart = memory.filter(|memory| !Arc::ptr_eq(memory, &shared.region));
        let apart = apart.map(|region| Apart::new(region, &shared, name));
        let apart = apart.transpose()?;
        let ring = |direction| ring(&shared, apart.as_ref(), end, direction).map(Arc::new);
        let (to_slave, to_master) = (ring(0)?, ring(1)?);
        let (send, receive) = match end {
            End::Master => (to_slave, to_master),
            End::Slave => (to_master, to_slave),
        };
        Ok(Arc::new(Self {
            name: name.clone(),
            path: path.to_owned(),
            shared,
            send,
            receive,
            apart,
            connection: Mutex::new(Connection {
                socket: Some(socket),
                retry: Instant::now(),
                watchers: Vec::new(),
            }),
            is_connected: AtomicBool::new(true),
        }))
    }

    /// The memory with the program's rings.
    pub(crate) fn region(&self) -> &Arc<Region> {
        let apart = self.apart.as_ref();
        apart.map_or(&self.shared.region, |apart| &apart.region)
    }

    /// The ring of a direction.
    pub(crate) fn ring(&self, sends: bool) -> &Arc<Ring> {
        if sends { &self.send } else { &self.receive }
    }

    /// Whether control is connected, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Adds the descriptors to the epoll instance of a device.
    pub(crate) fn watch<'a>(
        &self,
        epoll: &Arc<OwnedFd>,
        rings: impl Iterator<Item = &'a Arc<Ring>>,
    ) -> Result<(), Errno> {
        // Both rings have the same event.
        if let Some(ring) = rings.into_iter().next() {
            port::add_event(epoll, ring)?;
        }
        let mut connection = lock(&self.connection);
        connection
            .watchers
            .retain(|watcher| watcher.strong_count() > 0);
        connection.watchers.push(Arc::downgrade(epoll));
        if let Some(socket) = &connection.socket {
            watch_socket(epoll, socket)?;
        }
        Ok(())
    }

    /// Notes a lost connection to control, and dials again when it is time for that. Returns
    /// whether there is a connection; the pipe runs without.
    pub(crate) fn tend(&self) -> bool {
        let Ok(mut connection) = self.connection.try_lock() else {
            return true;
        };
        if let Some(socket) = &connection.socket {
            let ready = sys::wait::ready(socket, PollFlags::IN, Some(Instant::now()));
            if ready.is_ok_and(|flags| flags.is_empty()) {
                return true;
            }
            connection.socket = None;
            self.is_connected.store(false, Ordering::Relaxed);
        }
        if Instant::now() < connection.retry {
            return false;
        }
        connection.retry = Instant::now() + REDIAL;
        let Ok(socket) = self.dial_again() else {
            return false;
        };
        for epoll in connection.watchers.iter().filter_map(Weak::upgrade) {
            // A device without the socket in its set finds out by its next look.
            let _ = watch_socket(&epoll, &socket);
        }
        connection.socket = Some(socket);
        self.is_connected.store(true, Ordering::Relaxed);
        true
    }

    fn dial_again(&self) -> io::Result<OwnedFd> {
        let (_, id, end) = parts(&self.name)?;
        let SharedParts {
            region,
            offer,
            events,
        } = &self.shared;
        let register = register(id, end, offer.instance, offer.rings.slots);
        let socket = port::dial(&self.path, SocketType::SEQPACKET)?;
        let until = Instant::now() + ANSWER;
        let met = meeting::meet(socket.as_fd(), &register, until, |_| {
            let [master, slave] = events;
            Ok((*offer, [region.file(), master.as_fd(), slave.as_fd()]))
        });
        match met? {
            MeetResult::Joined(..) => Ok(socket),
            MeetResult::Refused(reason) => {
                SAY.once(&format!("{}: {reason}", self.name));
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }
}

impl Apart {
    fn new(region: Arc<Region>, shared: &SharedParts, name: &Name) -> Result<Self, Errno> {
        let slots = shared.offer.rings.slots;
        let (ours, theirs) = (&region.geometry, &shared.region.geometry);
        if ours.buffer_size != theirs.buffer_size {
            let why = format!(
                "{name}: its buffers have {} bytes, those of memory {} have {}",
                theirs.buffer_size, region.mem_id, ours.buffer_size
            );
            return Err(refuse(Errno::INVAL, &why));
        }
        let blocks = blocks(&region, slots, name)?;
        SAY.once(&format!(
            "{name}: the other end has made it, in another memory: frames are copied"
        ));
        Ok(Self {
            region,
            slots,
            blocks,
        })
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        give_back(&self.region, self.blocks, self.slots);
    }
}

fn register(id: u16, end: End, instance: u128, slots: u16) -> Register {
    Register {
        id,
        end: match end {
            End::Master => pipes::End::Master,
            End::Slave => pipes::End::Slave,
        },
        instance,
        slots,
        program: port::program(),
    }
}

fn watch_socket(epoll: &OwnedFd, socket: &OwnedFd) -> Result<(), Errno> {
    let mark = EventData::new_u64(MARK_SESSION);
    epoll::add(epoll, socket, mark, EventFlags::IN | EventFlags::RDHUP)
}

/// Makes a pipe in new memory; or in that of the port, where it takes the room that it had before.
fn create(
    (port, memories): (Option<&Arc<Region>>, &Memories),
    name: &Name,
    slots: u16,
) -> Result<SharedParts, Errno> {
    let (of, id, _) = parts(name)?;
    let (region, rings) = match port {
        Some(port) => {
            let mut rooms = lock(&ROOMS);
            let key = (of.to_owned(), id);
            let before = rooms.get(&key).filter(|rings| rings.slots == slots);
            let rings = before.map_or_else(|| rings_in(port, slots, name), |rings| Ok(*rings))?;
            rooms.insert(key, rings);
            (Arc::clone(port), rings)
        }
        None => {
            let region = Region::for_pipe(Memories::number())?;
            let rings = rings_in(&region, slots, name)?;
            (memories.add(region), rings)
        }
    };
    for block in rings.blocks {
        let lines = region.view.shared(block.lines, 2 * LINES);
        // SAFETY: both ends are gone, says control: nobody else uses the lines.
        unsafe { lines.write_bytes(0, 2 * LINES as usize) };
    }
    let event = || {
        let event = sys::event::create().map(out_of_the_way);
        event.map_err(|_| Errno::MFILE)
    };
    let mut instance = [0; 16];
    rustix::rand::getrandom(&mut instance, rustix::rand::GetRandomFlags::empty())?;
    Ok(SharedParts {
        region,
        offer: Offer {
            // Zero is none.
            instance: u128::from_le_bytes(instance) | 1,
            rings,
        },
        events: [event()?, event()?],
    })
}

/// Makes the rings of a pipe.
fn rings_in(region: &Region, slots: u16, name: &Name) -> Result<Rings, Errno> {
    Ok(Rings {
        slots,
        file_size: region.geometry.file_size,
        pool: region.geometry.pool,
        buffer_size: region.geometry.buffer_size,
        buffers: region.geometry.buffers,
        blocks: blocks(region, slots, name)?,
    })
}

/// Takes the rooms of two rings, with a buffer in each slot.
fn blocks(region: &Region, slots: u16, name: &Name) -> Result<[Block; 2], Errno> {
    region.need(name, 2 * usize::from(slots))?;
    let one = region.block(slots)?;
    let two = region
        .block(slots)
        .inspect_err(|_| region.give_block(one, slots))?;
    let filled = fill(region, one, slots).and_then(|()| fill(region, two, slots));
    filled.inspect_err(|_| give_back(region, [one, two], slots))?;
    Ok([one, two])
}

/// Returns the rooms of rings, and the buffers in their slots.
fn give_back(region: &Region, blocks: [Block; 2], slots: u16) {
    for block in blocks {
        let first = region.slots(block, slots);
        for index in 0..usize::from(slots) {
            // SAFETY: the block has as many slots; the program may write them meanwhile.
            let slot = unsafe { first.add(index).read_volatile() };
            region.give_buffer(slot.buf_idx);
        }
        region.give_block(block, slots);
    }
}

/// Puts buffers into the slots of a new block.
fn fill(own: &Region, block: Block, slots: u16) -> Result<(), Errno> {
    let buffers = own.take_buffers(usize::from(slots))?;
    let first = own.slots(block, slots);
    for (index, buf_idx) in buffers.into_iter().enumerate() {
        let slot = crate::abi::Slot {
            buf_idx,
            ..Default::default()
        };
        // SAFETY: the block has as many slots, and no other thread knows of it yet.
        unsafe { first.add(index).write(slot) };
    }
    Ok(())
}

/// Takes the memory of a pipe, which may be ours.
fn join(
    (port, memories): (Option<&Arc<Region>>, &Memories),
    offer: Offer,
    [file, master, slave]: [OwnedFd; 3],
) -> io::Result<SharedParts> {
    let rings = &offer.rings;
    let of_port = port.filter(|region| region.is_file(file.as_fd()));
    let known = of_port.cloned().or_else(|| memories.of(file.as_fd()));
    let region = match known {
        Some(region) => region,
        None => {
            let geometry = Geometry {
                file_size: rings.file_size,
                pool: rings.pool,
                buffer_size: rings.buffer_size,
                buffers: rings.buffers,
            };
            let file = out_of_the_way(file);
            memories.add(Region::of_other(file, geometry, Memories::number())?)
        }
    };
    let fits = |block: &Block| region.contains(*block, rings.slots);
    if !rings.blocks.iter().all(fits) {
        let text = "the other end's memory is not as it says";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let events = [master, slave].map(out_of_the_way);
    Ok(SharedParts {
        region,
        offer,
        events,
    })
}

/// The ring of a direction, 0: to the slave, as one end has it.
fn ring(
    shared: &SharedParts,
    apart: Option<&Apart>,
    end: End,
    direction: usize,
) -> Result<Ring, Errno> {
    let SharedParts { region, offer, .. } = shared;
    let (block, slots) = (offer.rings.blocks[direction], offer.rings.slots);
    let [producer, consumer] = region.lines(block);
    let sends = (end == End::Master) == (direction == 0);
    let (role, lines) = match sends {
        true => (Role::Produce, [producer, consumer]),
        false => (Role::Consume, [consumer, producer]),
    };
    let copy = |event: &OwnedFd| {
        let copy = event.try_clone().map(out_of_the_way);
        copy.map_err(|_| Errno::MFILE)
    };
    let [master, slave] = &shared.events;
    let (kick, call) = match end {
        End::Master => (slave, master),
        End::Slave => (master, slave),
    };
    let events = (copy(kick)?, copy(call)?);
    let places = match apart {
        None => Places::new(region, block, slots, lines)?,
        Some(apart) => Places {
            far: Some(Far {
                slots: region.slots(block, slots),
                region: Arc::clone(region),
            }),
            ..Places::new(&apart.region, apart.blocks[direction], slots, lines)?
        },
    };
    let mapped = apart.map_or(region, |apart| &apart.region);
    let ring = Ring::new(places, role, slots, events);
    port::describe(mapped, &ring, 0);
    Ok(ring)
}
