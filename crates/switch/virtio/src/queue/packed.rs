//! The packed layout: one ring of descriptors that both sides write (virtio 1.3, section 2.8).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use memory::GuestMemory;
use wire::virtio::features::Features;

use super::descriptor::{Desc, WRITE};

use super::inflight::packed::Tracker;
use super::space::Space;
use super::unnotified::UnnotifiedElements;
use super::{Chain, Inflight, Journal, Layout, QueueFault};

pub(super) mod cursor;
mod recover;
mod ring;
mod take;
use cursor::{Cursor, packed_need_event};
use ring::{
    AVAIL, EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, Element, Ring, USED, is_available, positions,
};

/// A packed virtqueue.
#[derive(Debug)]
pub struct PackedQueue<S: Space> {
    ring: Ring<S::Area>,
    size: u16,
    /// The next slot to take from.
    next: Cursor,
    /// The next slot to use, as published.
    used: Cursor,
    /// The next slot to use, staged elements counted.
    staged_to: Cursor,
    /// Slots between `used` and `staged_to`.
    staged: u16,
    /// The first staged element in its final form: written last, whole.
    first: Element,
    /// Record of the position for a successor of this process.
    journal: Option<Journal>,
    /// Slots taken and not yet published as used; never more than `size`.
    in_flight: u16,
    unnotified: UnnotifiedElements,
    indirect: bool,
    in_order: bool,
    event_idx: bool,
    kicks: Option<bool>,
    fault: Option<QueueFault>,
    tracker: Option<Box<Tracker>>,
    /// Descriptors of the chain that is being taken, for the tracker.
    scratch: Vec<Desc>,
    space: S,
    layout: Layout,
}

impl<S: Space> PackedQueue<S> {
    pub(super) fn new(
        space: S,
        layout: Layout,
        features: Features,
        position: u32,
        inflight: Option<Inflight>,
    ) -> Result<Self, QueueFault> {
        let size = layout.size;
        let ring = Ring::resolve(&space, layout)?;
        let mut tracker = None;
        let (next, used, in_flight) = match inflight {
            None => positions(position, size)?,
            Some(part) => {
                let found = Self::attach(&ring, part, size, position)?;
                tracker = Some(Box::new(found.0));
                found.1
            }
        };
        ring.hide_staged(space.memory(), used, in_flight);
        Ok(Self {
            ring,
            size,
            next,
            used,
            staged_to: used,
            staged: 0,
            first: Element::default(),
            journal: None,
            in_flight,
            unnotified: UnnotifiedElements::default(),
            indirect: features.contains(Features::RING_INDIRECT_DESC),
            in_order: features.contains(Features::IN_ORDER),
            event_idx: features.contains(Features::RING_EVENT_IDX),
            kicks: None,
            fault: None,
            scratch: Vec::with_capacity(tracker.as_ref().map_or(0, |_| usize::from(size))),
            tracker,
            space,
            layout,
        })
    }

    fn attach(
        ring: &Ring<S::Area>,
        part: Inflight,
        size: u16,
        position: u32,
    ) -> Result<(Tracker, (Cursor, Cursor, u16)), QueueFault> {
        let start = positions(position, size);
        let used = start.map_or(
            Cursor {
                index: 0,
                wrap: true,
            },
            |(_, used, _)| used,
        );
        let used_up = |at: Cursor| !is_available(ring.flags(at.index), at.wrap);
        let (tracker, found) = Tracker::attach(part, size, used, used_up)?;
        let Some((used, slots)) = found else {
            return Ok((tracker, start?));
        };
        let mut next = used;
        next.advance(slots, size);
        Ok((tracker, (next, used, slots)))
    }

