//! The packed layout: one ring of descriptors that both sides write (virtio 1.3, section 2.8).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use memory::{GuestMemory, Segment};

use super::descriptor::{Desc, Gather, INDIRECT, KIND, NEXT, WRITE};
use super::event::{Cursor, packed_need_event};
use super::inflight::packed::Tracker;
use super::{Chain, Inflight, Layout, Limit, MAX_CHAIN_BYTES, QueueFault, SegRange, Taken};
use crate::features::Features;

mod ring;
use ring::{AVAIL, EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, Ring, USED, is_available, positions};

/// A packed virtqueue.
#[derive(Debug)]
pub struct PackedQueue {
    ring: Ring,
    size: u16,
    /// The next slot to take from.
    next: Cursor,
    /// The next slot to use, as published.
    used: Cursor,
    /// The next slot to use, staged elements counted.
    staged_to: Cursor,
    /// Slots between `used` and `staged_to`.
    staged: u16,
    /// Flags of the first staged element: written last.
    first_flags: u16,
    /// Slots taken and not yet published as used; never more than `size`.
    in_flight: u16,
    /// Slots published since the last `needs_notify`.
    unnotified: u32,
    /// Whether `needs_notify` has answered yet. What a former life published and did not notify is not
    /// known, so the first answer does not go by the event index.
    asked: bool,
    indirect: bool,
    in_order: bool,
    event_idx: bool,
    kicks: Option<bool>,
    fault: Option<QueueFault>,
    tracker: Option<Box<Tracker>>,
    /// Descriptors of the chain that is being taken, for the tracker.
    scratch: Vec<Desc>,
    mem: Arc<GuestMemory>,
    layout: Layout,
}

impl PackedQueue {
    pub(super) fn new(
        mem: Arc<GuestMemory>,
        layout: Layout,
        features: Features,
        position: u32,
        inflight: Option<Inflight>,
    ) -> Result<Self, QueueFault> {
        let size = layout.size;
        let ring = Ring::resolve(&mem, layout)?;
        let mut tracker = None;
        let (next, used, in_flight) = match inflight {
            None => positions(position, size)?,
            Some(part) => {
                let found = Self::attach(&ring, part, size, position)?;
                tracker = Some(Box::new(found.0));
                found.1
            }
        };
        ring.hide_staged(&mem, used, in_flight);
        Ok(Self {
            ring,
            size,
            next,
            used,
            staged_to: used,
            staged: 0,
            first_flags: 0,
            in_flight,
            unnotified: 0,
            asked: false,
            indirect: features.contains(Features::RING_INDIRECT_DESC),
            in_order: features.contains(Features::IN_ORDER),
            event_idx: features.contains(Features::RING_EVENT_IDX),
            kicks: None,
            fault: None,
            scratch: Vec::with_capacity(tracker.as_ref().map_or(0, |_| usize::from(size))),
            tracker,
            mem,
            layout,
        })
    }

    fn attach(
        ring: &Ring,
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
        match Ring::resolve(&mem, self.layout) {
            Ok(ring) => {
                self.ring = ring;
                self.mem = mem;
                Ok(())
            }
            Err(fault) => Err(self.stop(fault)),
        }
    }

    pub(super) fn memory(&self) -> &Arc<GuestMemory> {
        &self.mem
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    pub(super) fn fault(&self) -> Option<QueueFault> {
        self.fault
    }

    #[cold]
    fn stop(&mut self, fault: QueueFault) -> QueueFault {
        *self.fault.get_or_insert(fault)
    }

    #[inline]
    pub(super) fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.tracker.is_some()
            && let Some(chain) = self.take_pending(WRITABLE, segs)?
        {
            return Ok(Some(chain.lifted()));
        }
        let Some(first) = self.look()? else {
            return Ok(None);
        };
        if self.tracker.is_none()
            && let Some(segment) = self.plain::<WRITABLE>(&first)
        {
            let start = segs.len() as u32;
            segs.push(segment);
            self.next.advance(1, self.size);
            self.in_flight += 1;
            return Ok(Some(Chain {
                id: first.link,
                count: 1,
                segs: SegRange { start, len: 1 },
                bytes: first.len,
            }));
        }
        let chain = self.take_long(first, WRITABLE, segs)?;
        Ok(Some(chain.lifted()))
    }

