//! Queues of guests with an IOMMU (virtio 1.3, 6, `VIRTIO_F_ACCESS_PLATFORM`): rings, indirect
//! tables and buffers have I/O virtual addresses, and the guest grants and revokes single pages.
//!
//! It is the code of the other queues over another address space, and none of it is inlined into
//! theirs.
//!
//! **Nothing found in the table is used longer than its grant.** A thread that revokes changes the
//! table, then waits for the queue's present user (`memory::iotlb`). So every operation of a user
//! who has no chains, and staged none, begins with a fence and asks for the table's generation:
//! what was found before a revocation is dropped then, and the rings are looked up again. With
//! chains, the user has been in the queue since before the revocation, and is waited for.
//!
//! **A ring that is revoked suspends the queue** until it is granted again; nothing of it is
//! touched meanwhile. DPDK kept using it (CVE-2026-86567).
//!
//! **A chain that is not translated stays where it is**, its translations are asked for, and those
//! of the chains after it. The queue says that nothing is available until the front end has
//! answered. A chain that is *not granted* is taken as an empty one.

mod area;
mod block_cache;
mod ready;
mod space;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use memory::iotlb::Iotlb;
use memory::{GuestMemory, Segment};

use super::batch::Ring;
use super::packed::PackedQueue;
use super::packed::cursor::Cursor;
use super::space::{Gap, Space};
use super::split::SplitQueue;
use super::{Chain, ChainBatch, Fill, Journal, Limit, QueueFault};

pub(super) use ready::ReadyBuffers;
use space::Denials;
pub(super) use space::TranslatedSpace;

/// Number of further chains to ask for after one that is not translated.
const CHAINS_AHEAD: u16 = 64;
/// Descriptors that are looked at to ask for translations, at most, in a row.
const DESCRIPTORS_AHEAD: u32 = 1024;
/// Time after which rings that were denied are asked for again, seconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A queue of either layout over a table of translations.
#[derive(Debug)]
pub struct TranslatedQueue {
    layout: Layouts,
    iotlb: Arc<Iotlb>,
    /// The table's generation when the rings were looked up.
    generation: u64,
    /// Chains that are taken and not put.
    held: usize,
    /// Whether elements are staged.
    staged: bool,
    /// The rings were found missing.
    suspended: Option<Suspension>,
    /// Why a batch ended before the last available chain, and the number of the answers before
    /// which that was found.
    stopped: Option<(Gap, u64)>,
    /// Chains between the next one and that one, which were taken since and given back.
    before_stop: usize,
    /// Slots of the ring from the next one on that the front end was asked about.
    asked: u16,
    /// The buffers of those that were found, of a queue to the guest.
    ready: ReadyBuffers,
    /// Number of the table's flushes since which chains were looked at ahead.
    flushes: u64,
    /// A table of descriptors was not translated before the answer with this number: its buffers
    /// were not asked for.
    unread_at: Option<u64>,
    /// There was no room for further questions before the answer with this number.
    full_at: Option<u64>,
    scratch: Vec<Segment>,
}

/// When the rings were found missing.
#[derive(Clone, Copy, Debug)]
struct Suspension {
    /// The number of the answers before that.
    answers: u64,
    at: Instant,
}

impl Suspension {
    fn since(answers: u64) -> Self {
        let at = Instant::now();
        Self { answers, at }
    }

    /// Returns whether to look again: the front end has answered something, or has said a while ago
    /// that there is nothing, and the guest may have mapped the rings since.
    fn is_over(self, answers: u64) -> bool {
        self.answers != answers || self.at.elapsed() >= PATIENCE
    }
}

#[derive(Debug)]
pub(super) enum Layouts {
    Split(SplitQueue<TranslatedSpace>),
    Packed(PackedQueue<TranslatedSpace>),
}

/// Calls the same method of either layout.
macro_rules! either {
    ($layout:expr, $q:ident => $call:expr) => {
        match $layout {
            Layouts::Split($q) => $call,
            Layouts::Packed($q) => $call,
        }
    };
}

