//! Slot queues: an array of slots in one order, between a process and the switch.
//!
//! Processes attach with memif or with the netmap API (Garzarella, Lettieri, Rizzo, "Virtual device
//! passthrough for high speed VM networking", sections 2.3 and 3.1). Both have the same ring: an
//! array of slots that the client gives to the switch in order and gets back in order. The two
//! differ in the bytes of a slot and in the place of the indices, which is a [`Format`].
//!
//! ```text
//!        tail              next             head
//!  ...----|-----------------|----------------|----...   free-running, modulo 2^16
//!           taken or staged      available
//! ```
//!
//! The client owns and moves `head`, the switch owns and moves `tail`, in both directions: slots
//! from the client have frames, slots to it have empty buffers. `head - tail` is at most the number
//! of slots, a power of two. One store of `tail` publishes a batch, and a process that resumes the
//! queue continues at `tail`, so there is no journal and no in-flight area.
//!
//! A frame from the client may have several slots, [`MAX_SLOTS_PER_FRAME`] at most. The last of
//! them may not be there yet: then the queue waits for it, and asks for a kick after the slots that
//! it has seen. Each slot to the client is a chain of its own, as a receive buffer of virtio is,
//! and [`Fill::more`] says whether its frame continues in the next.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use memory::copy::prefetch_line;
use memory::{GuestMemory, Segment, View};

use super::area::{Area, FlatArea, alive};
use super::descriptor::{Desc, Gather, NEXT};
use super::fault::Stop;
use super::unnotified::UnnotifiedElements;
use super::{Chain, ChainBatch, Fill, Layout, Limit, QueueFault, Ring};

pub(super) mod memif;
pub(crate) mod netmap;

/// Most slots of one frame (netmap: `NETMAP_MAX_FRAGS`).
pub const MAX_SLOTS_PER_FRAME: u16 = 64;

/// Number of slots that are prefetched from the client's core before they are read.
const SLOTS_AHEAD: u16 = 32;
/// Slots of 16 bytes in a cache line.
const SLOTS_IN_A_LINE: usize = 4;

/// The format of a slot queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotFormat {
    /// Slots of netmap (`struct netmap_slot`), with Lasthop's lines of indices.
    Netmap,
    /// Descriptors of memif 2.0 (`memif_desc_t`), with its header of a ring.
    Memif {
        /// The direction of the ring: server to client.
        to_client: bool,
    },
}

/// Offset of `tail` in the device area.
const AT_TAIL: usize = 0;
/// Bytes of a slot in either format.
const SLOT: usize = 16;

/// The resolved areas of a queue. Invariant, set up by `resolve`: `size` is a power of two, there
/// are as many slots, the lines are as long as their format says, and all of it is mapped and
/// aligned; the queue keeps the memory that they lie in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    slots: FlatArea,
    /// The line that the client writes.
    driver: FlatArea,
    /// The line that the switch writes; it begins with `tail`.
    device: FlatArea,
    /// `size - 1`: masks a position to a slot.
    mask: usize,
}

impl Places {
    /// Resolves the areas of `layout`: the lines have these lengths and alignments, in bytes.
    fn resolve(
        mem: &GuestMemory,
        layout: Layout,
        slot_align: usize,
        driver: (u32, usize),
        device: (u32, usize),
    ) -> Result<Self, QueueFault> {
        let slots = SLOT as u32 * u32::from(layout.size);
        Ok(Self {
            slots: FlatArea::resolve(mem, layout.desc, slots, slot_align)?,
            driver: FlatArea::resolve(mem, layout.driver, driver.0, driver.1)?,
            device: FlatArea::resolve(mem, layout.device, device.0, device.1)?,
            mask: usize::from(layout.size.wrapping_sub(1)),
        })
    }

    /// Returns the offset of the slot at this position.
    #[inline(always)]
    fn offset(&self, at: u16) -> usize {
        SLOT * (usize::from(at) & self.mask)
    }
}

/// The slots of a queue in memory, and the lines of its indices. An implementation resolves its
/// areas once. Positions are free-running.
pub(super) trait Format: Sized {
    /// Resolves the areas of `layout`, and reads the parameters that the client set up: once, or
    /// takes them from `before`, which had the same layout.
    fn resolve(
        mem: &GuestMemory,
        layout: Layout,
        before: Option<&Self>,
    ) -> Result<Self, QueueFault>;

