//! Batches of chains: the part that both layouts share, built on each layout's own operations.

use super::{Chain, QueueFault, Segment};

/// Cost of one more piece of memory in a chain, in bytes: a batch of many pieces ends sooner, and
/// its list of pieces stays short.
const PIECE: u64 = 128;

/// Destination of a batch of chains: the caller's arena and list.
#[derive(Debug)]
pub struct ChainBatch<'a> {
    /// The arena that buffers are appended to.
    pub segs: &'a mut Vec<Segment>,
    /// The list that chains are appended to.
    pub chains: &'a mut Vec<Chain>,
}

impl ChainBatch<'_> {
    /// Returns the same destination once more.
    #[inline(always)]
    pub(super) fn again(&mut self) -> ChainBatch<'_> {
        ChainBatch {
            segs: self.segs,
            chains: self.chains,
        }
    }

    /// Appends chains of one buffer each that `next` yields, until there are `most` of them or they
    /// hold `enough` bytes. Returns the amount.
    #[inline(always)]
    pub(super) fn plain(
        &mut self,
        most: usize,
        enough: u64,
        mut next: impl FnMut(u16) -> Option<(u16, Segment)>,
    ) -> Limit {
        let most = if enough > 0 { most } else { 0 };
        self.segs.reserve(most);
        self.chains.reserve(most);
        let (first_seg, first_chain) = (self.segs.len(), self.chains.len());
        let segs = &mut self.segs.spare_capacity_mut()[..most];
        let chains = &mut self.chains.spare_capacity_mut()[..most];
        let (mut count, mut left) = (0, enough);
        while count < most {
            let Some((id, segment)) = next(count as u16) else {
                break;
            };
            segs[count].write(segment);
            chains[count].write(Chain::of_one(id, (first_seg + count) as u32, segment));
            count += 1;
            // Wraps around in the last turn only, as does the sum below.
            let before = left;
            left = left.wrapping_sub(u64::from(segment.len));
            if before <= u64::from(segment.len) {
                break;
            }
        }
        let bytes = enough.wrapping_sub(left);
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

    /// Appends a chain after its buffers, which are in the arena already. Returns its first buffer.
    #[inline]
    fn push(&mut self, chain: Chain) -> Option<&Segment> {
        self.chains.push(chain);
        chain.segs.of(self.segs).first()
    }
}

/// Writer of chains. It is a trait, not a closure, because only methods can be marked `inline`.
pub trait Fill {
    /// Writes to a chain. Returns the number of bytes, or `None` when nothing was written and the
    /// batch ends here.
    fn fill(&mut self, chain: &Chain) -> Option<u32>;

    /// Returns whether the frame of the chain that was filled last continues in the next one.
    #[inline(always)]
    fn more(&self) -> bool {
        false
    }
}

/// Returns the cost of a chain, in bytes.
#[inline(always)]
fn cost(chain: &Chain) -> u64 {
    u64::from(chain.bytes) + u64::from(chain.segs.len.saturating_sub(1)) * PIECE
}

/// Limit of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limit {
    /// Chains.
    pub chains: usize,
    /// Bytes after which no further chain is taken; pieces of memory count as bytes, too.
    pub bytes: u64,
}

impl Limit {
    /// Returns the amount that chains are.
    pub(super) fn of(chains: &[Chain]) -> Self {
        Self {
            chains: chains.len(),
            bytes: chains.iter().map(cost).sum(),
        }
    }

    pub(super) fn is_reached(self) -> bool {
        self.chains == 0 || self.bytes == 0
    }

    /// Returns the rest of the limit.
    pub(super) fn less(self, taken: Limit) -> Self {
        Self {
            chains: self.chains.saturating_sub(taken.chains),
            bytes: self.bytes.saturating_sub(taken.bytes),
        }
    }
}

/// Operations of one layout, and the batch operations that both layouts share.
pub(super) trait Ring {
    /// Takes the next chain, of any kind.
    fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault>;

    /// Takes chains that are one direct descriptor in one region, up to the first that is not, and
    /// up to the limit; calls `prefetch` with the buffer of each. Returns the amount: nothing from
    /// a queue that has stopped, or that tracks chains in flight.
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit;

    /// Stages one used element.
    fn put(&mut self, chain: Chain, written: u32);

    /// Stages the element of `last`, the last one of `chains`, for all of them, with nothing
    /// written.
    fn put_for_all(&mut self, chains: &[Chain], last: Chain);

    /// Returns whether one element may stand for several chains.
    fn in_order(&self) -> bool;

    fn fault(&self) -> Option<QueueFault>;

    #[inline]
    fn take_all<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        let mut left = limit;
        loop {
            left = left.less(self.take_plain::<WRITABLE>(into, left, &prefetch));
            if left.is_reached() {
                return Ok(());
            }
            let Some(chain) = self.take::<WRITABLE>(into.segs)? else {
                return Ok(());
            };
            left = left.less(Limit {
                chains: 1,
                bytes: cost(&chain),
            });
            into.push(chain).map(&prefetch);
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
