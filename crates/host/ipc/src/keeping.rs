//! State of the switch that the supervisor stores, so that guests survive its death.
//!
//! For each open vhost-user connection the switch stores descriptors under numbers
//! ([`SessionRequest::StoreDescriptor`]) and a record that refers to them
//! ([`SessionRequest::StoreSession`]). The supervisor does not interpret them; it passes them to
//! the next switch. Beside the session's own descriptors, numbered from 0, there are up to five of
//! the connection.
//!
//! [`SessionRequest::StoreDescriptor`]: crate::supervision::SessionRequest::StoreDescriptor
//! [`SessionRequest::StoreSession`]: crate::supervision::SessionRequest::StoreSession

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mapping::Mapping;
use port::PortId;
use serde::{Deserialize, Serialize};
use sys::closer;

use crate::formats::CONNECTION;
use crate::switching::PortConfig;

/// Most bytes of one record.
pub const MAX_RECORD: usize = 96 << 10;
/// Most descriptors stored for one port: 509 memory regions, three for each of 256 queues, and the
/// rest.
pub const MAX_SAVED: usize = 1536;

/// The connection's socket.
pub const SOCKET: u64 = u64::MAX;
/// The end of the reply pipe that is read.
pub const PIPE_FROM: u64 = u64::MAX - 1;
/// The end of the reply pipe that is written.
pub const PIPE_TO: u64 = u64::MAX - 2;
/// The memory with the positions of packed queues.
pub const JOURNAL: u64 = u64::MAX - 3;
/// The table of translations of a guest with an IOMMU.
pub const IOTLB: u64 = u64::MAX - 4;

/// State of a connection beside its session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// The port's configuration.
    pub port: PortConfig,
    /// The virtio features that the front end was offered. The next one may be offered others.
    pub offered: u64,
    /// The session's own record.
    pub session: Vec<u8>,
    /// The last served message: code and payload. The pipe shows whether its reply was sent.
    pub answered: Option<(u32, Vec<u8>)>,
    /// A part of a message was taken from the socket and lost with the process.
    pub torn: bool,
    /// Number of starts of each queue, by index.
    pub starts: Vec<u32>,
    /// Number of connections of this port so far.
    pub connections: u64,
    /// No queue starts without `VIRTIO_F_ACCESS_PLATFORM`. The next connection may be offered
    /// something else.
    pub iommu_required: bool,
}

impl ConnectionRecord {
    /// Returns the record as bytes, the number of the format first.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Only a writer that runs full can fail here, and a vector grows.
        postcard::to_extend(self, CONNECTION.to_le_bytes().to_vec()).unwrap_or_default()
    }

    /// Parses a record; its contents are not checked.
    ///
    /// # Errors
    /// Another number, or bytes that are not a record.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let Some((number, rest)) = bytes.split_first_chunk() else {
            return Err("an empty record".into());
        };
        match u32::from_le_bytes(*number) {
            CONNECTION => {}
            number => return Err(format!("a record of version {number}")),
        }
        match postcard::take_from_bytes(rest) {
            Ok((record, [])) => Ok(record),
            Ok(_) => Err("trailing bytes behind a record".into()),
            Err(error) => Err(format!("malformed record: {error}")),
        }
    }
}

/// Bytes of the crash record, a file in which each thread of the switch writes the port that it
/// serves; the supervisor reads it when the switch has died. It is an array of `u64`:
///
/// ```text
/// 0         0, or the slot of the first thread that crashed
/// 1         slot of the session thread
/// 2 + n     slot of worker n
/// 496 + n   slot of closer n, which serves no port: it closes a descriptor of the port's connection
/// ```
///
/// The lower half of a slot is the number of the port that its thread serves, plus one, or 0 for
/// none. The upper half counts: a slot that does not change belongs to a thread that makes no
/// progress.
pub const CRASH_RECORD_LEN: u64 = 4096;
/// Index of the crashed thread's port.
const CRASHED: usize = 0;
/// Number of threads with a slot, without the closers.
const THREADS: usize = CRASH_RECORD_LEN as usize / 8 - 1 - closer::THREADS;
/// Index of the first closer's slot.
const CLOSERS: usize = 1 + THREADS;
/// Number of all words.
const WORDS: usize = CLOSERS + closer::THREADS;
/// Value at [`CRASHED`] when the crashed thread served no port.
const NO_PORT: u64 = u64::MAX;
/// Increment of the upper half of a slot.
const GENERATION: u64 = 1 << 32;

/// The slots of all threads, in the process that writes them.
#[derive(Clone, Debug)]
pub struct ThreadSlots(Arc<Mapping>);

impl ThreadSlots {
    /// Maps the file.
    ///
    /// # Errors
    /// The error of the system call, as text.
    pub fn map(fd: &OwnedFd) -> Result<Self, String> {
        let mapping = Mapping::shared(fd, CRASH_RECORD_LEN, 0).map_err(|e| e.to_string())?;
        Ok(Self(Arc::new(mapping)))
    }

    /// Returns the slot of the thread of this number.
    #[must_use]
    pub fn of(&self, thread: usize) -> ThreadSlot {
        ThreadSlot {
            slots: Arc::clone(&self.0),
            thread: thread.min(THREADS - 1),
        }
    }

