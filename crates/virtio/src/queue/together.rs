//! Many chains at a time: what both layouts do alike, put together from what each does in its own way.

use super::{Chain, QueueFault, Segment};

/// A piece of memory more in a chain takes as long as so many bytes more: a batch in many pieces ends sooner, and the list of its
/// pieces stays short.
const PIECE: u64 = 128;

/// Where chains go that are taken together: the caller's arena and list.
#[derive(Debug)]
pub struct Taken<'a> {
    /// The arena that buffers are appended to.
    pub segs: &'a mut Vec<Segment>,
    /// The list that chains are appended to.
    pub chains: &'a mut Vec<Chain>,
}

impl Taken<'_> {
    /// Appends what `next` yields, chains of one buffer each: up to `most` of them, or until they hold `enough`
    /// bytes. Returns how much it was.
    #[inline(always)]
    pub(super) fn plain(
        &mut self,
        most: usize,
        enough: u64,
        mut next: impl FnMut(u16) -> Option<(u16, Segment)>,
    ) -> Limit {
        self.segs.reserve(most);
        self.chains.reserve(most);
        let (first_seg, first_chain) = (self.segs.len(), self.chains.len());
        let segs = &mut self.segs.spare_capacity_mut()[..most];
        let chains = &mut self.chains.spare_capacity_mut()[..most];
        let (mut count, mut bytes) = (0, 0);
        while count < most && bytes < enough {
            let Some((id, segment)) = next(count as u16) else {
                break;
            };
            segs[count].write(segment);
            chains[count].write(Chain::of_one(id, (first_seg + count) as u32, segment));
            bytes += u64::from(segment.len);
            count += 1;
        }
        // SAFETY: the first `count` of the spare places of both were written to.
        unsafe {
            self.segs.set_len(first_seg + count);
            self.chains.set_len(first_chain + count);
        }
        Limit {
            chains: count,
            bytes,
        }
    }

    /// Appends a chain whose buffers are in the arena already, and names its first buffer.
    #[inline]
    fn push(&mut self, chain: Chain) -> Option<&Segment> {
        self.chains.push(chain);
        chain.segs.of(self.segs).first()
    }
}

/// What writes to chains. A trait and no closure, because only of methods can it be said that they are to be inlined.
pub trait Fill {
    /// Writes to a chain. Returns how many bytes, or `None` when it did not write at all and wants to go no further.
    fn fill(&mut self, chain: &Chain) -> Option<u32>;
}

/// When enough has been taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limit {
    /// Chains.
    pub chains: usize,
    /// Bytes after which no further chain is taken; pieces of memory count as bytes, too.
    pub bytes: u64,
}

impl Limit {
    fn is_reached(self) -> bool {
        self.chains == 0 || self.bytes == 0
    }

    /// What is left of it.
    fn less(self, taken: Limit) -> Self {
        Self {
            chains: self.chains.saturating_sub(taken.chains),
            bytes: self.bytes.saturating_sub(taken.bytes),
        }
    }
}

/// What the two layouts do each in its own way, and what both do alike with that.
pub(super) trait Ring {
    /// Takes the next chain, of any kind.
    fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault>;

    /// Takes chains that are one direct descriptor in one region, up to the first that is not, and up to the limit;
    /// `near` is told of each. Returns how much that was: nothing from a queue that has stopped, or that tracks
    /// what is in flight.
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        into: &mut Taken<'_>,
        limit: Limit,
        near: &impl Fn(&Segment),
    ) -> Limit;

    /// Stages one used element.
    fn put(&mut self, chain: Chain, written: u32);

    /// Stages the element of `last`, the last one of `chains`, for all of them, with nothing written.
    fn put_for_all(&mut self, chains: &[Chain], last: Chain);

    /// Whether one element may stand for several chains.
    fn in_order(&self) -> bool;

    fn fault(&self) -> Option<QueueFault>;

    #[inline]
    fn take_all<const WRITABLE: bool>(
        &mut self,
        into: &mut Taken<'_>,
        limit: Limit,
        near: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        let mut left = limit;
        loop {
            left = left.less(self.take_plain::<WRITABLE>(into, left, &near));
            if left.is_reached() {
                return Ok(());
            }
            let Some(chain) = self.take::<WRITABLE>(into.segs)? else {
                return Ok(());
            };
            left = left.less(Limit {
                chains: 1,
                bytes: u64::from(chain.bytes) + u64::from(chain.segs.len - 1) * PIECE,
            });
            into.push(chain).map(&near);
        }
    }

    #[inline(always)]
    fn put_filled(&mut self, chains: &[Chain], fill: &mut impl Fill) -> usize {
        if self.fault().is_some() {
            return 0;
        }
        let mut done = 0;
        for chain in chains {
            let Some(written) = fill.fill(chain) else {
                break;
            };
            self.put(*chain, written);
            done += 1;
        }
        done
    }

    #[inline]
    fn put_read(&mut self, chains: &[Chain]) {
        if self.fault().is_some() {
            return;
        }
        match chains.last() {
            Some(&last) if self.in_order() => self.put_for_all(chains, last),
            _ => chains.iter().for_each(|&chain| self.put(chain, 0)),
        }
    }
}
