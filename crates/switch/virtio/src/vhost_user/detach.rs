//! Positions of packed queues across the end of a connection and the next one.
//!
//! A front end that lost its back end without `GET_VRING_BASE` takes a split queue's position from
//! the used index in guest memory. A packed ring shows none, and QEMU (seen in 7.2) offers the
//! start. So a session that ends with running queues leaves a snapshot of their positions. A later
//! session continues there if the ring is provably the same: the same file at the same place with
//! the same size, served before by its own flags, and a front end that offers the start. A driver
//! that was reset meanwhile has cleared its ring.
//!
//! Without a snapshot, because all of Lasthop was restarted, the position is read from the ring;
//! most drivers' rings show it ([`Queue::position_in_ring`]).

use std::sync::Arc;

use memory::iotlb::Access;

use super::backend::Backend;
use super::queues::PACKED_START;
use super::regions::FileId;
use super::session::Session;
use crate::queue::{Layout, Queue, QueueMemory};

/// Frames in the rings of a front end that is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftFrames {
    /// To it: in buffers that it has not offered again, so it may not have handled them.
    pub to_front_end: u64,
    /// From it: not taken.
    pub from_front_end: u64,
}

/// Position of a running queue when its connection broke.
#[derive(Debug, Clone)]
pub struct QueueSnapshot {
    pub(super) index: u16,
    size: u16,
    place: [(FileId, u64); 3],
    position: u32,
}

impl QueueSnapshot {
    /// Returns whether both are of one queue: the newer one counts.
    #[must_use]
    pub fn is_of_same_queue(&self, other: &Self) -> bool {
        (self.index, self.place) == (other.index, other.place)
    }
}

impl Session {
    /// Ends the session as [`Session::close`] does, because its connection broke. Returns the
    /// positions of its running packed queues for [`Session::restore_snapshots`] of the next
    /// session.
    pub fn detach(&mut self, backend: &mut dyn Backend) -> Vec<QueueSnapshot> {
        let mut all = Vec::new();
        if self.packed() && self.inflight.is_none() {
            let running: Vec<_> = self.queues.iter().map(|vring| vring.running).collect();
            let places: Vec<_> = running.iter().map(|l| self.place(l.as_ref()?)).collect();
            self.stop_all(backend);
            for (index, (layout, place)) in running.into_iter().zip(places).enumerate() {
                if let (Some(layout), Some(place)) = (layout, place)
                    && let Some(position) = self.queues[index].base
                {
                    all.push(QueueSnapshot {
                        index: index as u16,
                        size: layout.size,
                        place,
                        position,
                    });
                }
            }
        }
        self.close(backend);
        all
    }

    /// Stops all queues, and counts the frames in their rings, for a front end that offers all
    /// buffers of a split queue before it starts, one in each descriptor. Of other layouts there is
    /// no such count.
    pub fn left_frames(&mut self, backend: &mut dyn Backend) -> LeftFrames {
        self.stop_all(backend);
        let mut left = LeftFrames::default();
        for index in 0..self.queues.len() {
            let Some((size, available)) = self.available(index) else {
                continue;
            };
            match index % 2 {
                0 => left.to_front_end += u64::from(size.saturating_sub(available)),
                _ => left.from_front_end += u64::from(available),
            }
        }
        left
    }

    /// Returns the size of a stopped split queue that was served, and the number of chains that are
    /// available in its ring.
    fn available(&self, index: usize) -> Option<(u16, u16)> {
        let vring = &self.queues[index];
        let position = vring.base.filter(|_| vring.served)?;
        let layout = self.split_layout(index)?;
        let mut queue = Queue::new(self.queue_memory()?, layout, self.features(), position).ok()?;
        Some((layout.size, queue.available()))
    }

    /// Sets the snapshots of earlier sessions, the newest first; they may belong to other front
    /// ends.
    pub fn restore_snapshots(&mut self, snapshots: Vec<QueueSnapshot>) {
        self.snapshots = snapshots;
    }

    /// Returns the position of a queue when the front end gives the start and the position is known
    /// to be another: from a snapshot of an earlier session, or else from the ring itself.
    pub(super) fn known_position(&self, index: usize, layout: &Layout) -> Option<u32> {
        let vring = &self.queues[index];
        if !matches!(vring.base, None | Some(PACKED_START)) {
            return None;
        }
        let memory = self.queue_memory()?;
        match self.snapshot_at(index, layout) {
            Some(left) => Queue::was_served(&memory, *layout).then_some(left.position),
            None if vring.served || self.inflight.is_some() => None,
            None => Queue::position_in_ring(&memory, *layout, self.features()),
        }
    }

    /// Returns the memory of the queues.
    pub(super) fn queue_memory(&self) -> Option<QueueMemory> {
        Some(QueueMemory {
            memory: Arc::clone(self.memory.as_ref()?),
            iotlb: self.iotlb().cloned(),
        })
    }

    fn snapshot_at(&self, index: usize, layout: &Layout) -> Option<&QueueSnapshot> {
        let place = self.place(layout)?;
        let same = |left: &&QueueSnapshot| {
            usize::from(left.index) == index && left.size == layout.size && left.place == place
        };
        self.snapshots.iter().find(same)
    }

    /// Returns the files and offsets of the three areas.
    fn place(&self, layout: &Layout) -> Option<[(FileId, u64); 3]> {
        let in_file = |addr: u64| {
            let gpa = match self.iotlb() {
                Some(iotlb) => iotlb.look_up(addr, Access::READ)?.gpa,
                None => addr,
            };
            let mut regions = self.regions.iter();
            let found = regions
                .find(|m| gpa >= m.region.gpa() && gpa - m.region.gpa() < m.region.size())?;
            Some((found.id, found.offset + (gpa - found.region.gpa())))
        };
        Some([
            in_file(layout.desc)?,
            in_file(layout.driver)?,
            in_file(layout.device)?,
        ])
    }
}