    /// Records that a closer closes a descriptor of this port's connection, or none.
    pub fn note_closing(&self, closer: usize, port: Option<PortId>) {
        let thread = THREADS + closer.min(closer::THREADS - 1);
        let slots = Arc::clone(&self.0);
        let port = port.map_or(0, |port| u64::from(port.0.wrapping_add(1)));
        ThreadSlot { slots, thread }.set(port);
    }
}

/// Slot of one thread.
#[derive(Clone, Debug)]
pub struct ThreadSlot {
    slots: Arc<Mapping>,
    thread: usize,
}

impl ThreadSlot {
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        let words = self.slots.as_ptr().cast::<u64>();
        // SAFETY: `at` is CRASHED or 1 + `thread`, less than WORDS, so the word is inside the
        // mapping, which is page-aligned and lives as long as `slots`.
        unsafe { AtomicU64::from_ptr(words.wrapping_add(at)) }
    }

    #[inline]
    fn own(&self) -> &AtomicU64 {
        self.word(1 + self.thread)
    }

    #[inline]
    fn set(&self, port: u64) {
        let count =
            (self.own().load(Ordering::Relaxed) & !(GENERATION - 1)).wrapping_add(GENERATION);
        self.own().store(count | port, Ordering::Relaxed);
    }

    /// Records that the thread serves this port.
    #[inline]
    pub fn serve(&self, port: PortId) {
        self.set(u64::from(port.0.wrapping_add(1)));
    }

    /// Records that the thread serves no port.
    #[inline]
    pub fn rest(&self) {
        self.set(0);
    }

    /// Returns the port that the thread serves.
    #[must_use]
    pub fn served(&self) -> Option<PortId> {
        port_of(self.own().load(Ordering::Relaxed))
    }

    /// Records that the process dies in this thread, with the port that the thread serves. Only the
    /// first such thread counts. May be called in a signal handler.
    pub fn record_crash(&self) {
        let port = self.own().load(Ordering::Relaxed) & (GENERATION - 1);
        let crashed = if port == 0 { NO_PORT } else { port };
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        // Only the first record counts.
        let _ = self
            .word(CRASHED)
            .compare_exchange(0, crashed, success, failure);
    }
}

/// Returns the port of a slot.
fn port_of(slot: u64) -> Option<PortId> {
    let number = (slot as u32).checked_sub(1)?;
    Some(PortId(number))
}

fn ports_of(slots: &[u64]) -> Vec<PortId> {
    slots.iter().filter_map(|slot| port_of(*slot)).collect()
}

/// Values of all slots at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotSnapshot([u64; WORDS]);

impl SlotSnapshot {
    /// Reads the crash record.
    ///
    /// # Errors
    /// The error of the system call, or another file.
    pub fn at(slots: impl AsFd) -> std::io::Result<Self> {
        let mut bytes = vec![0; CRASH_RECORD_LEN as usize];
        let read = rustix::io::pread(&slots, &mut bytes[..], 0)?;
        let (words, _) = bytes[..read].as_chunks();
        let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        words
            .try_into()
            .map(Self)
            .map_err(|_| std::io::ErrorKind::InvalidData.into())
    }

    /// Returns the ports whose threads made no progress since an earlier snapshot: those of
    /// workers, or else that of the session thread, which may have waited for a worker.
    #[must_use]
    pub fn stuck_since(&self, before: &Self) -> Vec<PortId> {
        let both = self.0[..CLOSERS].iter().zip(&before.0).skip(1 + CRASHED);
        let stuck = both.map(|(now, before)| port_of(*now).filter(|_| now == before));
        let mut all: Vec<_> = stuck.collect();
        let workers = all.split_off(1);
        let workers: Vec<_> = workers.into_iter().flatten().collect();
        if workers.is_empty() {
            return all.into_iter().flatten().collect();
        }
        workers
    }

    /// Returns the ports that workers serve.
    #[must_use]
    pub fn served_by_workers(&self) -> Vec<PortId> {
        ports_of(&self.0[2 + CRASHED..CLOSERS])
    }

    /// Returns whether the session thread made progress since an earlier snapshot.
    #[must_use]
    pub fn session_progressed_since(&self, before: &Self) -> bool {
        self.0[1 + CRASHED] != before.0[1 + CRASHED]
    }

    /// Returns the ports with a connection that these closers close a descriptor of.
    #[must_use]
    pub fn closed_by(&self, closers: &[usize]) -> Vec<PortId> {
        let slots = closers.iter().filter_map(|n| self.0[CLOSERS..].get(*n));
        slots.filter_map(|slot| port_of(*slot)).collect()
    }

    /// Returns the port of the crashed thread, or, when none was recorded, those of all threads.
    fn suspects(&self) -> Vec<PortId> {
        match self.0[CRASHED] {
            0 => ports_of(&self.0[..CLOSERS]),
            NO_PORT => Vec::new(),
            crashed => port_of(crashed).into_iter().collect(),
        }
    }
}

/// Returns the suspects of a switch that died: the port of the crashed thread, or, when none was
/// recorded, those of all threads. The slots are cleared.
///
/// # Errors
/// The error of the system call.
pub fn suspects(slots: impl AsFd) -> std::io::Result<Vec<PortId>> {
    let look = SlotSnapshot::at(&slots)?;
    wipe(slots)?;
    Ok(look.suspects())
}

/// Clears the slots of a switch that is gone.
///
/// # Errors
/// The error of the system call.
pub fn wipe(slots: impl AsFd) -> std::io::Result<()> {
    rustix::io::pwrite(slots, &[0; CRASH_RECORD_LEN as usize], 0)?;
    Ok(())
}