    #[inline]
    pub(super) fn take_all<const WRITABLE: bool>(
        &mut self,
        into: &mut Taken<'_>,
        limit: Limit,
        near: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        let (mut left, mut bytes) = (limit.chains, 0);
        while left > 0 && bytes < limit.bytes {
            if self.tracker.is_none() && self.fault.is_none() {
                let (count, size) =
                    self.take_plain::<WRITABLE>(into, left, limit.bytes - bytes, &near);
                (left, bytes) = (left - count, bytes + size);
                if left == 0 || bytes >= limit.bytes {
                    return Ok(());
                }
            }
            let Some(chain) = self.take::<WRITABLE>(into.segs)? else {
                return Ok(());
            };
            (left, bytes) = (left - 1, bytes + u64::from(chain.bytes));
            into.push(chain).map(&near);
        }
        Ok(())
    }

    /// Takes available chains that are one direct descriptor in one region, up to the first that is not, and up
    /// to the limits. Returns how many, and their bytes.
    #[inline(always)]
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        into: &mut Taken<'_>,
        most: usize,
        most_bytes: u64,
        near: &impl Fn(&Segment),
    ) -> (usize, u64) {
        let to_write = WRITABLE || !self.in_order;
        let most = most.min(usize::from(self.size.saturating_sub(self.in_flight)));
        let (mut count, mut bytes, mut at) = (0, 0, self.next);
        self.ring.prefetch_first(at.index, to_write);
        while count < most && bytes < most_bytes {
            let flags = self.ring.flags(at.index);
            if !is_available(flags, at.wrap) {
                break;
            }
            self.ring.prefetch_ahead(at.index, to_write);
            let desc = self.ring.descriptor(at.index, flags);
            let Some(segment) = self.plain::<WRITABLE>(&desc) else {
                break;
            };
            near(&segment);
            into.push_plain(desc.link, segment);
            bytes += u64::from(segment.len);
            count += 1;
            at.advance(1, self.size);
        }
        self.next = at;
        self.in_flight += count as u16;
        (count, bytes)
    }

    /// The buffer of a chain that is one direct descriptor in one region.
    #[inline(always)]
    fn plain<const WRITABLE: bool>(&self, desc: &Desc) -> Option<Segment> {
        let flags = if WRITABLE { WRITE } else { 0 };
        if desc.flags & KIND != flags || desc.link >= self.size || desc.len > MAX_CHAIN_BYTES {
            return None;
        }
        self.mem.translate(desc.addr, desc.len)
    }

    /// The descriptor at the next slot, if it is available.
    #[inline]
    fn look(&mut self) -> Result<Option<Desc>, QueueFault> {
        let flags = self.ring.flags(self.next.index);
        if !is_available(flags, self.next.wrap) {
            return Ok(None);
        }
        if self.in_flight >= self.size {
            return Err(self.stop(QueueFault::IndexJump));
        }
        Ok(Some(self.ring.descriptor(self.next.index, flags)))
    }

    #[inline(never)]
    fn take_long(
        &mut self,
        first: Desc,
        writable: bool,
        segs: &mut Vec<Segment>,
    ) -> Result<Chain, QueueFault> {
        let mut kept = std::mem::take(&mut self.scratch);
        let chain = self.walk_ring(first, writable, segs, &mut kept);
        let chain = chain.and_then(|chain| self.track(chain, segs, &kept));
        self.scratch = kept;
        match chain {
            Ok(chain) => {
                self.next.advance(chain.count, self.size);
                self.in_flight += chain.count;
                Ok(chain)
            }
            Err(fault) => Err(self.stop(fault)),
        }
    }

    /// Reads the chain that starts with `first` at the next slot. A tracked queue keeps its descriptors.
    fn walk_ring(
        &self,
        first: Desc,
        writable: bool,
        segs: &mut Vec<Segment>,
        kept: &mut Vec<Desc>,
    ) -> Result<Chain, QueueFault> {
        let keep = self.tracker.is_some();
        kept.clear();
        if keep {
            kept.push(first);
        }
        let mut at = self.next;
        let limit = self.size - self.in_flight;
        self.gather(first, limit, writable, segs, || {
            at.advance(1, self.size);
            let desc = self.ring.descriptor(at.index, self.ring.flags(at.index));
            if keep {
                kept.push(desc);
            }
            Some(desc)
        })
    }

    fn track(
        &mut self,
        chain: Chain,
        segs: &mut Vec<Segment>,
        kept: &[Desc],
    ) -> Result<Chain, QueueFault> {
        if let Some(tracker) = &mut self.tracker {
            if tracker.is_live(chain.id) {
                segs.truncate(chain.segs.start as usize);
                return Err(QueueFault::OfferedTwice);
            }
            tracker.took(kept, chain.id);
        }
        Ok(chain)
    }

    /// Takes the oldest chain that a former process left in flight, from the copies that it kept.
    #[cold]
    fn take_pending(
        &mut self,
        writable: bool,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        let Some(tracker) = self.tracker.as_deref() else {
            return Ok(None);
        };
        let Some(head) = tracker.pending() else {
            return Ok(None);
        };
        let mut at = head;
        let first = tracker.desc(head);
        let chain = self.gather(first, self.size, writable, segs, || {
            at = tracker.after(head, at)?;
            Some(tracker.desc(at))
        });
        let chain = match chain {
            Ok(chain) if tracker.is_chain(chain.id, head, at) => chain,
            Ok(chain) => {
                segs.truncate(chain.segs.start as usize);
                return Err(self.stop(QueueFault::InflightCorrupt));
            }
            Err(fault) => return Err(self.stop(fault)),
        };
        if let Some(tracker) = &mut self.tracker {
            tracker.took_pending();
        }
        Ok(Some(chain))
    }

    /// Collects one chain; `more` gives its second and later descriptors, of which there are fewer than
    /// `limit`.
    fn gather(
        &self,
        first: Desc,
        limit: u16,
        writable: bool,
        segs: &mut Vec<Segment>,
        more: impl FnMut() -> Option<Desc>,
    ) -> Result<Chain, QueueFault> {
        let mut gather = Gather::new(&self.mem, segs, writable);
        let fault = match self.follow(first, limit, &mut gather, more) {
            Ok((count, id)) if id < self.size => {
                let (segs, bytes) = gather.finish();
                return Ok(Chain {
                    id,
                    count,
                    segs,
                    bytes,
                });
            }
            Ok(_) => QueueFault::IdOutOfRange,
            Err(fault) => fault,
        };
        gather.abandon();
        Err(fault)
    }

    /// Walks a chain; returns its slots and its buffer id, which is in the last descriptor.
    fn follow(
        &self,
        first: Desc,
        limit: u16,
        gather: &mut Gather<'_>,
        mut more: impl FnMut() -> Option<Desc>,
    ) -> Result<(u16, u16), QueueFault> {
        if first.flags & INDIRECT != 0 {
            self.follow_table(&first, gather)?;
            return Ok((1, first.link));
        }
        let mut desc = first;
        for count in 1..=limit {
            if desc.flags & INDIRECT != 0 {
                return Err(QueueFault::IndirectWithNext);
            }
            gather.add(&desc)?;
            if desc.flags & NEXT == 0 {
                return Ok((count, desc.link));
            }
            if count < limit {
                desc = more().ok_or(QueueFault::InflightCorrupt)?;
            }
        }
        Err(if limit == self.size {
            QueueFault::DescriptorLoop
        } else {
            QueueFault::IndexJump
        })
    }

    /// All entries of a packed indirect table belong to the chain, in order; of their flags only the
    /// direction counts (section 2.8.7).
    fn follow_table(&self, desc: &Desc, gather: &mut Gather<'_>) -> Result<(), QueueFault> {
        if !self.indirect {
            return Err(QueueFault::IndirectNotNegotiated);
        }
        if desc.flags & NEXT != 0 {
            return Err(QueueFault::IndirectWithNext);
        }
        let table = gather.table(desc)?;
        for at in 0..table.entries() {
            let (addr, rest) = table.entry(at)?;
            let mut entry = Desc::packed(addr, rest);
            if !gather.is_writable() {
                // DPDK's driver marks the header of what it sends as writable (seen in 22.11); reading from a
                // buffer that could be written harms nobody.
                entry.flags &= !WRITE;
            }
            if entry.flags & INDIRECT != 0 {
                return Err(QueueFault::IndirectNested);
            }
            gather.add(&entry)?;
        }
        Ok(())
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

    #[inline(always)]
    pub(super) fn put(&mut self, chain: Chain, written: u32) {
        if self.fault.is_some() {
            return;
        }
        debug_assert!(
            self.staged + chain.count <= self.in_flight,
            "put without take"
        );
        self.stage(chain.id, written, chain.count);
        if let Some(tracker) = &mut self.tracker {
            tracker.staged(chain.id);
        }
    }

    /// Writes a used element that stands for `slots` slots.
    #[inline]
    fn stage(&mut self, id: u16, written: u32, slots: u16) {
        let at = self.staged_to;
        let mut flags = if at.wrap { AVAIL | USED } else { 0 };
        if written > 0 {
            flags |= WRITE;
        }
        if self.staged == 0 {
            self.ring.set_used(at.index, id, written);
            self.first_flags = flags;
        } else {
            self.ring.set_hidden(at.index, id, written, flags);
        }
        self.staged_to.advance(slots, self.size);
        self.staged = self.staged.saturating_add(slots);
    }

    /// Elements go where their descriptors were, which are near since they were taken.
    #[inline]
    pub(super) fn expect_used(&self, _count: u16) {}

    /// Stages chains that were read, in the order in which they were taken. With `IN_ORDER` the last one stands
    /// for all: its element lies where the first one's would.
    #[inline]
    pub(super) fn put_read(&mut self, chains: &[Chain]) {
        let Some(last) = chains.last() else {
            return;
        };
        if !self.in_order || self.tracker.is_some() {
            return chains.iter().for_each(|&chain| self.put(chain, 0));
        }
        if self.fault.is_none() {
            let slots = chains.iter().map(|chain| chain.count).sum();
            self.stage(last.id, 0, slots);
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        if self.staged == 0 || self.fault.is_some() {
            return;
        }
        let from = self.used.index;
        self.used = self.staged_to;
        if let Some(tracker) = &mut self.tracker {
            tracker.before_publish(self.used);
        }
        self.ring.publish_flags(from, self.first_flags);
        if let Some(tracker) = &mut self.tracker {
            tracker.after_publish(self.used);
        }
        if self.mem.log().is_some() {
            self.ring.mark_used(&self.mem, from, self.staged);
        }
        self.in_flight = self.in_flight.saturating_sub(self.staged);
        self.unnotified = self.unnotified.saturating_add(u32::from(self.staged));
        self.staged = 0;
    }

    #[inline]
    pub(super) fn needs_notify(&mut self) -> bool {
        let moved = std::mem::take(&mut self.unnotified);
        if moved == 0 || self.fault.is_some() {
            return false;
        }
        fence(Ordering::SeqCst);
        let asked = std::mem::replace(&mut self.asked, true);
        match self.ring.driver_event() {
            (EVENT_DISABLE, _) => false,
            (EVENT_DESC, event) if self.event_idx && asked => {
                packed_need_event(event, self.used, moved, self.size)
            }
            _ => true,
        }
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
            self.ring.set_device_event(&self.mem, flags, self.next);
        }
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
