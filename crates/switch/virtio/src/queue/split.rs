//! The split layout: descriptor table, available ring, used ring (virtio 1.3, section 2.7).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use memory::{GuestMemory, Segment};
use wire::virtio::features::Features;

use super::area::Area;
use super::descriptor::{Desc, Gather, INDIRECT, KIND, NEXT, WRITE};
use super::event::need_event;
use super::fault::Stop;
use super::inflight::split::Tracker;
use super::space::{Lookup, Space};
use super::translated::ReadyBuffers;
use super::unnotified::UnnotifiedElements;
use super::{Chain, ChainBatch, Inflight, Layout, Limit, MAX_CHAIN_BYTES, QueueFault, Ring};

mod rings;
use rings::Rings;

/// Number of descriptors that are prefetched from the driver's core before they are read.
const DESCRIPTORS_AHEAD: u16 = 8;

/// A split virtqueue.
#[derive(Debug)]
pub struct SplitQueue<S: Space> {
    rings: Rings<S::Area>,
    /// Index of the next chain to take.
    next: u16,
    /// The driver's available index when last read; `next == seen` means: read it again.
    seen: u16,
    /// Published used index.
    used: u16,
    /// Elements written from `used` on and not yet published.
    staged: u16,
    unnotified: UnnotifiedElements,
    indirect: bool,
    in_order: bool,
    event_idx: bool,
    kicks: Option<bool>,
    fault: Option<QueueFault>,
    tracker: Option<Box<Tracker>>,
    space: S,
    layout: Layout,
}

/// Returns the buffer of a chain that is one direct descriptor in one piece.
#[inline(always)]
fn plain<const WRITABLE: bool>(space: &impl Lookup, desc: &Desc) -> Option<Segment> {
    let flags = if WRITABLE { WRITE } else { 0 };
    if desc.flags & KIND != flags || desc.len > MAX_CHAIN_BYTES {
        return None;
    }
    space.buffer(desc.addr, desc.len, WRITABLE)
}

/// Takes chains of one buffer from the position `next` on; `limit` of them have been seen.
#[inline(always)]
fn take_seen<const WRITABLE: bool, S: Space>(
    rings: Rings<impl Area>,
    space: &S,
    next: u16,
    into: &mut ChainBatch<'_>,
    limit: Limit,
    prefetch: &impl Fn(&Segment),
) -> Limit {
    let space = space.view();
    into.plain(limit.chains, limit.bytes, |count| {
        let at = next.wrapping_add(count);
        if !(WRITABLE && S::LOOKS_AHEAD) {
            rings.prefetch_descriptor(at.wrapping_add(DESCRIPTORS_AHEAD));
        }
        let head = rings.available(at);
        let segment = plain::<WRITABLE>(&space, &rings.descriptor(head)?)?;
        prefetch(&segment);
        Some((head, segment))
    })
}

/// Looks at the chains from the position `at` on, up to `most`, while each is one buffer that is
/// found. Calls `found` with their slots, heads and buffers. Returns their number.
#[inline(always)]
fn look_ahead<const WRITABLE: bool>(
    rings: Rings<impl Area>,
    space: impl Lookup,
    at: u16,
    most: u16,
    mut found: impl FnMut(u16, u16, Segment),
) -> u16 {
    let mut count = 0;
    while count < most {
        let at = at.wrapping_add(count);
        let head = rings.available(at);
        let segment = rings
            .descriptor(head)
            .and_then(|desc| plain::<WRITABLE>(&space, &desc));
        let Some(segment) = segment else {
            break;
        };
        found(rings.slot(at) as u16, head, segment);
        count += 1;
    }
    count
}

impl<S: Space> SplitQueue<S> {
    pub(super) fn new(
        space: S,
        layout: Layout,
        features: Features,
        position: u32,
        inflight: Option<Inflight>,
    ) -> Result<Self, QueueFault> {
        if !layout.size.is_power_of_two() {
            return Err(QueueFault::BadSize);
        }
        let mut next = u16::try_from(position).map_err(|_| QueueFault::BadPosition)?;
        let event_idx = features.contains(Features::RING_EVENT_IDX);
        let rings = Rings::resolve(&space, layout, event_idx)?;
        let used = rings.used_index();
        let tracker = match inflight {
            None => None,
            Some(part) => {
                let (tracker, found) = Tracker::attach(part, layout.size, used)?;
                next = found.unwrap_or(next);
                Some(Box::new(tracker))
            }
        };
        if next.wrapping_sub(used) > layout.size {
            return Err(QueueFault::BadPosition);
        }
        Ok(Self {
            rings,
            next,
            seen: next,
            used,
            staged: 0,
            unnotified: UnnotifiedElements::default(),
            indirect: features.contains(Features::RING_INDIRECT_DESC),
            in_order: features.contains(Features::IN_ORDER),
            event_idx,
            kicks: None,
            fault: None,
            tracker,
            space,
            layout,
        })
    }

