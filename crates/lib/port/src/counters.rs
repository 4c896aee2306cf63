//! Counters in memory that control reads while the switch writes.
//!
//! Memory map, all fields little-endian `u64`, written by the switch, read by any process that maps
//! the file:
//!
//! ```text
//! 0      magic "LHCOUNT1", number of port slots, number of drop slots, ticks per second
//! 512    slot of mirror 0: copies delivered, their bytes; copies lost, for each of [`COPY_LOSSES`]
//! 568    slot of mirror 1 ...
//! 4096   slot of port 0:  from-guest packets, bytes; to-guest packets, bytes; 56 drop counters;
//!                         ticks of switching, ticks of copying; skipped batches; reserved
//! 4608   slot of port 1 ...
//! ```
//!
//! Ticks are those of the counter that the switch measures with; their number per second is 0 until
//! it is known. A port's slot, and a mirror's, is cleared when its number is assigned again, never
//! while it exists.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mapping::{Mapping, MappingError};

use crate::{DropReason, PortId, REASONS};

/// Version of the map.
pub const VERSION: u32 = 12;
/// Port ids lie below this.
pub const MAX_PORTS: usize = 1024;
/// Room for drop reasons in a slot.
pub const DROP_SLOTS: usize = 56;
/// Numbers of mirrors lie below this.
pub const MAX_MIRRORS: usize = 64;
/// Reasons why copies are lost, in the order of their counters: all reasons that a receiver can
/// cause.
pub const COPY_LOSSES: [DropReason; 5] = [
    DropReason::ReceiverFull,
    DropReason::ReceiverDown,
    DropReason::BufferTooSmall,
    DropReason::ExceedsMtu,
    DropReason::RateLimited,
];
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

/// The counters of one mirror.
#[repr(C)]
#[derive(Debug)]
struct MirrorSlot {
    packets: AtomicU64,
    bytes: AtomicU64,
    lost: [AtomicU64; COPY_LOSSES.len()],
}

/// Offset of the mirrors' counters.
const MIRRORS: usize = 512;
const _: () = assert!(MIRRORS + MAX_MIRRORS * size_of::<MirrorSlot>() <= HEADER);

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

/// Counters of one mirror. A frame that stands for several segments is one, whether its copy was
/// truncated or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MirrorCounts {
    /// Copies that were delivered.
    pub copied: Traffic,
    /// Copies that were lost, by reason: see [`COPY_LOSSES`].
    pub lost: [u64; COPY_LOSSES.len()],
}

/// CPU time of the switch for a port, in ticks of its counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticks {
    /// For frames from the guest: receiving and matching.
    pub switching: u64,
    /// For frames to the guest: copying and notifications.
    pub copying: u64,
}

/// Counters of one port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortCounts {
    /// Frames from the guest.
    pub from_guest: Traffic,
    /// Frames to the guest.
    pub to_guest: Traffic,
    /// Drops by reason, in the order of [`REASONS`].
    pub drops: Vec<u64>,
    /// CPU time of all that.
    pub ticks: Ticks,
    /// Batches with frames for the guest that were skipped, because it had shown no buffer for a
    /// while.
    pub masked: u64,
}

impl PortCounts {
    /// Returns the count for one reason.
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
    /// Maps the file that the supervisor created, which is [`SIZE`] bytes long, and writes its
    /// header.
    ///
    /// # Errors
    /// A shorter file, or the error of the system call.
    pub fn map(fd: &std::os::fd::OwnedFd) -> Result<Self, MappingError> {
        Ok(Self::over(Mapping::shared(fd, SIZE, 0)?))
    }

