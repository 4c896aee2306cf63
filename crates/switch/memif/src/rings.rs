//! Rings: their places, their checks, and the queues that they are.
//!
//! ```text
//! ring +   0  cookie u32 | flags u16 | head u16     written by the client, but for bit 0 of the
//!                                                   flags of rings to the server
//! ring +  64  tail u16                              written by the server
//! ring + 128  descriptors of 16 bytes
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use memory::{GuestMemory, Segment};
use sys::foreign::ForeignFd;
use virtio::queue::{Layout, SlotFormat};
use virtio::vhost_user::{Backend, QueueInfo, QueueSetup, Resume};

use crate::message::{self, AddRing, RING_TO_SERVER};
use crate::regions::address;
use crate::session::{FEATURES, Session, Stage};
use crate::table::{Answer, Outcome, Refusal, Request};

/// Logarithm of the most descriptors of a ring.
pub const MAX_LOG2_SIZE: u8 = 12;
/// First field of each ring.
const COOKIE: u32 = 0x3e3_1f20;
/// Offset of `head` in a ring, bytes.
const HEAD: u32 = 6;
/// Offset of `tail`, bytes.
const TAIL: u32 = 64;
/// Offset of the descriptors, bytes.
const DESCRIPTORS: u32 = 128;
/// Bytes of a descriptor.
const DESCRIPTOR: u32 = 16;
/// Alignment of a ring, bytes: a descriptor is read in two words.
const ALIGNMENT: u32 = 8;

/// A descriptor that is also stored elsewhere, under a number.
#[derive(Debug)]
pub(crate) struct StoredDescriptor {
    pub(crate) number: u64,
    pub(crate) fd: ForeignFd,
}

/// Place of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Place {
    pub(crate) region: u16,
    pub(crate) offset: u32,
    pub(crate) log2_size: u8,
}

impl Place {
    fn size(self) -> u16 {
        1 << self.log2_size
    }

    /// Returns the bytes of the ring.
    fn bytes(self) -> u32 {
        DESCRIPTORS + DESCRIPTOR * u32::from(self.size())
    }

    fn layout(self, index: u16) -> Layout {
        let to_client = !is_from_client(index);
        let ring = address(self.region, self.offset);
        Layout {
            size: self.size(),
            desc: ring + u64::from(DESCRIPTORS),
            driver: ring,
            device: ring + u64::from(TAIL),
            slots: Some(SlotFormat::Memif { to_client }),
        }
    }
}

/// One ring of the client.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) place: Place,
    /// Its interrupt: of a ring from the client, the kick; of one to the client, the call.
    pub(crate) event: StoredDescriptor,
    pub(crate) running: bool,
    /// Reason why the queue does not run.
    pub(crate) problem: Option<String>,
}

impl Ring {
    /// Returns the status of the queue `index`.
    pub(crate) fn info(ring: Option<&Self>, index: u16) -> QueueInfo {
        let problem = ring.and_then(|ring| ring.problem.clone());
        let running = ring.is_some_and(|ring| ring.running);
        let state = match (&problem, ring) {
            (Some(problem), _) => format!("stopped: {problem}"),
            (None, None) => "waits for its ring".into(),
            (None, Some(_)) if running => "running".into(),
            (None, Some(_)) => "waits for CONNECT".into(),
        };
        QueueInfo {
            index,
            size: ring.map_or(0, |ring| ring.place.size()),
            running,
            enabled: true,
            state,
            fault: problem,
        }
    }

    /// Collects the parameters for a start.
    fn setup(&self, index: u16, mem: &Arc<GuestMemory>) -> Result<QueueSetup, String> {
        let event = self.event.fd.try_clone();
        let event = event.map_err(|e| format!("cannot keep its event descriptor: {e}"))?;
        let (kick, call) = if is_from_client(index) {
            (event, None)
        } else {
            // Nobody kicks for empty buffers.
            let never = sys::event::create().map_err(|e| e.to_string())?;
            (never.into(), Some(event))
        };
        Ok(QueueSetup {
            index,
            layout: self.place.layout(index),
            features: FEATURES,
            position: 0,
            resume: Resume::No,
            kick,
            call,
            enabled: true,
            inflight: None,
            iotlb: None,
            mem: Arc::clone(mem),
        })
    }
}