    /// Returns the used index of the ring at `layout`.
    pub(super) fn used_index(space: &S, layout: Layout) -> Result<u16, QueueFault> {
        if !layout.size.is_power_of_two() {
            return Err(QueueFault::BadSize);
        }
        Ok(Rings::resolve(space, layout, false)?.used_index())
    }

    pub(super) fn set_memory(&mut self, mem: Arc<GuestMemory>) -> Result<(), QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let space = self.space.with_memory(mem);
        match Rings::resolve(&space, self.layout, self.event_idx) {
            Ok(rings) => {
                self.rings = rings;
                self.space = space;
                Ok(())
            }
            Err(fault) => Err(self.stop(fault)),
        }
    }

    /// Sets the memory, and leaves the rings to [`SplitQueue::resolve_rings`].
    pub(super) fn replace_memory(&mut self, mem: Arc<GuestMemory>) {
        self.space = self.space.with_memory(mem);
    }

    /// Looks the addresses of the rings up again.
    pub(super) fn resolve_rings(&mut self) -> Result<(), QueueFault> {
        self.rings = Rings::resolve(&self.space, self.layout, self.event_idx)?;
        // They may be other memory.
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
        self.layout.size
    }

    /// Stops the queue. `seen` falls back to `next`, so that the fast path reads the index again
    /// and finds the fault.
    #[cold]
    fn stop(&mut self, fault: QueueFault) -> QueueFault {
        self.seen = self.next;
        *self.fault.get_or_insert(fault)
    }

    #[cold]
    fn take_tracked<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if let Some(head) = self.tracker.as_ref().and_then(|t| t.pending()) {
            let chain = match self.fetch::<WRITABLE>(head, segs) {
                Ok(chain) => chain,
                Err(stop) => return stop.outcome(),
            };
            self.tracked(Tracker::took_pending);
            return Ok(Some(chain));
        }
        if self.next == self.seen && !self.look()? {
            return Ok(None);
        }
        let head = self.rings.available(self.next);
        if self.tracker.as_ref().is_some_and(|t| t.is_live(head)) {
            return Err(self.stop(QueueFault::OfferedTwice));
        }
        let chain = match self.fetch::<WRITABLE>(head, segs) {
            Ok(chain) => chain,
            Err(stop) => return stop.outcome(),
        };
        self.tracked(|t| t.took(head));
        self.next = self.next.wrapping_add(1);
        Ok(Some(chain))
    }

    #[inline]
    fn tracked(&mut self, note: impl FnOnce(&mut Tracker)) {
        if let Some(tracker) = &mut self.tracker {
            note(tracker);
        }
    }

    /// Reads the driver's available index. The driver can offer no more than the descriptors that
    /// are not in flight. Not inlined: the loop that takes chains needs the registers.
    #[inline(never)]
    fn look(&mut self) -> Result<bool, QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let index = self.rings.available_index();
        let in_flight = self.next.wrapping_sub(self.used);
        if index.wrapping_sub(self.next) > self.layout.size.saturating_sub(in_flight) {
            return Err(self.stop(QueueFault::IndexJump));
        }
        self.seen = index;
        let waiting = index.wrapping_sub(self.next);
        for ahead in 0..waiting.min(DESCRIPTORS_AHEAD) {
            self.rings
                .prefetch_descriptor(self.next.wrapping_add(ahead));
        }
        Ok(waiting != 0)
    }

    /// Reads the chain at `head`. One direct descriptor in one piece is the fast path.
    #[inline]
    fn fetch<const WRITABLE: bool>(
        &mut self,
        head: u16,
        segs: &mut Vec<Segment>,
    ) -> Result<Chain, Stop> {
        let Some(desc) = self.rings.descriptor(head) else {
            return Err(self.stop(QueueFault::HeadOutOfRange).into());
        };
        if let Some(segment) = plain::<WRITABLE>(&self.space, &desc) {
            let start = segs.len() as u32;
            segs.push(segment);
            return Ok(Chain::of_one(head, start, segment));
        }
        let chain = self.fetch_long(head, desc, WRITABLE, segs)?;
        Ok(chain.reload())
    }

    #[inline(never)]
    fn fetch_long(
        &mut self,
        head: u16,
        first: Desc,
        writable: bool,
        segs: &mut Vec<Segment>,
    ) -> Result<Chain, Stop> {
        let mut gather = Gather::new(&self.space, segs, writable);
        if let Err(fault) = self.follow(first, &mut gather) {
            gather.abandon();
            return Err(self.stop(fault).into());
        }
        Chain::gathered(head, 1, gather.finish())
    }

    /// Looks at the chains from `ahead` chains after the next one on, up to `most`, while each is
    /// one buffer that is found. Calls `found` with their slots, heads and buffers. Returns their
    /// number.
    #[inline(always)]
    pub(super) fn look_ahead<const WRITABLE: bool>(
        &self,
        ahead: u16,
        most: u16,
        found: impl FnMut(u16, u16, Segment),
    ) -> u16 {
        let (at, space) = (self.next.wrapping_add(ahead), self.space.view());
        match self.rings.flat() {
            Some(rings) => look_ahead::<WRITABLE>(rings, space, at, most, found),
            None => look_ahead::<WRITABLE>(self.rings.view(), space, at, most, found),
        }
    }

    /// Returns the slot of the chain that is `ahead` chains after the next one.
    pub(super) fn slot(&self, ahead: u16) -> u16 {
        self.rings.slot(self.next.wrapping_add(ahead)) as u16
    }

    /// Takes chains of one buffer that were looked at ahead, as [`Ring::take_plain`] does.
    #[inline(always)]
    pub(super) fn take_ready(
        &mut self,
        ready: &ReadyBuffers,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit {
        let (next, mask) = (self.next, self.layout.size.wrapping_sub(1));
        self.take_available(limit, |_, limit| {
            into.plain(limit.chains, limit.bytes, |count| {
                let (head, segment) = ready.get(next.wrapping_add(count) & mask)?;
                prefetch(&segment);
                Some((head, segment))
            })
        })
    }

    /// Takes chains by `take`, which has the limit, of those only that are available.
    #[inline(always)]
    fn take_available(&mut self, limit: Limit, take: impl FnOnce(&Self, Limit) -> Limit) -> Limit {
        if self.tracker.is_some() || (self.next == self.seen && self.look().is_err()) {
            return Limit::default();
        }
        let limit = Limit {
            chains: usize::from(self.seen.wrapping_sub(self.next)).min(limit.chains),
            ..limit
        };
        let taken = take(self, limit);
        self.next = self.next.wrapping_add(taken.chains as u16);
        taken
    }

    /// Asks for the translations of the chain that is `ahead` chains after the next one, as far as
    /// they are missing. Returns the number of its descriptors. Its faults are found when it is
    /// taken.
    pub(super) fn ask_for(&self, ahead: u16, writable: bool, scratch: &mut Vec<Segment>) -> u32 {
        let head = self.rings.available(self.next.wrapping_add(ahead));
        let Some(first) = self.rings.descriptor(head) else {
            return 0;
        };
        let mut gather = Gather::new(&self.space, scratch, writable);
        let _ = self.follow(first, &mut gather);
        gather.abandon();
        gather.descriptors()
    }

    fn follow(&self, first: Desc, gather: &mut Gather<'_, S>) -> Result<(), QueueFault> {
        let mut desc = first;
        for _ in 0..self.layout.size {
            if desc.flags & INDIRECT != 0 {
                return self.follow_table(&desc, gather);
            }
            gather.add(&desc)?;
            if desc.flags & NEXT == 0 {
                return Ok(());
            }
            desc = self
                .rings
                .descriptor(desc.link)
                .ok_or(QueueFault::NextOutOfRange)?;
        }
        Err(QueueFault::DescriptorLoop)
    }

    fn follow_table(&self, desc: &Desc, gather: &mut Gather<'_, S>) -> Result<(), QueueFault> {
        if !self.indirect {
            return Err(QueueFault::IndirectNotNegotiated);
        }
        if desc.flags & NEXT != 0 {
            return Err(QueueFault::IndirectWithNext);
        }
        let table = gather.table(desc)?;
        let mut at = 0;
        for _ in 0..table.entries() {
            let Some((addr, rest)) = gather.entry(&table, at)? else {
                return Ok(());
            };
            let entry = Desc::split(addr, rest);
            if entry.flags & INDIRECT != 0 {
                return Err(QueueFault::IndirectNested);
            }
            gather.add(&entry)?;
            if entry.flags & NEXT == 0 {
                return Ok(());
            }
            at = u32::from(entry.link);
            if at >= table.entries() {
                return Err(QueueFault::NextOutOfRange);
            }
        }
        Err(QueueFault::DescriptorLoop)
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
            self.next = self.next.wrapping_sub(u16::from(from_ring));
        }
    }

    /// Prefetches the places of the next `count` elements, which are about to be staged.
    #[inline]
    pub(super) fn expect_used(&self, count: u16) {
        let from = self.used.wrapping_add(self.staged);
        self.rings.prefetch_used(from, count);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        if self.staged == 0 || self.fault.is_some() {
            return;
        }
        let from = self.used;
        self.tracked(Tracker::before_publish);
        self.used = from.wrapping_add(self.staged);
        self.rings.publish_used(self.used);
        let used = self.used;
        self.tracked(|t| t.after_publish(used));
        if self.space.memory().log().is_some() {
            self.rings.mark_used(self.space.memory(), from, self.staged);
        }
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
        if !self.event_idx {
            return !self.rings.interrupts_suppressed();
        }
        match self.unnotified.moved().map(u16::try_from) {
            Some(Ok(moved)) => need_event(
                self.rings.used_event(),
                self.used,
                self.used.wrapping_sub(moved),
            ),
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
        if self.event_idx {
            // An event index that was passed asks for no kicks, so nothing need be written for
            // that.
            if on {
                self.rings
                    .set_available_event(self.space.memory(), self.next);
            }
        } else if self.kicks != Some(on) {
            self.rings.set_kicks_suppressed(self.space.memory(), !on);
        }
        self.note_kicks(on)
    }

    pub(super) fn set_kick_threshold(&mut self, chains: u16) -> Option<bool> {
        if self.fault.is_some() || !self.event_idx {
            return None;
        }
        let ahead = chains.clamp(1, self.size()) - 1;
        let event = self.next.wrapping_add(ahead);
        self.rings.set_available_event(self.space.memory(), event);
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
        pending.is_some() || self.rings.available_index() != self.next
    }

    /// Returns the number of available chains, at most as many as there can be.
    pub(super) fn available(&self) -> u16 {
        let ahead = self.rings.available_index().wrapping_sub(self.next);
        ahead.min(self.size())
    }

    pub(super) fn position(&self) -> u32 {
        u32::from(self.next)
    }
}

