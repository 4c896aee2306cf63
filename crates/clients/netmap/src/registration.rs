//! A registered port or pipe: the rings that a descriptor is bound to.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::addr_of_mut;
use std::sync::{Arc, Mutex, Weak};

use rustix::io::Errno;

use crate::abi::{self, Interface, flags, mode};
use crate::names::{End, Name};
use crate::pipe::PipeEnd;
use crate::port::{MAX_PAIRS, Port, Shape};
use crate::refuse;
use crate::region::Region;
use crate::ring::Ring;
use crate::view::lock;

/// Where the rings of a descriptor come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Port(Arc<Port>),
    Pipe(Arc<PipeEnd>),
    /// Memory without a port.
    Null,
}

/// Ports and pipes that this process has open.
#[derive(Debug, Default)]
struct Sources {
    ports: BTreeMap<String, Weak<Port>>,
    pipes: BTreeMap<Name, Weak<PipeEnd>>,
    /// Headers that were set for ports.
    headers: BTreeMap<String, u16>,
    claims: Vec<Claim>,
    next_claim: u64,
}

/// Rings that a descriptor is bound to.
#[derive(Debug)]
struct Claim {
    id: u64,
    name: Name,
    rings: [Range<usize>; 2],
    is_exclusive: bool,
}

static SOURCES: Mutex<Sources> = Mutex::new(Sources {
    ports: BTreeMap::new(),
    pipes: BTreeMap::new(),
    headers: BTreeMap::new(),
    claims: Vec::new(),
    next_claim: 0,
});

/// A registered port or pipe, see the module.
#[derive(Debug)]
pub(crate) struct Registration {
    source: Source,
    region: Arc<Region>,
    send: Vec<Arc<Ring>>,
    receive: Vec<Arc<Ring>>,
    /// Offset of the interface in the view, and its bytes.
    interface: (u64, u64),
    claim: u64,
    /// Each wait sends what was queued.
    sends_always: bool,
    /// Each wait looks for what has arrived.
    receives_always: bool,
}

/// All rings of a source, host rings last.
struct Rings {
    send: Vec<Arc<Ring>>,
    receive: Vec<Arc<Ring>>,
    /// How many of each are no host rings.
    own: [usize; 2],
}

impl Rings {
    /// How many host rings of each a program sees: one, also where none is there.
    fn host(&self) -> [usize; 2] {
        let all = [self.send.len(), self.receive.len()];
        [0, 1].map(|at| (all[at] - self.own[at]).max(1))
    }
}

impl Source {
    fn region(&self) -> Result<Arc<Region>, Errno> {
        match self {
            Self::Port(port) => Ok(Arc::clone(port.region())),
            Self::Pipe(pipe) => Ok(Arc::clone(pipe.region())),
            Self::Null => Region::own().cloned(),
        }
    }

    fn rings(&self, host: [usize; 2]) -> Result<Rings, Errno> {
        let mut rings = match self {
            Self::Port(port) => Rings {
                send: port.rings(true).cloned().collect(),
                receive: port.rings(false).cloned().collect(),
                own: [usize::from(port.pairs()); 2],
            },
            Self::Pipe(pipe) => Rings {
                send: vec![Arc::clone(pipe.ring(true))],
                receive: vec![Arc::clone(pipe.ring(false))],
                own: [1; 2],
            },
            Self::Null => Rings {
                send: Vec::new(),
                receive: Vec::new(),
                own: [0; 2],
            },
        };
        if let Self::Port(port) = self {
            let [send, receive] = port.host_rings(host)?;
            rings.send.extend(send);
            rings.receive.extend(receive);
        }
        Ok(rings)
    }

    /// Slots of rings for transmission and reception.
    pub(crate) fn slots(&self) -> (u16, u16) {
        match self {
            Self::Port(port) => port.slots(),
            Self::Pipe(pipe) => (pipe.ring(true).slots(), pipe.ring(false).slots()),
            Self::Null => (0, 0),
        }
    }
}