impl TranslatedQueue {
    pub(super) fn new(layout: Layouts, iotlb: Arc<Iotlb>, generation: u64) -> Self {
        Self {
            layout,
            iotlb,
            generation,
            held: 0,
            staged: false,
            suspended: None,
            stopped: None,
            before_stop: 0,
            asked: 0,
            ready: ReadyBuffers::default(),
            flushes: 0,
            unread_at: None,
            full_at: None,
            scratch: Vec::new(),
        }
    }

    fn space(&self) -> &TranslatedSpace {
        either!(&self.layout, q => q.space())
    }

    /// Makes sure that nothing is used that was revoked; see the module. Returns whether the rings
    /// are there.
    fn renew(&mut self) -> bool {
        if self.held > 0 || self.staged {
            return true;
        }
        // Behind the mark that this queue is in use (the turn of its lock), and before the table.
        fence(Ordering::SeqCst);
        let (generation, answers) = (self.iotlb.generation(), self.iotlb.answers());
        let again = self.suspended.is_some_and(|since| since.is_over(answers));
        if generation != self.generation || again {
            self.generation = generation;
            self.space().forget();
            self.ready.forget_all();
            // A block that lost a page is gone, and so are the pages of buffers beside it.
            self.asked = 0;
            let resolved = either!(&mut self.layout, q => q.resolve_rings());
            self.suspended = resolved.err().map(|_| Suspension::since(answers));
        }
        self.suspended.is_none()
    }