impl<S: Space> Ring for SplitQueue<S> {
    #[inline]
    fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        if self.tracker.is_some() {
            let chain = self.take_tracked::<WRITABLE>(segs)?;
            return Ok(chain.as_ref().map(Chain::reload));
        }
        if self.next == self.seen && !self.look()? {
            return Ok(None);
        }
        let chain = match self.fetch::<WRITABLE>(self.rings.available(self.next), segs) {
            Ok(chain) => chain,
            Err(stop) => return stop.outcome(),
        };
        self.next = self.next.wrapping_add(1);
        Ok(Some(chain))
    }

    #[inline(always)]
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit {
        let next = self.next;
        // A loop for each kind of rings: the usual kind takes fewer instructions.
        self.take_available(limit, |queue, limit| match queue.rings.flat() {
            Some(rings) => {
                take_seen::<WRITABLE, _>(rings, &queue.space, next, into, limit, prefetch)
            }
            None => {
                let rings = queue.rings.view();
                take_seen::<WRITABLE, _>(rings, &queue.space, next, into, limit, prefetch)
            }
        })
    }

    #[inline(always)]
    fn put(&mut self, chain: Chain, written: u32) {
        let at = self.used.wrapping_add(self.staged);
        debug_assert!(
            at != self.next || self.tracker.is_some(),
            "put without take"
        );
        self.rings.set_used(at, chain.id, written);
        self.staged += 1;
        if let Some(tracker) = &mut self.tracker {
            tracker.staged(chain.id);
        }
    }

    #[inline]
    fn put_for_all(&mut self, chains: &[Chain], last: Chain) {
        let at = self.used.wrapping_add(self.staged);
        self.rings.set_used(at, last.id, 0);
        self.staged += chains.len() as u16;
    }

    #[inline]
    fn in_order(&self) -> bool {
        self.in_order && self.tracker.is_none()
    }

    fn fault(&self) -> Option<QueueFault> {
        self.fault
    }
}