/// The port or pipe of a registration: the one that this process has open, or a new one.
fn source(name: &Name, request: &abi::Register) -> Result<Source, Errno> {
    let mut sources = lock(&SOURCES);
    let shape = Shape {
        pairs: request.tx_rings.max(request.rx_rings),
        send_slots: request.tx_slots,
        receive_slots: request.rx_slots,
    };
    match name {
        Name::Port(port) => {
            if let Some(open) = sources.ports.get(port).and_then(Weak::upgrade) {
                return Ok(Source::Port(open));
            }
            let header = sources.headers.get(port).copied().unwrap_or(0);
            let open = Port::open(name, shape, header)?;
            sources.ports.insert(port.clone(), Arc::downgrade(&open));
            Ok(Source::Port(open))
        }
        Name::Pipe { of, .. } => {
            if let Some(open) = sources.pipes.get(name).and_then(Weak::upgrade) {
                return Ok(Source::Pipe(open));
            }
            let port = sources.ports.get(of).and_then(Weak::upgrade);
            let port = port.as_ref().map(|port| port.region());
            let open = PipeEnd::open(name, port, request.mem_id, shape)?;
            sources.pipes.insert(name.clone(), Arc::downgrade(&open));
            Ok(Source::Pipe(open))
        }
    }
}

/// An open port of this process.
pub(crate) fn open_port(name: &str) -> Option<Arc<Port>> {
    lock(&SOURCES).ports.get(name).and_then(Weak::upgrade)
}

/// An open end of a pipe of this process.
pub(crate) fn open_pipe(name: &Name) -> Option<Arc<PipeEnd>> {
    lock(&SOURCES).pipes.get(name).and_then(Weak::upgrade)
}

/// Bytes before each frame of a port.
pub(crate) fn header_of(name: &str) -> u16 {
    let set = lock(&SOURCES).headers.get(name).copied();
    set.unwrap_or(0)
}

/// Sets the bytes before each frame of a port, of one that is not open, too.
///
/// # Errors
/// See [`Port::set_header`].
pub(crate) fn set_header(name: &str, header: u16) -> Result<(), Errno> {
    if let Some(port) = open_port(name) {
        port.set_header(header)?;
    }
    lock(&SOURCES).headers.insert(name.to_owned(), header);
    Ok(())
}

/// The rings that a mode means, for transmission and reception. `None`: they are not there.
fn ranges(request: &abi::Register, rings: &Rings) -> Option<[Range<usize>; 2]> {
    let all = [rings.send.len(), rings.receive.len()];
    let mut ranges = [0..0, 0..0];
    for (at, range) in ranges.iter_mut().enumerate() {
        let (own, all) = (rings.own[at], all[at]);
        let one = usize::from(request.ringid);
        *range = match request.mode {
            mode::ALL_NIC | mode::NULL => 0..own,
            mode::NIC_SW => 0..all,
            mode::SW => own..all,
            mode::ONE_NIC if one < own => one..one + 1,
            mode::ONE_SW if one < all - own => own + one..own + one + 1,
            _ => return None,
        };
    }
    if request.flags & flags::RX_RINGS_ONLY != 0 {
        ranges[0] = 0..0;
    }
    if request.flags & flags::TX_RINGS_ONLY != 0 {
        ranges[1] = 0..0;
    }
    Some(ranges)
}

fn claim(name: &Name, rings: &[Range<usize>; 2], is_exclusive: bool) -> Result<u64, Errno> {
    let mut sources = lock(&SOURCES);
    let overlap =
        |one: &Range<usize>, other: &Range<usize>| one.start < other.end && other.start < one.end;
    let is_refused = sources.claims.iter().any(|claim| {
        claim.name == *name
            && (is_exclusive || claim.is_exclusive)
            && (overlap(&claim.rings[0], &rings[0]) || overlap(&claim.rings[1], &rings[1]))
    });
    if is_refused {
        let why = format!("{name}: another descriptor of this program has these rings");
        return Err(refuse(Errno::BUSY, &why));
    }
    let id = sources.next_claim;
    sources.next_claim += 1;
    sources.claims.push(Claim {
        id,
        name: name.clone(),
        rings: rings.clone(),
        is_exclusive,
    });
    Ok(id)
}