    /// Creates private counters, for tests and tools.
    #[cfg(any(test, feature = "test-utils"))]
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
        // SAFETY: the mapping is SIZE bytes long, page-aligned, lives as long as `self`, and holds
        // atomics only, for which every bit pattern is valid.
        unsafe { &*self.mapping.as_ptr().cast::<Header>() }
    }

    /// Sets the number of ticks per second.
    pub fn set_ticks_per_second(&self, ticks: u64) {
        self.header().ticks_per_second.store(ticks, Relaxed);
    }

    /// Returns the ticks per second, once they are known.
    #[must_use]
    pub fn ticks_per_second(&self) -> Option<u64> {
        let ticks = self.header().ticks_per_second.load(Relaxed);
        (ticks > 0).then_some(ticks)
    }

    fn slot(&self, port: PortId) -> &Slot {
        let index = (port.0 as usize).min(MAX_PORTS - 1);
        // SAFETY: the index is below MAX_PORTS, so the slot lies within the SIZE bytes of the
        // mapping, which lives as long as `self`; the base is page-aligned, and a slot is made of
        // atomics.
        unsafe { &*self.mapping.as_ptr().add(HEADER).cast::<Slot>().add(index) }
    }

    fn mirror(&self, number: u8) -> &MirrorSlot {
        let index = usize::from(number).min(MAX_MIRRORS - 1);
        // SAFETY: the index is below MAX_MIRRORS, so the slot lies within the header's part of the
        // mapping, which lives as long as `self`; the base is page-aligned, so the slot is for
        // 8-byte atomics, of which it is made.
        unsafe {
            &*self
                .mapping
                .as_ptr()
                .add(MIRRORS)
                .cast::<MirrorSlot>()
                .add(index)
        }
    }

    /// Counts a copy that a mirror made of a frame with so many bytes: delivered, or lost.
    pub fn add_copy(&self, mirror: u8, bytes: u64, lost: Option<DropReason>) {
        let slot = self.mirror(mirror);
        let Some(lost) = lost else {
            slot.packets.fetch_add(1, Relaxed);
            slot.bytes.fetch_add(bytes, Relaxed);
            return;
        };
        // The slot of a mirror has no room for a sixth reason. A share is a limit, too, and a
        // buffer that is not translated is none.
        let lost = match lost {
            DropReason::ReceiveShare => DropReason::RateLimited,
            DropReason::ReceiverUntranslated => DropReason::ReceiverFull,
            other => other,
        };
        let at = COPY_LOSSES.iter().position(|reason| *reason == lost);
        if let Some(cell) = at.and_then(|at| slot.lost.get(at)) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Sets a mirror's counters to zero, when its number is assigned.
    pub fn clear_mirror(&self, mirror: u8) {
        let slot = self.mirror(mirror);
        for cell in [&slot.packets, &slot.bytes].into_iter().chain(&slot.lost) {
            cell.store(0, Relaxed);
        }
    }

    /// Reads a mirror's counters.
    #[must_use]
    pub fn read_mirror(&self, mirror: u8) -> MirrorCounts {
        let slot = self.mirror(mirror);
        MirrorCounts {
            copied: Traffic {
                packets: slot.packets.load(Relaxed),
                bytes: slot.bytes.load(Relaxed),
            },
            lost: slot.lost.each_ref().map(|cell| cell.load(Relaxed)),
        }
    }

    /// Counts frames from the port's guest.
    #[inline]
    pub fn add_from(&self, port: PortId, traffic: Traffic) {
        let slot = self.slot(port);
        slot.from_packets.fetch_add(traffic.packets, Relaxed);
        slot.from_bytes.fetch_add(traffic.bytes, Relaxed);
    }

    /// Counts frames to the port's guest.
    #[inline]
    pub fn add_to(&self, port: PortId, traffic: Traffic) {
        let slot = self.slot(port);
        slot.to_packets.fetch_add(traffic.packets, Relaxed);
        slot.to_bytes.fetch_add(traffic.bytes, Relaxed);
    }

    /// Adds CPU time of the port's frames.
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

    /// Counts a skipped batch of the port.
    pub fn add_masked(&self, port: PortId) {
        self.slot(port).masked.fetch_add(1, Relaxed);
    }

    /// Counts dropped frames.
    #[inline]
    pub fn add_drops(&self, port: PortId, reason: DropReason, frames: u64) {
        self.slot(port).drops[reason as usize].fetch_add(frames, Relaxed);
    }

    /// Sets a port's counters to zero, when its id is assigned.
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

    /// Returns the number of frames that were dropped for a reason.
    #[must_use]
    pub fn drops(&self, port: PortId, reason: DropReason) -> u64 {
        self.slot(port).drops[reason as usize].load(Relaxed)
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
