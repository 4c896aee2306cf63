//! From-guest direction: leasing the frames that a guest sends.

use memory::Segment;
use memory::copy::{load_words, prefetch};
use port::{Batch, DropReason, MAX_FRAME, Offload, Whole};
use virtio::features::Features;
use virtio::queue::{Chain, Limit, Taken};

use super::{GuestFault, GuestQueue, header};

/// Length of an Ethernet header, the minimum of a frame.
const MIN_FRAME: u32 = 14;

impl GuestQueue {
    /// Fills a batch in two passes: first all chains are taken, so that the heads of all frames are
    /// prefetched from the guest's core together.
    pub(super) fn lease(&mut self, features: Features, batch: &mut Batch) {
        if self.fault.is_some() {
            return;
        }
        let limit = batch.limit();
        let limit = Limit {
            chains: limit.frames,
            bytes: limit.bytes,
        };
        let mut taken = Taken {
            segs: batch.segments_mut(),
            chains: &mut self.chains,
        };
        if let Err(fault) = self.queue.take_all_readable(&mut taken, limit, prefetch) {
            self.fault = Some(fault.into());
        }
        self.used |= !self.chains.is_empty();
        if batch.budget().is_some() {
            return self.lease_within_budget(features, batch);
        }
        let mut at = 0;
        while at < self.chains.len() {
            at += lease_wholes(&self.chains[at..], self.header, self.enabled, batch);
            let Some(chain) = self.chains.get(at) else {
                return;
            };
            if let Err(fault) = lease_one(chain, self.header, features, self.enabled, batch) {
                self.fault = Some(fault);
                return self.leave_from(at);
            }
            at += 1;
        }
    }

    /// Fills a batch frame by frame, as far as its rate limit budget allows.
    #[cold]
    fn lease_within_budget(&mut self, features: Features, batch: &mut Batch) {
        for at in 0..self.chains.len() {
            let before = batch.frames().len();
            let chain = &self.chains[at];
            if let Err(fault) = lease_one(chain, self.header, features, self.enabled, batch) {
                self.fault = Some(fault);
                return self.leave_from(at);
            }
            // A dropped frame is already part of the budget.
            if batch.frames().len() > before && !batch.keeps_last() {
                return self.leave_from(at);
            }
        }
    }

    /// Returns the chains from this one on to the guest, not processed.
    #[cold]
    fn leave_from(&mut self, at: usize) {
        self.queue.untake(&self.chains[at..]);
        self.chains.truncate(at);
    }

    /// Returns all leased chains to the guest as if they had not been taken.
    pub(super) fn untake_leases(&mut self) {
        self.queue.untake(&self.chains);
        self.chains.clear();
    }

    /// Completes all leased chains.
    pub(super) fn end_leases(&mut self) {
        self.queue.put_read(&self.chains);
        self.chains.clear();
        self.queue.publish();
        if self.queue.needs_notify() {
            self.notify();
        }
    }
}

/// Makes frames of chains with one buffer and no offload, the most common case, up to the first one
/// of another kind. Returns their number.
#[inline(always)]
fn lease_wholes(chains: &[Chain], header: u32, enabled: bool, batch: &mut Batch) -> usize {
    if !enabled {
        return 0;
    }
    // SAFETY: the segments were translated by the queue, whose memory is held until the batch is
    // released, and the frames lie within them.
    unsafe {
        batch.push_wholes(|segments| Wholes {
            chains: chains.iter(),
            segments,
            header,
        })
    }
}

/// Frames of chains with one buffer; see [`lease_wholes`].
struct Wholes<'a> {
    chains: std::slice::Iter<'a, Chain>,
    segments: &'a [Segment],
    /// Bytes of a header. Header and shortest frame together are longer than the longest header.
    header: u32,
}

impl Iterator for Wholes<'_> {
    type Item = Whole;

    #[inline(always)]
    fn next(&mut self) -> Option<Whole> {
        let chain = self.chains.next()?;
        let len = chain.bytes.wrapping_sub(self.header);
        if chain.segs.len != 1 || !(MIN_FRAME..=MAX_FRAME).contains(&len) {
            return None;
        }
        let at = chain.segs.start;
        let segment = self.segments.get(at as usize)?;
        // SAFETY: the segment was translated by the queue, whose memory is held; it is as long as
        // the chain, and so longer than the longest header.
        let (low, _) = unsafe { load_words(segment.ptr) };
        header::leaves_nothing(low).then(|| Whole {
            at,
            from: segment.ptr.wrapping_add(self.header as usize),
            skip: self.header,
            len,
        })
    }
}

/// Makes a frame of any chain, or counts it as dropped.
#[inline(never)]
fn lease_one(
    chain: &Chain,
    header_len: u32,
    features: Features,
    enabled: bool,
    batch: &mut Batch,
) -> Result<(), GuestFault> {
    let range = chain.segs.start..chain.segs.start + chain.segs.len;
    // SAFETY: the segments were translated by the queue, whose memory is held until the batch is
    // released.
    let Some((low, high)) = (unsafe { batch.peek_words(&range, header_len as usize) }) else {
        return Err(GuestFault::NoRoomForHeader);
    };
    let len = chain.bytes - header_len;
    let offload = if header::leaves_nothing(low) {
        Offload::default()
    } else {
        match header::decode_words(low, high, features) {
            Ok(offload) => offload,
            Err(reason) => {
                batch.drop_taken(reason, len);
                return Ok(());
            }
        }
    };
    let refused = match len {
        _ if !enabled => Some(DropReason::QueueDisabled),
        ..MIN_FRAME => Some(DropReason::Runt),
        len if len > MAX_FRAME => Some(DropReason::Oversize),
        _ => None,
    };
    match refused {
        // SAFETY: as above; the chain holds header_len + len bytes.
        None => unsafe { batch.push(range, header_len, len, offload) },
        Some(reason) => batch.drop_taken(reason, len),
    }
    Ok(())
}