impl Registration {
    /// Registers what a request says, and fills its answers in.
    ///
    /// # Errors
    /// Those of netmap, see `docs/user/netmap.md`.
    pub(crate) fn register(
        name: &Name,
        request: &mut abi::Register,
        epoll: &Arc<OwnedFd>,
    ) -> Result<Self, Errno> {
        let with_host = matches!(request.mode, mode::SW | mode::NIC_SW | mode::ONE_SW);
        let is_pipe = matches!(name, Name::Pipe { .. });
        let refused = |errno, why: &str| refuse(errno, &format!("{name}: {why}"));
        if is_pipe && !matches!(request.mode, mode::ALL_NIC | mode::ONE_NIC) {
            return Err(refused(
                Errno::INVAL,
                "a pipe has one ring pair, and no host rings",
            ));
        }
        let source = match request.mode {
            mode::NULL => Source::Null,
            _ => source(name, request)?,
        };
        let region = source.region()?;
        if request.mem_id != 0 && request.mem_id != region.mem_id {
            let why = format!("it is in memory {}, not {}", region.mem_id, request.mem_id);
            return Err(refused(Errno::INVAL, &why));
        }
        if let Source::Port(port) = &source
            && port.header() > 0
            && request.flags & flags::ACCEPT_VNET_HDR == 0
        {
            let why = "its frames have a header, and the program does not accept one";
            return Err(refused(Errno::IO, why));
        }
        let host = [request.host_tx_rings, request.host_rx_rings];
        let host = host.map(|count| usize::from(count.clamp(1, MAX_PAIRS)));
        let rings = source.rings(if with_host { host } else { [0; 2] })?;
        let ranges = ranges(request, &rings).ok_or_else(|| {
            let (mode, ring, [send, receive]) = (request.mode, request.ringid, rings.own);
            let why = format!(
                "no ring {ring} in mode {mode}: it has {send} to send, {receive} to receive"
            );
            refused(Errno::INVAL, &why)
        })?;
        let is_exclusive = request.flags & flags::EXCLUSIVE != 0;
        let claim = claim(name, &ranges, is_exclusive)?;
        // From here on what was taken is returned when the value is dropped.
        let mut registration = Self {
            send: rings.send[ranges[0].clone()].to_vec(),
            receive: rings.receive[ranges[1].clone()].to_vec(),
            source,
            region,
            interface: (0, 0),
            claim,
            sends_always: request.flags & flags::NO_TX_POLL == 0,
            receives_always: request.flags & flags::DO_RX_POLL != 0,
        };
        registration.make_interface(name, &rings)?;
        registration.take_extra(request);
        registration.watch(epoll)?;
        registration.answer(request, rings.host());
        Ok(registration)
    }

    fn make_interface(&mut self, name: &Name, rings: &Rings) -> Result<(), Errno> {
        // As in netmap, there is room for host rings even where there are none.
        let own = rings.own;
        let host = rings.host();
        let entries = own.iter().chain(&host).sum::<usize>() as u64;
        let len = size_of::<Interface>() as u64 + 8 * entries;
        let offset = self.region.take_private(len)?;
        self.interface = (offset, len);
        let at = self.region.view.pointer(offset, len);
        let ring_at = |rings: &[Arc<Ring>], bound: &[Arc<Ring>], index: usize| {
            let ring = rings.get(index)?;
            let is_bound = bound.iter().any(|other| Arc::ptr_eq(other, ring));
            is_bound.then(|| ring.offset() as i64 - offset as i64)
        };
        let mut name_field = [0; 16];
        let text = name.to_string();
        let text = &text.as_bytes()[..text.len().min(15)];
        name_field[..text.len()].copy_from_slice(text);
        let interface = at.cast::<Interface>().as_ptr();
        // SAFETY: the bytes are in our mapping, were taken for this interface, and no program knows
        // of them yet.
        unsafe {
            at.write_bytes(0, len as usize);
            addr_of_mut!((*interface).ni_name).write(name_field);
            addr_of_mut!((*interface).ni_version).write(u32::from(abi::API));
            addr_of_mut!((*interface).ni_tx_rings).write(own[0] as u32);
            addr_of_mut!((*interface).ni_rx_rings).write(own[1] as u32);
            addr_of_mut!((*interface).ni_host_tx_rings).write(host[0] as u32);
            addr_of_mut!((*interface).ni_host_rx_rings).write(host[1] as u32);
            let offsets = interface.add(1).cast::<i64>();
            for index in 0..own[0] + host[0] {
                let value = ring_at(&rings.send, &self.send, index).unwrap_or(0);
                offsets.add(index).write(value);
            }
            for index in 0..own[1] + host[1] {
                let value = ring_at(&rings.receive, &self.receive, index).unwrap_or(0);
                offsets.add(own[0] + host[0] + index).write(value);
            }
        }
        Ok(())
    }

