//! Taking of chains from the ring: one by one, or in batches.

use memory::Segment;

use super::PackedQueue;
use super::cursor::Cursor;
use super::ring::{Ring, is_available};
use crate::queue::area::Area;
use crate::queue::descriptor::{Desc, Gather, INDIRECT, KIND, NEXT, WRITE};
use crate::queue::fault::Stop;
use crate::queue::space::{Lookup, Space};
use crate::queue::translated::ReadyBuffers;
use crate::queue::{self, Chain, ChainBatch, Limit, MAX_CHAIN_BYTES, QueueFault};

impl<S: Space> queue::Ring for PackedQueue<S> {
    #[inline]
    fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        let chain = self.take_any::<WRITABLE>(segs)?;
        Ok(chain.as_ref().map(Chain::reload))
    }

    #[inline(always)]
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit {
        let to_write = WRITABLE || !self.in_order;
        // A loop for each kind of ring: the usual kind takes fewer instructions.
        self.take_free(limit, |queue, at, limit| {
            let space = queue.space.view();
            match queue.ring.flat() {
                Some(ring) => {
                    take_seen::<WRITABLE>(ring, space, at, to_write, into, limit, prefetch)
                }
                None => {
                    let ring = queue.ring.view();
                    take_seen::<WRITABLE>(ring, space, at, to_write, into, limit, prefetch)
                }
            }
        })
    }

    #[inline(always)]
    fn put(&mut self, chain: Chain, written: u32) {
        debug_assert!(
            self.staged + chain.count <= self.in_flight,
            "put without take"
        );
        self.stage(chain.id, written, chain.count);
        if let Some(tracker) = &mut self.tracker {
            tracker.staged(chain.id);
        }
    }

    #[inline]
    fn put_for_all(&mut self, chains: &[Chain], last: Chain) {
        let slots = chains.iter().map(|chain| chain.count).sum();
        self.stage(last.id, 0, slots);
    }

    #[inline]
    fn in_order(&self) -> bool {
        self.in_order && self.tracker.is_none()
    }

    fn fault(&self) -> Option<QueueFault> {
        self.fault
    }
}

/// Takes chains of one buffer from the slot `next` on, and advances it.
#[inline(always)]
fn take_seen<const WRITABLE: bool>(
    ring: Ring<impl Area>,
    space: impl Lookup,
    next: &mut Cursor,
    to_write: bool,
    into: &mut ChainBatch<'_>,
    limit: Limit,
    prefetch: &impl Fn(&Segment),
) -> Limit {
    let (mut at, size) = (*next, ring.size());
    ring.prefetch_first(at.index, to_write);
    let taken = into.plain(limit.chains, limit.bytes, |_| {
        let flags = ring.flags(at.index);
        if !is_available(flags, at.wrap) {
            return None;
        }
        ring.prefetch_ahead(at.index, to_write);
        let desc = ring.descriptor(at.index, flags);
        let segment = plain::<WRITABLE>(&space, size, &desc)?;
        prefetch(&segment);
        at.advance(1, size);
        Some((desc.link, segment))
    });
    *next = at;
    taken
}

/// Looks at the slots from `at` on, up to `most`, while each is one available buffer that is found.
/// Calls `found` with the slots, buffer ids and buffers. Returns their number.
#[inline(always)]
fn look_ahead<const WRITABLE: bool>(
    ring: Ring<impl Area>,
    space: impl Lookup,
    mut at: Cursor,
    most: u16,
    mut found: impl FnMut(u16, u16, Segment),
) -> u16 {
    let (size, mut count) = (ring.size(), 0);
    while count < most {
        let flags = ring.flags(at.index);
        if !is_available(flags, at.wrap) {
            break;
        }
        let desc = ring.descriptor(at.index, flags);
        let Some(segment) = plain::<WRITABLE>(&space, size, &desc) else {
            break;
        };
        found(at.index, desc.link, segment);
        at.advance(1, size);
        count += 1;
    }
    count
}