    pub(super) fn set_memory(&mut self, mem: Arc<GuestMemory>) -> Result<(), QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let space = self.space.with_memory(mem);
        match Ring::resolve(&space, self.layout) {
            Ok(ring) => {
                self.ring = ring;
                self.space = space;
                Ok(())
            }
            Err(fault) => Err(self.stop(fault)),
        }
    }

    /// Sets the memory, and leaves the ring to [`PackedQueue::resolve_rings`].
    pub(super) fn replace_memory(&mut self, mem: Arc<GuestMemory>) {
        self.space = self.space.with_memory(mem);
    }

    /// Looks the addresses of the ring up again.
    pub(super) fn resolve_rings(&mut self) -> Result<(), QueueFault> {
        self.ring = Ring::resolve(&self.space, self.layout)?;
        // It may be other memory.
        self.kicks = None;
        Ok(())
    }

    pub(super) fn space(&self) -> &S {
        &self.space
    }

    pub(super) fn memory(&self) -> &Arc<GuestMemory> {
        self.space.memory()
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    #[cold]
    fn stop(&mut self, fault: QueueFault) -> QueueFault {
        *self.fault.get_or_insert(fault)
    }

    pub(super) fn untake(&mut self, chains: &[Chain]) {
        if self.fault.is_some() {
            return;
        }
        for chain in chains.iter().rev() {
            let from_ring = match &mut self.tracker {
                Some(tracker) => tracker.untook(chain.id),
                None => true,
            };
            if from_ring {
                self.next.retreat(chain.count, self.size);
                self.in_flight = self.in_flight.saturating_sub(chain.count);
            }
        }
    }

    /// Writes a used element that stands for `slots` slots.
    #[inline(always)]
    fn stage(&mut self, id: u16, written: u32, slots: u16) {
        let at = self.staged_to;
        let mut flags = if at.wrap { AVAIL | USED } else { 0 };
        if written > 0 {
            flags |= WRITE;
        }
        let element = Element {
            len: written,
            id,
            flags,
        };
        if self.staged == 0 {
            self.first = element;
        } else {
            self.ring
                .set_hidden(at.index, element, self.journal.as_ref());
        }
        self.staged_to.advance(slots, self.size);
        self.staged = self.staged.saturating_add(slots);
    }

    /// Elements go where their descriptors were, which have been in the cache since they were
    /// taken.
    #[inline]
    pub(super) fn expect_used(&self, _count: u16) {}

    #[inline]
    pub(super) fn publish(&mut self) {
        if self.staged == 0 || self.fault.is_some() {
            return;
        }
        let from = self.used.index;
        if let Some(journal) = &self.journal {
            journal.moves(self.used, self.staged_to);
        }
        self.used = self.staged_to;
        if let Some(tracker) = &mut self.tracker {
            tracker.before_publish(self.used);
        }
        self.ring.publish_element(from, self.first);
        if let Some(tracker) = &mut self.tracker {
            tracker.after_publish(self.used);
        }
        if self.space.memory().log().is_some() {
            self.ring.mark_used(self.space.memory(), from, self.staged);
        }
        self.in_flight = self.in_flight.saturating_sub(self.staged);
        self.unnotified.add(self.staged);
        self.staged = 0;
    }

    #[inline]
    pub(super) fn unnotified(&self) -> u32 {
        self.unnotified.count()
    }

    #[inline]
    pub(super) fn wants_notify(&self) -> bool {
        if self.unnotified.count() == 0 || self.fault.is_some() {
            return false;
        }
        fence(Ordering::SeqCst);
        match (self.ring.driver_event(), self.unnotified.moved()) {
            ((EVENT_DISABLE, _), _) => false,
            ((EVENT_DESC, event), Some(moved)) if self.event_idx => {
                packed_need_event(event, self.used, moved, self.size)
            }
            _ => true,
        }
    }

    #[inline]
    pub(super) fn needs_notify(&mut self) -> bool {
        let wants = self.wants_notify();
        self.unnotified.answered();
        wants
    }

    pub(super) fn set_kicks(&mut self, on: bool) -> bool {
        if self.fault.is_some() {
            return false;
        }
        let flags = match (on, self.event_idx) {
            (false, _) => EVENT_DISABLE,
            (true, false) => EVENT_ENABLE,
            (true, true) => EVENT_DESC,
        };
        if flags == EVENT_DESC || self.kicks != Some(on) {
            self.ring
                .set_device_event(self.space.memory(), flags, self.next);
        }
        self.note_kicks(on)
    }

    pub(super) fn set_kick_threshold(&mut self, chains: u16) -> Option<bool> {
        if self.fault.is_some() || !self.event_idx {
            return None;
        }
        let mut event = self.next;
        event.advance(chains.clamp(1, self.size) - 1, self.size);
        self.ring
            .set_device_event(self.space.memory(), EVENT_DESC, event);
        Some(self.note_kicks(true))
    }

    /// Notes what was asked of the driver. Returns whether a chain is available already.
    fn note_kicks(&mut self, on: bool) -> bool {
        self.kicks = Some(on);
        if !on {
            return false;
        }
        fence(Ordering::SeqCst);
        self.waiting()
    }

    pub(super) fn waiting(&self) -> bool {
        let pending = self.tracker.as_ref().and_then(|t| t.pending());
        pending.is_some() || is_available(self.ring.flags(self.next.index), self.next.wrap)
    }

    pub(super) fn position(&self) -> u32 {
        u32::from(self.next.bits()) | u32::from(self.used.bits()) << 16
    }
}
