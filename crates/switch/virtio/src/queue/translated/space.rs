//! I/O virtual addresses.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use memory::iotlb::{Access, Iotlb, Miss, Need};
use memory::{GuestMemory, REGION_PAGE, Segment};

use super::area::PagedArea;
use super::block_cache::{self, Block, BlockCache};
use crate::queue::area::fetch_words;
use crate::queue::descriptor::DESC_LEN;
use crate::queue::space::{Gap, Lack, Lookup, Space};
use crate::queue::{MAX_CHAIN_BYTES, QueueFault};

/// The address space of a guest with an IOMMU.
#[derive(Debug)]
pub(in crate::queue) struct TranslatedSpace {
    mem: Arc<GuestMemory>,
    iotlb: Arc<Iotlb>,
    /// Blocks that were found for reads.
    read: BlockCache,
    /// Blocks that were found for writes.
    write: BlockCache,
    denials: Cell<Denials>,
    /// Why a chain was left where it is, since [`TranslatedSpace::begin`].
    left: Cell<Option<Gap>>,
    /// There was no room for a question since then.
    full: Cell<bool>,
    /// A table of descriptors could not be read since then.
    unread: Cell<bool>,
    /// Need of the next question since then.
    need: Cell<Need>,
}

/// Meaning of a denial: the front end's answer that it has no mapping for a page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Denials {
    /// It is for a chain that is left where it is for now.
    Keep,
    /// As `Keep`, for chains that are only looked at.
    Ahead,
    /// It is for this chain, which counts as an empty one.
    Count,
    /// It was for an earlier chain, and the guest may have mapped the page since: it is asked for
    /// again.
    Stale,
}

/// Returns the access to a buffer.
#[inline(always)]
fn access_to(writable: bool) -> Access {
    if writable {
        Access::WRITE
    } else {
        Access::READ
    }
}

impl TranslatedSpace {
    pub(in crate::queue) fn new(mem: Arc<GuestMemory>, iotlb: Arc<Iotlb>) -> Self {
        Self {
            mem,
            iotlb,
            read: BlockCache::new(),
            write: BlockCache::new(),
            denials: Cell::new(Denials::Stale),
            left: Cell::new(None),
            full: Cell::new(false),
            unread: Cell::new(false),
            need: Cell::new(Need::Ahead),
        }
    }

    /// Empties the caches of the table.
    pub(super) fn forget(&self) {
        self.read.forget();
        self.write.forget();
    }

    /// Begins to take chains, or to look at them.
    pub(super) fn begin(&self, denials: Denials) {
        self.denials.set(denials);
        self.need.set(match denials {
            Denials::Ahead => Need::Ahead,
            Denials::Keep | Denials::Count | Denials::Stale => Need::Now,
        });
        self.left.set(None);
        self.full.set(false);
        self.unread.set(false);
    }

    /// Returns why a chain was left where it is, since [`TranslatedSpace::begin`].
    pub(super) fn why_left(&self) -> Option<Gap> {
        self.left.get()
    }

    /// Returns whether a table of descriptors could not be read since [`TranslatedSpace::begin`].
    pub(super) fn is_unread(&self) -> bool {
        self.unread.get()
    }

    /// Returns whether there was no room for a question since [`TranslatedSpace::begin`].
    pub(super) fn is_full(&self) -> bool {
        self.full.get()
    }

    /// Asks for a page of a chain. Only the first that a chain lacks is needed now: one that is
    /// denied decides about the chain, so chains of many pages leave room for those of others.
    fn ask(&self, miss: Miss) {
        if !self.iotlb.ask(miss, self.need.replace(Need::Ahead)) {
            self.full.set(true);
        }
    }