    #[inline(never)]
    pub(super) fn set_memory(&mut self, mem: Arc<GuestMemory>) -> Result<(), QueueFault> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        fence(Ordering::SeqCst);
        let answers = self.iotlb.answers();
        self.generation = self.iotlb.generation();
        either!(&mut self.layout, q => q.replace_memory(mem));
        self.ready.forget_all();
        let resolved = either!(&mut self.layout, q => q.resolve_rings());
        self.suspended = resolved.err().map(|_| Suspension::since(answers));
        Ok(())
    }

    pub(super) fn memory(&self) -> &Arc<GuestMemory> {
        self.space().memory()
    }

    pub(super) fn size(&self) -> u16 {
        either!(&self.layout, q => q.size())
    }

    /// Returns whether the last batch ended at a chain that is not translated, or not granted.
    pub(super) fn is_untranslated(&self) -> bool {
        self.suspended.is_some() || self.stopped.is_some()
    }

    /// Returns whether it ended at a chain that is not granted, after one that is in use.
    pub(super) fn is_denied(&self) -> bool {
        matches!(self.stopped, Some((Gap::Denied, _)))
    }

    /// Returns whether the front end has answered nothing since the last batch ended at a chain
    /// that is not translated.
    fn waits(&self) -> bool {
        let waits = |stopped| self.before_stop == 0 && self.waits_for(stopped);
        self.stopped.is_some_and(waits)
    }

    /// Returns whether it has answered nothing since the batch that ended so.
    fn waits_for(&self, (gap, answers): (Gap, u64)) -> bool {
        gap == Gap::Untranslated && answers == self.iotlb.answers()
    }

    /// Takes the chains before the one that was left, that one, and those after it, as far as they
    /// can be taken.
    fn take_parts<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        let before = into.chains.len();
        let rest = |into: &ChainBatch<'_>| limit.less(Limit::of(&into.chains[before..]));
        self.space().begin(Denials::Stale);
        if let Some(stopped) = self.stopped.take() {
            let chains = limit.chains.min(self.before_stop);
            if chains > 0 {
                self.take_some::<WRITABLE>(into, Limit { chains, ..limit }, prefetch)?;
                self.before_stop -= (into.chains.len() - before).min(self.before_stop);
            }
            if self.space().why_left().is_some() {
                return Ok(());
            }
            if self.before_stop > 0 || rest(into).is_reached() || self.waits_for(stopped) {
                self.stopped = Some(stopped);
                return Ok(());
            }
            let is_first = self.held == 0 && into.chains.len() == before;
            self.take_left::<WRITABLE>(into, prefetch, !WRITABLE || is_first)?;
            if self.space().why_left().is_some() || rest(into).is_reached() {
                return Ok(());
            }
            self.space().begin(Denials::Stale);
        }
        let mut rest = rest(into);
        if WRITABLE {
            rest = self.take_ready(into, rest, prefetch);
            if rest.is_reached() {
                return Ok(());
            }
        }
        self.take_some::<WRITABLE>(into, rest, prefetch)
    }

    fn take_some<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        let before = self.position();
        let result = either!(&mut self.layout, q => q.take_all::<WRITABLE>(into, limit, prefetch));
        self.pass(before);
        result
    }

    /// Notes that the slots from the position `before` to the present one were taken.
    fn pass(&mut self, before: u32) {
        let slots = self.slots(before, self.position());
        self.asked = self.asked.saturating_sub(slots);
    }

    /// Notes that `slots` further slots were looked at.
    fn has_looked_at(&mut self, slots: u16) {
        self.asked = self.asked.saturating_add(slots).min(self.size());
    }

    /// Takes the chain that ended the last batch. It alone may count as an empty one. If it is to
    /// the guest, it is put at once then, so it must be the first in use.
    fn take_left<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        prefetch: &impl Fn(&Segment),
        may_drop: bool,
    ) -> Result<(), QueueFault> {
        self.space().begin(if may_drop {
            Denials::Count
        } else {
            Denials::Keep
        });
        let before = into.chains.len();
        let one = Limit {
            chains: 1,
            bytes: u64::MAX,
        };
        let result = self.take_some::<WRITABLE>(into, one, prefetch);
        if WRITABLE
            && let Some(&chain) = into.chains[before..].first()
            && chain.bytes == 0
        {
            into.chains.truncate(before);
            either!(&mut self.layout, q => q.put(chain, 0));
            self.staged = true;
        }
        result
    }

    /// Looks at the chains up to slot `end` that were not looked at yet, while each is one buffer
    /// with a cached translation.
    #[inline(always)]
    fn look_ahead<const WRITABLE: bool>(&mut self, end: u16) {
        let most = end.saturating_sub(self.asked);
        let mut note = self.ready.note();
        let found = |slot, id, buffer| {
            if WRITABLE {
                note(slot, id, buffer);
            }
        };
        // Nearly always all.
        self.asked += either!(&self.layout, q => q.look_ahead::<WRITABLE>(self.asked, most, found));
    }

    /// Asks for missing translations of up to `most` available chains that were not looked at yet.
    #[inline(never)]
    fn ask_ahead<const WRITABLE: bool>(&mut self, most: u16) {
        let available = match &self.layout {
            Layouts::Split(queue) => queue.available(),
            Layouts::Packed(queue) => queue.size(),
        };
        let end = available.min(self.asked.saturating_add(most));
        let mut left = DESCRIPTORS_AHEAD;
        // Before the questions: the last answer may come between one that finds no room and here.
        let answers = self.iotlb.answers();
        self.space().begin(Denials::Ahead);
        loop {
            self.look_ahead::<WRITABLE>(end);
            if self.asked >= end || left == 0 {
                break;
            }
            let Some(descriptors) = self.ask_for_next::<WRITABLE>(answers) else {
                break;
            };
            left = left.saturating_sub(descriptors);
        }
        if self.space().is_unread() {
            self.unread_at = Some(answers);
        }
    }

    /// Asks for the missing translations of the next chain that was not looked at yet. Returns the
    /// number of its descriptors; `None` if there is no such chain, or no room for questions until
    /// the number of the answers is another one than `answers`.
    #[cold]
    #[inline(never)]
    fn ask_for_next<const WRITABLE: bool>(&mut self, answers: u64) -> Option<u32> {
        let scratch = &mut self.scratch;
        let (slots, descriptors) = match &self.layout {
            Layouts::Split(queue) => (1, queue.ask_for(self.asked, WRITABLE, scratch)),
            Layouts::Packed(queue) => queue.ask_for(self.asked, WRITABLE, scratch)?,
        };
        if self.space().is_full() {
            // The rest is asked for after an answer.
            self.full_at = Some(answers);
            return None;
        }
        let (before, slot) = (self.asked, either!(&self.layout, q => q.slot(self.asked)));
        // It may have been found in the table, and is kept now.
        self.look_ahead::<WRITABLE>(before + 1);
        if self.asked == before {
            self.ready.forget(slot, slots);
            self.has_looked_at(slots);
        }
        Some(descriptors)
    }

    /// Takes buffers that were looked up ahead. Returns the rest of the limit.
    fn take_ready(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit {
        let ahead = Limit {
            chains: limit.chains.min(self.asked.into()),
            ..limit
        };
        let (before, ready) = (self.position(), &self.ready);
        let taken = either!(&mut self.layout, q => q.take_ready(ready, into, ahead, prefetch));
        self.pass(before);
        limit.less(taken)
    }

    /// Asks for translations of buffers that the guest has offered since the last time, so that
    /// they are there when a frame needs them.
    pub(super) fn ask_for_buffers(&mut self, most: u16) {
        let flushes = self.iotlb.flushes();
        let answers = self.iotlb.answers();
        let may_read = self.unread_at.take_if(|at| *at != answers).is_some();
        if mem::replace(&mut self.flushes, flushes) != flushes || may_read {
            self.asked = 0;
        }
        // The writer may also have taken misses that need no answer.
        let waits = self.full_at == Some(answers);
        let is_full = waits && !self.iotlb.misses().has_room_ahead();
        if !is_full && self.fault().is_none() && self.renew() {
            self.ready.resize(self.size());
            self.ask_ahead::<true>(most);
        }
    }

    #[inline(never)]
    pub(super) fn untake(&mut self, chains: &[Chain]) {
        let before = self.position();
        either!(&mut self.layout, q => q.untake(chains));
        self.held = self.held.saturating_sub(chains.len());
        let slots = self.slots(self.position(), before);
        self.has_looked_at(slots);
        // Some of them may have been taken from the ring.
        let slot = either!(&self.layout, q => q.slot(0));
        self.ready.forget(slot, slots);
        if self.stopped.is_some() {
            self.before_stop += chains.len();
        }
    }

    /// Takes chains as [`Ring::take_all`] does.
    #[cold]
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
    #[cold]
    #[inline(never)]
    pub(super) fn fill<F: Fill>(&mut self, chains: &[Chain], mut fill: F) -> (usize, F) {
        let count = self.put_filled(chains, &mut fill);
        (count, fill)
    }

    fn has_put(&mut self, chains: usize) {
        self.held = self.held.saturating_sub(chains);
        self.staged |= chains > 0;
    }

    #[inline(never)]
    pub(super) fn expect_used(&mut self, count: u16) {
        if self.renew() {
            either!(&self.layout, q => q.expect_used(count));
        }
    }

    #[inline(never)]
    pub(super) fn publish(&mut self) {
        if mem::take(&mut self.staged) {
            either!(&mut self.layout, q => q.publish());
        }
    }

    #[inline(never)]
    pub(super) fn wants_notify(&mut self) -> bool {
        self.renew() && either!(&self.layout, q => q.wants_notify())
    }

    #[inline(never)]
    pub(super) fn needs_notify(&mut self) -> bool {
        self.renew() && either!(&mut self.layout, q => q.needs_notify())
    }

    pub(super) fn unnotified(&self) -> u32 {
        either!(&self.layout, q => q.unnotified())
    }

    #[inline(never)]
    pub(super) fn waiting(&mut self) -> bool {
        self.renew() && !self.waits() && either!(&self.layout, q => q.waiting())
    }

    #[inline(never)]
    pub(super) fn available(&mut self) -> u16 {
        if !self.renew() {
            return 0;
        }
        match &self.layout {
            Layouts::Split(queue) => queue.available(),
            Layouts::Packed(queue) if queue.waiting() => queue.size(),
            Layouts::Packed(_) => 0,
        }
    }

    #[inline(never)]
    pub(super) fn set_kicks(&mut self, on: bool) -> bool {
        self.renew() && either!(&mut self.layout, q => q.set_kicks(on)) && !self.waits()
    }

    #[inline(never)]
    pub(super) fn set_kick_threshold(&mut self, chains: u16) -> Option<bool> {
        if !self.renew() {
            return Some(false);
        }
        let available = either!(&mut self.layout, q => q.set_kick_threshold(chains))?;
        Some(available && !self.waits())
    }

    pub(super) fn position(&self) -> u32 {
        either!(&self.layout, q => q.position())
    }

    /// Returns the number of slots between two positions.
    fn slots(&self, from: u32, to: u32) -> u16 {
        let (from, to) = (from as u16, to as u16);
        match &self.layout {
            Layouts::Split(_) => to.wrapping_sub(from),
            Layouts::Packed(queue) => {
                Cursor::from_bits(from).distance(Cursor::from_bits(to), queue.size())
            }
        }
    }

    pub(super) fn set_journal(&mut self, journal: Option<Journal>) {
        if let Layouts::Packed(queue) = &mut self.layout {
            queue.set_journal(journal);
        }
    }
}

