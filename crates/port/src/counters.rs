//! Counters in memory that control reads while the switch writes.
//!
//! Memory map, all fields little-endian `u64`, written by the switch, read by anyone who maps the file:
//!
//! ```text
//! 0      magic "LHCOUNT1", number of port slots, number of drop slots, ticks a second
//! 4096   slot of port 0:  from-guest packets, bytes; to-guest packets, bytes; 56 drop counters;
//!                         ticks of switching, ticks of copying; batches that found it masked; nothing yet
//! 4608   slot of port 1 ...
//! ```
//!
//! Ticks are those of the counter that the switch measures with; how many there are in a second is 0 until it knows.
//! The first version had 60 drop counters, of which the last four were never used.
//! A port's slot is cleared when its id is handed out again, never while it exists.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memory::{Mapping, MemoryError};

use crate::{DropReason, PortId, REASONS};

/// Port ids lie below this.
pub const MAX_PORTS: usize = 1024;
/// Room for drop reasons in a slot.
pub const DROP_SLOTS: usize = 56;
/// Bytes of the whole file.
pub const SIZE: u64 = (HEADER + MAX_PORTS * size_of::<Slot>()) as u64;

const HEADER: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"LHCOUNT1");

/// The counters of one port.
#[repr(C, align(64))]
#[derive(Debug)]
struct Slot {
    from_packets: AtomicU64,
    from_bytes: AtomicU64,
    to_packets: AtomicU64,
    to_bytes: AtomicU64,
    drops: [AtomicU64; DROP_SLOTS],
    switching: AtomicU64,
    copying: AtomicU64,
    masked: AtomicU64,
    _nothing: AtomicU64,
}

const _: () = assert!(size_of::<Slot>() == 512);

#[repr(C)]
struct Header {
    magic: AtomicU64,
    ports: AtomicU64,
    drop_slots: AtomicU64,
    ticks_per_second: AtomicU64,
}

/// Packets and bytes in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Frames; a frame that stands for several segments counts once.
    pub packets: u64,
    /// Bytes of Ethernet frames, without virtio headers.
    pub bytes: u64,
}

/// What the switch's processor did for a port, in ticks of its counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticks {
    /// For frames from the guest: taking them, and finding out where they go.
    pub switching: u64,
    /// For frames to the guest: copying them, and telling both guests.
    pub copying: u64,
}

/// A reading of one port's counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortCounts {
    /// What the switch took from the guest.
    pub from_guest: Traffic,
    /// What the switch put into the guest's buffers.
    pub to_guest: Traffic,
    /// Drops by reason, in the order of [`REASONS`].
    pub drops: Vec<u64>,
    /// What all that cost.
    pub ticks: Ticks,
    /// Batches with frames for the guest, while it had shown no buffer for so long that it was not tried.
    pub masked: u64,
}

impl PortCounts {
    /// The count for one reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }
}

/// The mapped counters of all ports.
#[derive(Clone, Debug)]
pub struct Counters {
    mapping: Arc<Mapping>,
}

impl Counters {
    /// Maps the file that the supervisor made, which is [`SIZE`] bytes long, and writes its header.
    ///
    /// # Errors
    /// A shorter file, or the system's refusal.
    pub fn map(fd: &std::os::fd::OwnedFd) -> Result<Self, MemoryError> {
        Ok(Self::over(Mapping::shared(fd, SIZE, 0)?))
    }

    /// Private counters, for tests and tools.
    #[must_use]
    pub fn heap() -> Self {
        Self::over(Mapping::heap(SIZE))
    }

    fn over(mapping: Mapping) -> Self {
        let counters = Self {
            mapping: Arc::new(mapping),
        };
        let header = counters.header();
        header.ports.store(MAX_PORTS as u64, Relaxed);
        header.drop_slots.store(DROP_SLOTS as u64, Relaxed);
        header.magic.store(MAGIC, Relaxed);
        counters
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is SIZE bytes long, page-aligned, lives as long as `self`, and holds atomics only, for
        // which every bit pattern is valid.
        unsafe { &*self.mapping.as_ptr().cast::<Header>() }
    }

    /// Says how many ticks there are in a second.
    pub fn set_ticks_per_second(&self, ticks: u64) {
        self.header().ticks_per_second.store(ticks, Relaxed);
    }

    /// Ticks in a second, once they are known.
    #[must_use]
    pub fn ticks_per_second(&self) -> Option<u64> {
        let ticks = self.header().ticks_per_second.load(Relaxed);
        (ticks > 0).then_some(ticks)
    }

    fn slot(&self, port: PortId) -> &Slot {
        let index = (port.0 as usize).min(MAX_PORTS - 1);
        // SAFETY: the index is below MAX_PORTS, so the slot lies within the SIZE bytes of the mapping,
        // which lives as long as `self`; the base is page-aligned, and a slot is made of atomics.
        unsafe { &*self.mapping.as_ptr().add(HEADER).cast::<Slot>().add(index) }
    }

    /// Adds to what came from the port's guest.
    #[inline]
    pub fn add_from(&self, port: PortId, traffic: Traffic) {
        let slot = self.slot(port);
        slot.from_packets.fetch_add(traffic.packets, Relaxed);
        slot.from_bytes.fetch_add(traffic.bytes, Relaxed);
    }

    /// Adds to what went to the port's guest.
    #[inline]
    pub fn add_to(&self, port: PortId, traffic: Traffic) {
        let slot = self.slot(port);
        slot.to_packets.fetch_add(traffic.packets, Relaxed);
        slot.to_bytes.fetch_add(traffic.bytes, Relaxed);
    }

    /// Adds to what the port's frames cost.
    #[inline]
    pub fn add_ticks(&self, port: PortId, ticks: Ticks) {
        let slot = self.slot(port);
        for (cell, more) in [
            (&slot.switching, ticks.switching),
            (&slot.copying, ticks.copying),
        ] {
            if more > 0 {
                cell.fetch_add(more, Relaxed);
            }
        }
    }

    /// Counts a batch that found the port masked.
    pub fn add_masked(&self, port: PortId) {
        self.slot(port).masked.fetch_add(1, Relaxed);
    }

    /// Counts dropped frames.
    #[inline]
    pub fn add_drops(&self, port: PortId, reason: DropReason, frames: u64) {
        self.slot(port).drops[reason as usize].fetch_add(frames, Relaxed);
    }

    /// Sets a port's counters to zero, when its id is handed out.
    pub fn clear(&self, port: PortId) {
        let slot = self.slot(port);
        for cell in [
            &slot.from_packets,
            &slot.from_bytes,
            &slot.to_packets,
            &slot.to_bytes,
            &slot.switching,
            &slot.copying,
            &slot.masked,
        ] {
            cell.store(0, Relaxed);
        }
        slot.drops.iter().for_each(|d| d.store(0, Relaxed));
    }

    /// Reads a port's counters.
    #[must_use]
    pub fn read(&self, port: PortId) -> PortCounts {
        let slot = self.slot(port);
        PortCounts {
            from_guest: Traffic {
                packets: slot.from_packets.load(Relaxed),
                bytes: slot.from_bytes.load(Relaxed),
            },
            to_guest: Traffic {
                packets: slot.to_packets.load(Relaxed),
                bytes: slot.to_bytes.load(Relaxed),
            },
            drops: slot.drops[..REASONS.len()]
                .iter()
                .map(|d| d.load(Relaxed))
                .collect(),
            ticks: Ticks {
                switching: slot.switching.load(Relaxed),
                copying: slot.copying.load(Relaxed),
            },
            masked: slot.masked.load(Relaxed),
        }
    }
}