    /// Looks a buffer up in the table, and keeps its block for the next one.
    #[cold]
    #[inline(never)]
    fn look_up(&self, addr: u64, len: u32, writable: bool) -> Option<Segment> {
        if len == 0 {
            return None;
        }
        let access = access_to(writable);
        let hit = self.iotlb.look_up(addr, access)?;
        if u64::from(len) > hit.len {
            return self.join(addr, len, access);
        }
        let (iova, gpa) = (addr - hit.offset, hit.gpa - hit.offset);
        let size = hit.offset + hit.len;
        let whole = u32::try_from(size).ok();
        let Some(whole) = whole.and_then(|size| self.mem.translate(gpa, size)) else {
            return self.mem.translate(hit.gpa, len);
        };
        let block = Block {
            iova,
            len: size,
            ptr: whole.ptr,
            gpa,
        };
        let kept = if writable { &self.write } else { &self.read };
        kept.keep(addr, block);
        block.buffer(addr, len)
    }

    /// Translates a buffer that lies in several blocks, if they are neighbours in memory.
    fn join(&self, addr: u64, len: u32, access: Access) -> Option<Segment> {
        if len > MAX_CHAIN_BYTES {
            return None;
        }
        let mut joined: Option<Segment> = None;
        while let done = joined.map_or(0, |piece| piece.len)
            && done < len
        {
            let at = addr.checked_add(u64::from(done))?;
            let hit = self.iotlb.look_up(at, access)?;
            let part = hit.len.min(u64::from(len - done)) as u32;
            let piece = self.mem.translate(hit.gpa, part)?;
            joined = Some(match joined {
                None => piece,
                Some(before) => follow(before, piece)?,
            });
        }
        joined
    }

    /// Returns the gap at an address that has no translation. Asks for it, unless the front end has
    /// none.
    #[cold]
    fn gap(&self, addr: u64, access: Access) -> Gap {
        let miss = Miss::new(addr, access);
        match self.denials.get() {
            Denials::Count if self.iotlb.take_denial(miss) => return Gap::NotGranted,
            // Bounds the work for a chain of many pages.
            _ if self.full.get() => return Gap::Untranslated,
            Denials::Keep | Denials::Ahead if self.iotlb.is_denied(miss) => return Gap::Denied,
            Denials::Stale => _ = self.iotlb.take_denial(miss),
            Denials::Count | Denials::Keep | Denials::Ahead => {}
        }
        self.ask(miss);
        Gap::Untranslated
    }

    /// Returns the gap where the guest has lost the memory of a page.
    #[cold]
    fn lost(&self) -> Gap {
        match self.denials.get() {
            Denials::Count => Gap::NotGranted,
            Denials::Keep | Denials::Ahead | Denials::Stale => Gap::Denied,
        }
    }

    /// Returns page `number` of a ring's area, if all of the area that it has is granted: its start
    /// here and in guest-physical addresses.
    pub(super) fn ring_page(
        &self,
        addr: u64,
        len: u32,
        number: usize,
        access: Access,
    ) -> Option<(*mut u8, u64)> {
        let page = (addr / REGION_PAGE).checked_add(number as u64)?;
        let start = page.checked_mul(REGION_PAGE)?;
        let end = addr.checked_add(u64::from(len))?;
        let first = start.max(addr);
        let part = end
            .min(start.saturating_add(REGION_PAGE))
            .checked_sub(first)?;
        let Some(hit) = self.iotlb.look_up(first, access) else {
            // One that was denied is asked for when the queue looks again.
            let miss = Miss::new(first, access);
            if !self.iotlb.take_denial(miss) && !self.iotlb.ask(miss, Need::Now) {
                self.full.set(true);
            }
            return None;
        };
        let piece = self.mem.translate(hit.gpa, part as u32)?;
        let before = (first - start) as usize;
        Some((piece.ptr.wrapping_sub(before), hit.gpa - before as u64))
    }
}

/// Returns both pieces as one, if the second follows the first here and in the guest.
fn follow(first: Segment, second: Segment) -> Option<Segment> {
    let follows = first.ptr.wrapping_add(first.len as usize) == second.ptr
        && first.gpa + u64::from(first.len) == second.gpa;
    follows.then(|| Segment {
        len: first.len + second.len,
        ..first
    })
}