    /// Returns the bytes of each frame's header.
    fn header(&self) -> u32;

    /// Returns the areas.
    fn places(&self) -> &Places;

    /// Offset of `head` in the driver area.
    const AT_HEAD: usize;

    /// Returns the client's `head`; all that was written before it is visible.
    #[inline]
    fn head(&self) -> u16 {
        // SAFETY: the field lies in the area, by the invariant of `Places`.
        u16::from_le(unsafe { self.places().driver.u16(Self::AT_HEAD) }.load(Acquire))
    }

    /// Returns the published `tail`, as a process left it there.
    fn tail(&self) -> u16 {
        // SAFETY: as in `head`.
        u16::from_le(unsafe { self.places().device.u16(AT_TAIL) }.load(Relaxed))
    }

    /// Publishes `tail`, in one store.
    #[inline]
    fn publish(&self, tail: u16) {
        if alive() {
            // SAFETY: as in `head`.
            unsafe { self.places().device.u16(AT_TAIL) }.store(tail.to_le(), Release);
        }
    }

    /// Prefetches the slot at `at`.
    #[inline]
    fn prefetch(&self, at: u16) {
        let places = self.places();
        prefetch_line(places.slots.line_of(places.offset(at)));
    }

    /// Returns the buffer of the slot at `at`, if it is a frame of one slot (`WRITABLE`: a buffer)
    /// without a fault. The slot is fetched once.
    fn plain<const WRITABLE: bool>(&self, mem: &View<'_>, at: u16) -> Option<Segment>;

    /// Returns the slot at `at`, fetched once and checked. `NEXT` of its flags says that the frame
    /// continues in the next slot.
    fn slot<const WRITABLE: bool>(&self, at: u16) -> Result<Desc, QueueFault>;

    /// Writes the result for the slot at `at`: the bytes of its part of a frame, and whether the
    /// frame continues. Fields that have the value already are not written, because a cache line
    /// that is only read stays with the client's core.
    fn set_written(places: &Places, at: u16, len: u32, more: bool);

    /// Returns whether the client wants a call when `tail` has moved on to `tail` by `moved`. With
    /// `None` it is not known by how much.
    fn wants_call(&self, tail: u16, moved: Option<u16>) -> bool;

    /// Requests a kick when `head` passes `event`, or no kicks.
    fn request_kicks(&self, event: Option<u16>);

    /// Returns whether kicks can be requested for several slots together.
    const KICK_EVENT: bool;
}

/// A queue of slots.
#[derive(Debug)]
pub struct SlotQueue<F> {
    format: F,
    /// Position of the next slot to take.
    next: u16,
    /// The client's `head` when last read; `next == seen` means: read it again.
    seen: u16,
    /// Published `tail`.
    tail: u16,
    /// Slots from `tail` on that are done and not published.
    staged: u16,
    /// The `head` that still lacks the last frame's last slot.
    incomplete: Option<u16>,
    unnotified: UnnotifiedElements,
    kicks: Option<bool>,
    fault: Option<QueueFault>,
    mem: Arc<GuestMemory>,
    layout: Layout,
}

#[expect(private_bounds, reason = "the formats are those of this module")]
impl<F: Format> SlotQueue<F> {
    /// Creates a queue that continues at the `tail` in memory.
    pub(super) fn new(mem: Arc<GuestMemory>, layout: Layout) -> Result<Self, QueueFault> {
        if !layout.size.is_power_of_two() {
            return Err(QueueFault::BadSize);
        }
        let format = F::resolve(&mem, layout, None)?;
        let tail = format.tail();
        Ok(Self {
            format,
            next: tail,
            seen: tail,
            tail,
            staged: 0,
            incomplete: None,
            unnotified: UnnotifiedElements::default(),
            kicks: None,
            fault: None,
            mem,
            layout,
        })
    }