/// Returns whether the queue has frames of the client: odd ones do.
fn is_from_client(index: u16) -> bool {
    index & 1 != 0
}

/// The fields of a ring that are looked at before it is used.
struct Header {
    cookie: u32,
    head: u16,
    tail: u16,
}

impl Header {
    /// Reads each field once.
    fn read(memory: &GuestMemory, ring: u64) -> Option<Self> {
        let field = |offset: u32, len: u32| memory.translate(ring + u64::from(offset), len);
        let half = |segment: Segment| {
            // SAFETY: the segment has two bytes that are mapped while `memory` lives, at an even
            // address: rings are aligned, and regions are those of whole pages.
            let value = unsafe { AtomicU16::from_ptr(segment.ptr.cast()) };
            value.load(Ordering::Relaxed)
        };
        let cookie = field(0, 4)?;
        // SAFETY: as above, with four bytes at a multiple of four.
        let cookie = unsafe { AtomicU32::from_ptr(cookie.ptr.cast()) };
        Some(Self {
            cookie: cookie.load(Ordering::Relaxed),
            head: half(field(HEAD, 2)?),
            tail: half(field(TAIL, 2)?),
        })
    }
}

impl Session {
    /// Returns the rings with their queue indices.
    pub(crate) fn rings_mut(&mut self) -> impl Iterator<Item = (u16, &mut Ring)> {
        let [to_client, from_client] = &mut self.rings;
        let both = [(0, to_client), (1, from_client)];
        both.into_iter().flat_map(|(first, rings)| {
            let rings = rings.iter_mut().enumerate();
            rings.map(move |(at, ring)| (2 * at as u16 + first, ring))
        })
    }

    /// Adds the next ring of a direction.
    pub(crate) fn push_ring(
        &mut self,
        from_client: bool,
        place: Place,
        event: StoredDescriptor,
    ) -> Result<(), Refusal> {
        self.check_place(place)?;
        let pairs = usize::from(self.offer.queue_pairs);
        let rings = &mut self.rings[usize::from(from_client)];
        if rings.len() >= pairs {
            return Err(format!("this port has {pairs} queue pairs").into());
        }
        rings.push(Ring {
            place,
            event,
            running: false,
            problem: None,
        });
        Ok(())
    }

    /// Checks that a ring lies within its region.
    fn check_place(&self, place: Place) -> Result<(), Refusal> {
        let Place {
            region,
            offset,
            log2_size,
        } = place;
        if !(1..=MAX_LOG2_SIZE).contains(&log2_size) {
            return Err(format!("2^{log2_size} entries, 2 to 4096 are served").into());
        }
        if !offset.is_multiple_of(ALIGNMENT) {
            return Err(format!("offset {offset}, no multiple of {ALIGNMENT}").into());
        }
        let Some(mapped) = self.regions.all.get(usize::from(region)) else {
            return Err(format!("it lies in region {region}, which does not exist").into());
        };
        let (bytes, size) = (place.bytes(), mapped.region.size());
        if u64::from(offset) + u64::from(bytes) > size {
            return Err(format!(
                "{bytes} bytes at {offset} are not in region {region}, which has {size}"
            )
            .into());
        }
        Ok(())
    }