impl Ring for TranslatedQueue {
    #[inline(never)]
    fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        let mut chains = Vec::new();
        let mut into = ChainBatch {
            segs,
            chains: &mut chains,
        };
        let limit = Limit {
            chains: 1,
            bytes: u64::MAX,
        };
        self.take_all::<WRITABLE>(&mut into, limit, |_| ())?;
        Ok(chains.pop())
    }

    /// Its chains are taken by `take_all`.
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        _into: &mut ChainBatch<'_>,
        _limit: Limit,
        _prefetch: &impl Fn(&Segment),
    ) -> Limit {
        Limit::default()
    }

    #[inline(never)]
    fn take_all<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        if !self.renew() || self.waits() {
            return self.fault().map_or(Ok(()), Err);
        }
        let answers = self.iotlb.answers();
        let before = into.chains.len();
        let result = self.take_parts::<WRITABLE>(into, limit, &prefetch);
        self.held += into.chains.len() - before;
        if let Some(gap) = self.space().why_left() {
            (self.stopped, self.before_stop) = (Some((gap, answers)), 0);
            // From the start: the chains after it may have lost their translations, too.
            self.asked = 0;
            self.ask_ahead::<WRITABLE>(CHAINS_AHEAD);
        }
        result
    }

    #[inline(never)]
    fn put(&mut self, chain: Chain, written: u32) {
        either!(&mut self.layout, q => q.put(chain, written));
        self.has_put(1);
    }

    #[inline(never)]
    fn put_filled(&mut self, chains: &[Chain], fill: &mut impl Fill) -> usize {
        let count = either!(&mut self.layout, q => q.put_filled(chains, fill));
        self.has_put(count);
        count
    }

    #[inline(never)]
    fn put_for_all(&mut self, chains: &[Chain], last: Chain) {
        either!(&mut self.layout, q => q.put_for_all(chains, last));
        self.has_put(chains.len());
    }

    #[inline(never)]
    fn put_read(&mut self, chains: &[Chain]) {
        either!(&mut self.layout, q => q.put_read(chains));
        self.has_put(chains.len());
    }

    fn in_order(&self) -> bool {
        either!(&self.layout, q => q.in_order())
    }

    fn fault(&self) -> Option<QueueFault> {
        either!(&self.layout, q => q.fault())
    }
}