    pub(super) fn set_memory(&mut self, mem: Arc<GuestMemory>) -> Result<(), QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        match F::resolve(&mem, self.layout, Some(&self.format)) {
            Ok(format) => {
                self.format = format;
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
        self.layout.size
    }

    pub(super) fn header(&self) -> u32 {
        self.format.header()
    }

    /// Stops the queue. `seen` falls back to `next`, so that the fast path reads `head` again and
    /// finds the fault.
    #[cold]
    fn stop(&mut self, fault: QueueFault) -> QueueFault {
        self.seen = self.next;
        *self.fault.get_or_insert(fault)
    }

    /// Reads the client's `head`. Returns whether slots are available.
    fn look(&mut self) -> Result<bool, QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let head = self.format.head();
        let in_use = self.next.wrapping_sub(self.tail);
        if head.wrapping_sub(self.next) > self.layout.size.saturating_sub(in_use) {
            return Err(self.stop(QueueFault::IndexJump));
        }
        self.seen = head;
        let waiting = head.wrapping_sub(self.next);
        for ahead in (0..waiting.min(SLOTS_AHEAD)).step_by(SLOTS_IN_A_LINE) {
            self.format.prefetch(self.next.wrapping_add(ahead));
        }
        Ok(waiting != 0)
    }

    /// Takes the next frame or buffer, of any kind.
    #[inline(never)]
    fn take_long<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        if self.next == self.seen && !self.look()? {
            return Ok(None);
        }
        let mut gather = Gather::new(&self.mem, segs, WRITABLE);
        let count = match Self::follow::<WRITABLE>(&self.format, self.next, self.seen, &mut gather)
        {
            Ok(Some(count)) => count,
            Ok(None) => {
                gather.abandon();
                return self.wait_for_the_rest();
            }
            Err(fault) => {
                gather.abandon();
                return Err(self.stop(fault));
            }
        };
        let chain = Chain::gathered(self.next, count, gather.finish());
        self.next = self.next.wrapping_add(count);
        chain.map_or_else(Stop::outcome, |chain| Ok(Some(chain)))
    }

    /// Collects the slots of a frame, or one buffer. Returns their number; `None` when the last one
    /// is missing.
    fn follow<const WRITABLE: bool>(
        format: &F,
        next: u16,
        head: u16,
        gather: &mut Gather<'_, Arc<GuestMemory>>,
    ) -> Result<Option<u16>, QueueFault> {
        let available = head.wrapping_sub(next);
        for count in 1..=available {
            if count > MAX_SLOTS_PER_FRAME {
                return Err(QueueFault::ChainTooLong);
            }
            let slot = format.slot::<WRITABLE>(next.wrapping_add(count - 1))?;
            // A slot without bytes is a frame too short for a header, or a part of one.
            if slot.len > 0 {
                gather.add(&slot)?;
            }
            if WRITABLE || slot.flags & NEXT == 0 {
                return Ok(Some(count));
            }
        }
        Ok(None)
    }

    /// Leaves the slots of an incomplete frame to the next look: a client may publish a frame in
    /// parts. One that can never be complete stops the queue.
    #[cold]
    fn wait_for_the_rest(&mut self) -> Result<Option<Chain>, QueueFault> {
        let found = self.seen;
        // A netmap client never hands out the last slot.
        if self.next == self.tail && found.wrapping_sub(self.tail) >= self.layout.size - 1 {
            return Err(self.stop(QueueFault::ChainFillsRing));
        }
        self.look()?;
        if self.seen != found {
            // More came meanwhile: the next batch finds it, so a client cannot keep us here.
            self.incomplete = None;
        } else {
            self.incomplete = Some(found);
        }
        self.seen = self.next;
        Ok(None)
    }