    /// Checks the fields of all rings. A connection starts at `tail` zero: clients set the index to
    /// zero when they are connected, and the server has its own copy then.
    pub(crate) fn check_rings(&mut self) -> Result<(), Refusal> {
        let Some(memory) = self.memory.clone() else {
            return Err("no memory".into());
        };
        let mut count = 0;
        for (index, ring) in self.rings_mut() {
            let name = ring_name(index);
            let header = Header::read(&memory, ring.place.layout(index).driver);
            let header = header.ok_or_else(|| format!("{name} is not in its region"))?;
            let Header { cookie, head, tail } = header;
            if cookie != COOKIE {
                return Err(format!("{name} has cookie {cookie:#x}, not {COOKIE:#x}").into());
            }
            if tail != 0 {
                return Err(format!("{name} does not start at 0: its tail is {tail}").into());
            }
            if head > ring.place.size() {
                let size = ring.place.size();
                return Err(format!("{name} of {size} entries has its head at {head}").into());
            }
            count += 1;
        }
        if count == 0 {
            return Err("no ring was added".into());
        }
        Ok(())
    }

    /// Starts all queues; one that cannot start keeps the reason.
    pub(crate) fn start_all(&mut self, backend: &mut dyn Backend) {
        let Some(memory) = self.memory.clone() else {
            return;
        };
        backend.set_memory(Some(Arc::clone(&memory)));
        for (index, ring) in self.rings_mut().filter(|(_, ring)| ring.problem.is_none()) {
            let setup = ring.setup(index, &memory);
            let started = setup.and_then(|setup| backend.start_queue(index, setup));
            ring.running = started.is_ok();
            if let Err(reason) = started {
                backend.queue_refused(index, &reason);
                ring.problem = Some(reason);
            }
        }
    }

    /// Stops all running queues.
    pub(crate) fn stop_all(&mut self, backend: &mut dyn Backend) {
        for (index, ring) in self.rings_mut() {
            if std::mem::take(&mut ring.running) {
                backend.stop_queue(index);
            }
        }
    }

    /// Stops a queue with a fault: the client violated the ring's rules. The caller must end its
    /// connection, with the same reason.
    pub fn queue_failed(&mut self, index: u16, reason: &str, backend: &mut dyn Backend) {
        let found = self.rings_mut().find(|(at, _)| *at == index);
        if let Some((_, ring)) = found {
            ring.problem = Some(reason.into());
            if std::mem::take(&mut ring.running) {
                backend.stop_queue(index);
            }
        }
    }
}

/// Returns the name of a ring as its client knows it.
fn ring_name(index: u16) -> String {
    let direction = if is_from_client(index) { "S2M" } else { "M2S" };
    format!("{direction} ring {}", index / 2)
}

/// `ADD_RING`: rings of each direction come in the order of their indices.
pub(crate) fn add_ring(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let add = AddRing::parse(&request.payload).ok_or("payload too short")?;
    let fd = request.fd.ok_or("no file descriptor")?;
    if add.flags & !RING_TO_SERVER != 0 {
        return Err(format!("unknown flags {:#x}", add.flags).into());
    }
    let from_client = add.flags & RING_TO_SERVER != 0;
    let name = ring_name(add.index.saturating_mul(2) | u16::from(from_client));
    if add.private_header != 0 {
        return Err(format!("{name}: private headers are not served").into());
    }
    let (again, rings) = (session.again, &mut session.rings[usize::from(from_client)]);
    if again && usize::from(add.index) + 1 == rings.len() {
        rings.pop();
    } else if usize::from(add.index) != rings.len() {
        let next = rings.len();
        return Err(format!("{name}: the next one is {next}").into());
    }
    sys::event::check(&fd).map_err(|reason| format!("{name}: {reason}"))?;
    let place = Place {
        region: add.region,
        offset: add.offset,
        log2_size: add.log2_size,
    };
    let number = session.next_number;
    let event = StoredDescriptor {
        number,
        fd: fd.try_clone().map_err(|e| e.to_string())?,
    };
    session
        .push_ring(from_client, place, event)
        .map_err(|Refusal(reason)| format!("{name}: {reason}"))?;
    session.keep(&fd, backend);
    debug_assert_eq!(session.stage, Stage::Initialised);
    Ok(Answer::Reply(message::ack()))
}