    /// Address of the first extra buffer's number.
    fn extra(&self) -> *mut u32 {
        let (offset, len) = self.interface;
        let interface = self.region.view.pointer(offset, len).cast::<Interface>();
        // SAFETY: the field lies in the interface, and that is mapped.
        unsafe { addr_of_mut!((*interface.as_ptr()).ni_bufs_head) }
    }

    /// Links as many extra buffers as are requested, or as there are.
    fn take_extra(&self, request: &mut abi::Register) {
        let (mut head, mut count) = (0, 0);
        while count < request.extra_bufs {
            let Some(index) = self.region.take_buffer() else {
                break;
            };
            if let Some(buffer) = self.region.buffer(index) {
                // SAFETY: the buffer was taken, and has room for a number; it is aligned.
                unsafe { buffer.cast::<u32>().as_ptr().write_volatile(head) };
                head = index;
            }
            count += 1;
        }
        request.extra_bufs = count;
        // SAFETY: see `extra`.
        unsafe { self.extra().write_volatile(head) };
    }

    /// Returns the buffers of the program's list, wherever it leads.
    fn give_extra(&self) {
        // SAFETY: see `extra`.
        let mut index = unsafe { self.extra().read_volatile() };
        while let Some(buffer) = self.region.buffer(index) {
            // SAFETY: the buffer is mapped; the program may write it meanwhile.
            let next = unsafe { buffer.cast::<u32>().as_ptr().read_volatile() };
            // A buffer that is free already ends a list that goes in circles.
            if !self.region.give_buffer(index) {
                break;
            }
            index = next;
        }
    }

    fn watch(&self, epoll: &Arc<OwnedFd>) -> Result<(), Errno> {
        let rings = self.send.iter().chain(&self.receive);
        match &self.source {
            Source::Port(port) => port.watch(epoll, rings),
            Source::Pipe(pipe) => pipe.watch(epoll, rings),
            Source::Null => Ok(()),
        }
    }

    fn answer(&self, request: &mut abi::Register, host: [usize; 2]) {
        request.offset = self.interface.0;
        request.memsize = self.region.view.size();
        request.mem_id = self.region.mem_id;
        let [send, receive] = host.map(|count| count as u16);
        (request.host_tx_rings, request.host_rx_rings) = (send, receive);
        let pairs = match &self.source {
            Source::Port(port) => port.pairs(),
            Source::Pipe(_) => 1,
            // As in netmap, the request's numbers are the answer's.
            Source::Null => return,
        };
        let (send, receive) = self.source.slots();
        (request.tx_rings, request.rx_rings) = (pairs, pairs);
        (request.tx_slots, request.rx_slots) = (send.into(), receive.into());
    }

    /// The memory.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The rings of a direction.
    pub(crate) fn rings(&self, sends: bool) -> &[Arc<Ring>] {
        if sends { &self.send } else { &self.receive }
    }

    /// Whether each wait sends what was queued, and looks for what has arrived.
    pub(crate) fn always(&self) -> (bool, bool) {
        (self.sends_always, self.receives_always)
    }

    /// Whether there is a connection, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        match &self.source {
            Source::Port(port) => port.is_connected(),
            Source::Pipe(pipe) => pipe.is_connected(),
            Source::Null => true,
        }
    }

    /// Looks after the connection; returns whether there is one.
    pub(crate) fn tend(&self) -> bool {
        match &self.source {
            Source::Port(port) => port.tend(),
            Source::Pipe(pipe) => pipe.tend(),
            Source::Null => true,
        }
    }

    /// The switch has stopped a queue.
    pub(crate) fn failed(&self) {
        if let Source::Port(port) = &self.source {
            port.failed();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let (offset, len) = self.interface;
        if len > 0 {
            self.give_extra();
            self.region.give_private(offset, len);
        }
        lock(&SOURCES).claims.retain(|claim| claim.id != self.claim);
    }
}

/// The name that the older modes of pipes mean: the parent's, with the pipe's number in a field.
pub(crate) fn pipe_of_mode(name: Name, request: &mut abi::Register) -> Name {
    let end = match request.mode {
        mode::PIPE_MASTER => End::Master,
        mode::PIPE_SLAVE => End::Slave,
        _ => return name,
    };
    let Name::Port(of) = name else {
        return name;
    };
    let id = std::mem::replace(&mut request.ringid, 0);
    request.mode = mode::ALL_NIC;
    Name::Pipe { of, id, end }
}