    /// Takes chains as [`Ring::take_all`] does. Not inlined, as [`SlotQueue::fill`]: a loop that
    /// shares its function with those of other queues has fewer registers.
    #[inline(never)]
    pub(super) fn take_many<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        self.take_all::<WRITABLE>(into, limit, prefetch)
    }

    /// Stages chains as [`Ring::put_filled`] does.
    #[inline(never)]
    pub(super) fn fill<W: Fill>(&mut self, chains: &[Chain], mut fill: W) -> (usize, W) {
        let count = self.put_filled(chains, &mut fill);
        (count, fill)
    }

    pub(super) fn untake(&mut self, chains: &[Chain]) {
        if self.fault.is_some() {
            return;
        }
        if let Some(first) = chains.first() {
            (self.next, self.seen) = (first.id, first.id);
            self.incomplete = None;
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        if self.staged == 0 || self.fault.is_some() {
            return;
        }
        self.tail = self.tail.wrapping_add(self.staged);
        self.format.publish(self.tail);
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
        fence(SeqCst);
        let moved = self.unnotified.moved().map(u16::try_from);
        self.format
            .wants_call(self.tail, moved.and_then(Result::ok))
    }

    #[inline]
    pub(super) fn needs_notify(&mut self) -> bool {
        let wants = self.wants_notify();
        self.unnotified.answered();
        wants
    }

    /// Returns the `head` from which on new slots make a difference.
    fn awaited(&self) -> u16 {
        self.incomplete.unwrap_or(self.next)
    }

    pub(super) fn set_kicks(&mut self, on: bool) -> bool {
        if self.fault.is_some() {
            return false;
        }
        // An event index that was passed asks for no kicks; a flag holds until it is changed.
        if on || (!F::KICK_EVENT && self.kicks != Some(false)) {
            self.format.request_kicks(on.then(|| self.awaited()));
        }
        self.note_kicks(on)
    }

    pub(super) fn set_kick_threshold(&mut self, slots: u16) -> Option<bool> {
        if self.fault.is_some() || !F::KICK_EVENT {
            return None;
        }
        let ahead = slots.clamp(1, self.size()) - 1;
        self.format
            .request_kicks(Some(self.awaited().wrapping_add(ahead)));
        Some(self.note_kicks(true))
    }

    /// Notes the request. Returns whether slots are available already.
    fn note_kicks(&mut self, on: bool) -> bool {
        self.kicks = Some(on);
        if !on {
            return false;
        }
        fence(SeqCst);
        self.waiting()
    }

    pub(super) fn waiting(&self) -> bool {
        self.format.head() != self.awaited()
    }

    pub(super) fn position(&self) -> u32 {
        u32::from(self.next)
    }
}

impl<F: Format> Ring for SlotQueue<F> {
    #[inline]
    fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        let chain = self.take_long::<WRITABLE>(segs)?;
        Ok(chain.as_ref().map(Chain::reload))
    }

    #[inline(always)]
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit {
        if self.next == self.seen && self.look().is_err() {
            return Limit::default();
        }
        let (format, mem, next) = (&self.format, self.mem.view(), self.next);
        let most = usize::from(self.seen.wrapping_sub(next)).min(limit.chains);
        let taken = into.plain(most, limit.bytes, |count| {
            let at = next.wrapping_add(count);
            let segment = format.plain::<WRITABLE>(&mem, at)?;
            prefetch(&segment);
            Some((at, segment))
        });
        self.next = next.wrapping_add(taken.chains as u16);
        if taken.chains > 0 {
            self.incomplete = None;
        }
        taken
    }

    #[inline(always)]
    fn put(&mut self, chain: Chain, written: u32) {
        if written > 0 {
            F::set_written(self.format.places(), chain.id, written, false);
        }
        self.staged += chain.count;
    }

    #[inline(always)]
    fn put_filled(&mut self, chains: &[Chain], fill: &mut impl Fill) -> usize {
        if self.fault.is_some() {
            return 0;
        }
        // A copy, which the loop reads once: see `memory::View`.
        let places = *self.format.places();
        let mut done = 0;
        for chain in chains {
            let Some(written) = fill.fill(chain) else {
                break;
            };
            F::set_written(&places, chain.id, written, fill.more());
            done += 1;
        }
        // Each chain to the client is one slot.
        self.staged += done as u16;
        done
    }

    #[inline]
    fn put_for_all(&mut self, _chains: &[Chain], last: Chain) {
        let end = last.id.wrapping_add(last.count);
        self.staged = end.wrapping_sub(self.tail);
    }

    #[inline]
    fn in_order(&self) -> bool {
        true
    }

    fn fault(&self) -> Option<QueueFault> {
        self.fault
    }
}