/// Returns the buffer of a chain that is one direct descriptor in one piece, in a ring of `size`
/// slots.
#[inline(always)]
fn plain<const WRITABLE: bool>(space: &impl Lookup, size: u16, desc: &Desc) -> Option<Segment> {
    let flags = if WRITABLE { WRITE } else { 0 };
    if desc.flags & KIND != flags || desc.link >= size || desc.len > MAX_CHAIN_BYTES {
        return None;
    }
    space.buffer(desc.addr, desc.len, WRITABLE)
}

impl<S: Space> PackedQueue<S> {
    /// Takes the next chain. Not inlined: the loop that takes plain ones needs the registers.
    #[inline(never)]
    fn take_any<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.tracker.is_some()
            && let Some(taken) = self.take_pending(WRITABLE, segs)
        {
            return match taken {
                Ok(chain) => Ok(Some(chain)),
                Err(stop) => stop.outcome(),
            };
        }
        let Some(first) = self.look()? else {
            return Ok(None);
        };
        if self.tracker.is_none()
            && let Some(segment) = plain::<WRITABLE>(&self.space, self.size, &first)
        {
            let start = segs.len() as u32;
            segs.push(segment);
            self.next.advance(1, self.size);
            self.in_flight += 1;
            return Ok(Some(Chain::of_one(first.link, start, segment)));
        }
        match self.take_long(first, WRITABLE, segs) {
            Ok(chain) => Ok(Some(chain)),
            Err(stop) => stop.outcome(),
        }
    }

    /// Returns the descriptor at the next slot, if it is available.
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
    ) -> Result<Chain, Stop> {
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
            Err(Stop::Fault(fault)) => Err(self.stop(fault).into()),
            Err(Stop::Untranslated) => Err(Stop::Untranslated),
        }
    }

    /// Reads the chain that starts with `first` at the next slot. A tracked queue records its
    /// descriptors.
    fn walk_ring(
        &self,
        first: Desc,
        writable: bool,
        segs: &mut Vec<Segment>,
        kept: &mut Vec<Desc>,
    ) -> Result<Chain, Stop> {
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
    ) -> Result<Chain, Stop> {
        if let Some(tracker) = &mut self.tracker {
            if tracker.is_live(chain.id) {
                segs.truncate(chain.segs.start as usize);
                return Err(QueueFault::OfferedTwice.into());
            }
            tracker.took(kept, chain.id);
        }
        Ok(chain)
    }

    /// Takes the oldest chain that a former process left in flight, from the recorded copies;
    /// `None` without such a chain.
    #[cold]
    fn take_pending(
        &mut self,
        writable: bool,
        segs: &mut Vec<Segment>,
    ) -> Option<Result<Chain, Stop>> {
        let tracker = self.tracker.as_deref()?;
        let head = tracker.pending()?;
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
                return Some(Err(self.stop(QueueFault::InflightCorrupt).into()));
            }
            Err(Stop::Fault(fault)) => return Some(Err(self.stop(fault).into())),
            Err(Stop::Untranslated) => return Some(Err(Stop::Untranslated)),
        };
        if let Some(tracker) = &mut self.tracker {
            tracker.took_pending();
        }
        Some(Ok(chain))
    }

    /// Looks at the slots from `ahead` slots after the next one on, up to `most`, while each is one
    /// available buffer that is found. Calls `found` with the slots, buffer ids and buffers.
    /// Returns their number.
    #[inline(always)]
    pub(in crate::queue) fn look_ahead<const WRITABLE: bool>(
        &self,
        ahead: u16,
        most: u16,
        found: impl FnMut(u16, u16, Segment),
    ) -> u16 {
        let (mut at, space) = (self.next, self.space.view());
        at.advance(ahead, self.size);
        match self.ring.flat() {
            Some(ring) => look_ahead::<WRITABLE>(ring, space, at, most, found),
            None => look_ahead::<WRITABLE>(self.ring.view(), space, at, most, found),
        }
    }

    /// Returns the slot that is `ahead` slots after the next one.
    pub(in crate::queue) fn slot(&self, ahead: u16) -> u16 {
        let mut at = self.next;
        at.advance(ahead, self.size);
        at.index
    }

    /// Takes chains of one buffer that were looked at ahead, as [`queue::Ring::take_plain`] does.
    #[inline(always)]
    pub(in crate::queue) fn take_ready(
        &mut self,
        ready: &ReadyBuffers,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit {
        let size = self.size;
        self.take_free(limit, |_, at, limit| {
            into.plain(limit.chains, limit.bytes, |_| {
                let (id, segment) = ready.get(at.index)?;
                prefetch(&segment);
                at.advance(1, size);
                Some((id, segment))
            })
        })
    }

    /// Takes chains of one buffer by `take`, which advances the position, and has the limit: no
    /// more than there may be beside those in flight.
    #[inline(always)]
    fn take_free(
        &mut self,
        limit: Limit,
        take: impl FnOnce(&Self, &mut Cursor, Limit) -> Limit,
    ) -> Limit {
        if self.tracker.is_some() || self.fault.is_some() {
            return Limit::default();
        }
        let free = usize::from(self.size.saturating_sub(self.in_flight));
        let limit = Limit {
            chains: limit.chains.min(free),
            ..limit
        };
        let mut at = self.next;
        let taken = take(self, &mut at, limit);
        self.next = at;
        self.in_flight += taken.chains as u16;
        taken
    }

    /// Asks for the translations of the chain `ahead` slots after the next one, if it is available,
    /// as far as they are missing. Returns the number of its slots and of its descriptors; `None`
    /// without such a chain. Its faults are found when it is taken.
    pub(in crate::queue) fn ask_for(
        &self,
        ahead: u16,
        writable: bool,
        scratch: &mut Vec<Segment>,
    ) -> Option<(u16, u32)> {
        let mut at = self.next;
        at.advance(ahead, self.size);
        let flags = self.ring.flags(at.index);
        if !is_available(flags, at.wrap) {
            return None;
        }
        let first = self.ring.descriptor(at.index, flags);
        let mut gather = Gather::new(&self.space, scratch, writable);
        let followed = self.follow(first, self.size, &mut gather, || {
            at.advance(1, self.size);
            let flags = self.ring.flags(at.index);
            Some(self.ring.descriptor(at.index, flags))
        });
        gather.abandon();
        let descriptors = gather.descriptors();
        followed.ok().map(|(slots, _)| (slots, descriptors))
    }

    /// Collects one chain; `more` returns its second and later descriptors, fewer than `limit`.
    fn gather(
        &self,
        first: Desc,
        limit: u16,
        writable: bool,
        segs: &mut Vec<Segment>,
        more: impl FnMut() -> Option<Desc>,
    ) -> Result<Chain, Stop> {
        let mut gather = Gather::new(&self.space, segs, writable);
        let fault = match self.follow(first, limit, &mut gather, more) {
            Ok((count, id)) if id < self.size => {
                return Chain::gathered(id, count, gather.finish());
            }
            Ok(_) => QueueFault::IdOutOfRange,
            Err(fault) => fault,
        };
        gather.abandon();
        Err(fault.into())
    }

    /// Walks a chain; returns its slots and its buffer id, which is in the last descriptor.
    fn follow(
        &self,
        first: Desc,
        limit: u16,
        gather: &mut Gather<'_, S>,
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

    /// Reads a packed indirect table: all its entries belong to the chain, in order; of their flags
    /// only the direction counts (section 2.8.7).
    fn follow_table(&self, desc: &Desc, gather: &mut Gather<'_, S>) -> Result<(), QueueFault> {
        if !self.indirect {
            return Err(QueueFault::IndirectNotNegotiated);
        }
        if desc.flags & NEXT != 0 {
            return Err(QueueFault::IndirectWithNext);
        }
        let table = gather.table(desc)?;
        for at in 0..table.entries() {
            let Some((addr, rest)) = gather.entry(&table, at)? else {
                return Ok(());
            };
            let mut entry = Desc::packed(addr, rest);
            if !gather.is_writable() {
                // DPDK's driver marks the header of frames that it sends as writable (seen in
                // 22.11); reading from a buffer that could be written does no harm.
                entry.flags &= !WRITE;
            }
            if entry.flags & INDIRECT != 0 {
                return Err(QueueFault::IndirectNested);
            }
            gather.add(&entry)?;
        }
        Ok(())
    }
}
