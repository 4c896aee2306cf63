//! A connection that broke and came back: where its packed queues stand.
//!
//! A front end that lost its back end without `GET_VRING_BASE` takes a split queue's position from the used index
//! in guest memory. A packed ring shows none, and QEMU (seen in 7.2) offers the start. So a session that ends
//! with queues running leaves their positions behind, and a later session goes on there if it is provably
//! the same ring: the same file at the same place with the same size, served before by its own flags, and a
//! front end that knows nothing better than the start. A driver that was reset meanwhile has cleared its ring.
//!
//! When nobody is left who remembers, because all of Lasthop was started anew, the ring is read: most drivers' rings tell
//! ([`Queue::position_in_ring`]).

use super::backend::Backend;
use super::queues::PACKED_START;
use super::regions::FileId;
use super::session::Session;
use crate::queue::{Layout, Queue};

/// Where a running queue stood when its connection broke.
#[derive(Debug, Clone)]
pub struct Left {
    pub(super) index: u16,
    size: u16,
    place: [(FileId, u64); 3],
    position: u32,
}

impl Left {
    /// Whether both are of one queue: the newer one counts.
    #[must_use]
    pub fn is_of_same_queue(&self, other: &Self) -> bool {
        (self.index, self.place) == (other.index, other.place)
    }
}

impl Session {
    /// Ends the session as [`Session::close`] does, because its connection broke. What its running packed queues
    /// leave is for [`Session::recall`] of the front end's next session.
    pub fn leave(&mut self, backend: &mut dyn Backend) -> Vec<Left> {
        let mut all = Vec::new();
        if self.packed() && self.inflight.is_none() {
            let running: Vec<_> = self.queues.iter().map(|vring| vring.running).collect();
            let places: Vec<_> = running.iter().map(|l| self.place(l.as_ref()?)).collect();
            self.stop_all(backend);
            for (index, (layout, place)) in running.into_iter().zip(places).enumerate() {
                if let (Some(layout), Some(place)) = (layout, place)
                    && let Some(position) = self.queues[index].base
                {
                    all.push(Left {
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

    /// What sessions before this one have left, the newest first; not all of it need be of this front end.
    pub fn recall(&mut self, left: Vec<Left>) {
        self.left = left;
    }

    /// The position at which a queue is known to stand although the front end says the start: because a session before
    /// this one has left it, or else, where nobody remembers that, from the ring itself.
    pub(super) fn known_position(&self, index: usize, layout: &Layout) -> Option<u32> {
        let vring = &self.queues[index];
        if !matches!(vring.base, None | Some(PACKED_START)) {
            return None;
        }
        let memory = self.memory.as_ref()?;
        match self.left_at(index, layout) {
            Some(left) => Queue::was_served(memory, *layout).then_some(left.position),
            None if vring.served || self.inflight.is_some() => None,
            None => Queue::position_in_ring(memory, *layout, self.features()),
        }
    }

    fn left_at(&self, index: usize, layout: &Layout) -> Option<&Left> {
        let place = self.place(layout)?;
        let same = |left: &&Left| {
            usize::from(left.index) == index && left.size == layout.size && left.place == place
        };
        self.left.iter().find(same)
    }

    /// Where the three areas lie in which files.
    fn place(&self, layout: &Layout) -> Option<[(FileId, u64); 3]> {
        let in_file = |gpa: u64| {
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