/// The cached blocks, for many look-ups in a row. It leaves all others to the look-up of the
/// address space: a loop without a call has all registers.
#[derive(Clone, Copy, Debug)]
pub(in crate::queue) struct View<'a> {
    read: block_cache::View<'a>,
    write: block_cache::View<'a>,
}

impl Lookup for View<'_> {
    #[inline(always)]
    fn buffer(&self, addr: u64, len: u32, writable: bool) -> Option<Segment> {
        let kept = if writable { self.write } else { self.read };
        kept.buffer(addr, len)
    }
}

impl Lookup for TranslatedSpace {
    #[inline]
    fn buffer(&self, addr: u64, len: u32, writable: bool) -> Option<Segment> {
        let kept = self.view().buffer(addr, len, writable);
        kept.or_else(|| self.look_up(addr, len, writable))
    }
}

impl Space for TranslatedSpace {
    const LOOKS_AHEAD: bool = true;

    type Area = PagedArea;
    type View<'a> = View<'a>;

    #[inline(always)]
    fn view(&self) -> View<'_> {
        View {
            read: self.read.view(),
            write: self.write.view(),
        }
    }

    fn memory(&self) -> &Arc<GuestMemory> {
        &self.mem
    }

    fn with_memory(&self, mem: Arc<GuestMemory>) -> Self {
        Self::new(mem, Arc::clone(&self.iotlb))
    }

    fn buffer_into(
        &self,
        addr: u64,
        len: u32,
        writable: bool,
        out: &mut Vec<Segment>,
    ) -> Result<(), Lack> {
        let (before, access) = (out.len(), access_to(writable));
        let (mut at, mut left, mut gap) = (addr, len, None);
        while left > 0 {
            let part = match self.iotlb.look_up(at, access) {
                Some(hit) => {
                    let part = hit.len.min(u64::from(left)) as u32;
                    // The table leads to memory that the guest has no longer: no grant either.
                    let mapped = self.mem.translate_into(hit.gpa, part, out);
                    gap = gap.max((!mapped).then(|| self.lost()));
                    part
                }
                None => {
                    gap = gap.max(Some(self.gap(at, access)));
                    (REGION_PAGE - at % REGION_PAGE).min(u64::from(left)) as u32
                }
            };
            left -= part;
            at = at.wrapping_add(u64::from(part));
        }
        match gap {
            None => Ok(()),
            Some(gap) => {
                out.truncate(before);
                Err(Lack::Gap(gap))
            }
        }
    }

    fn descriptor(&self, addr: u64) -> Result<(u64, u64), Lack> {
        if let Some(piece) = self.buffer(addr, DESC_LEN, false) {
            // SAFETY: the piece is 16 bytes that were found mapped in the memory, which is
            // borrowed.
            return Ok(unsafe { fetch_words(piece.ptr) });
        }
        let mut bytes = [0; DESC_LEN as usize];
        for (i, byte) in (0..).zip(&mut bytes) {
            let at = addr.wrapping_add(i);
            let Some(piece) = self.buffer(at, 1, false) else {
                self.unread.set(true);
                return Err(Lack::Gap(self.gap(at, Access::READ)));
            };
            // SAFETY: as above, for a byte, which is always aligned.
            *byte = unsafe { AtomicU8::from_ptr(piece.ptr) }.load(Ordering::Relaxed);
        }
        let words = u128::from_le_bytes(bytes);
        Ok((words as u64, (words >> 64) as u64))
    }

    fn area(
        &self,
        addr: u64,
        len: u32,
        align: usize,
        access: Access,
    ) -> Result<PagedArea, QueueFault> {
        PagedArea::resolve(self, addr, len, align, access)
    }

    fn left(&self, gap: Gap) {
        self.left.set(Some(gap));
    }

    fn mark(&self, addr: u64, len: u32) {
        let (mut at, mut left) = (addr, u64::from(len));
        while left > 0 {
            let part = (REGION_PAGE - at % REGION_PAGE).min(left);
            if let Some(hit) = self.iotlb.look_up(at, Access::WRITE) {
                self.mem.mark_dirty(hit.gpa, part);
            }
            at = at.wrapping_add(part);
            left -= part;
        }
    }
}
