//! From the guest: leasing what it sends.

use memory::Segment;
use memory::copy::{load_words, prefetch};
use memory::engine::Tickets;
use port::{Batch, DropReason, MAX_FRAME, Offload, Whole};
use virtio::features::Features;
use virtio::queue::{Chain, Limit, Taken};

use super::{GuestFault, GuestQueue, header};

/// Ethernet header: a frame that is shorter is none.
const MIN_FRAME: u32 = 14;

impl GuestQueue {
    /// Fills a batch, in two rounds: first all chains, so that the heads of all frames are on the way here from
    /// the guest's core together.
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

    /// The same frame by frame, as far as the batch's budget goes.
    #[cold]
    fn lease_within_budget(&mut self, features: Features, batch: &mut Batch) {
        for at in 0..self.chains.len() {
            let before = batch.frames().len();
            let chain = &self.chains[at];
            if let Err(fault) = lease_one(chain, self.header, features, self.enabled, batch) {
                self.fault = Some(fault);
                return self.leave_from(at);
            }
            // One that was dropped is paid for already.
            if batch.frames().len() > before && !batch.keeps_last() {
                return self.leave_from(at);
            }
        }
    }

    /// The chains from this one on were not looked at: they stay the guest's.
    #[cold]
    fn leave_from(&mut self, at: usize) {
        self.queue.untake(&self.chains[at..]);
        self.chains.truncate(at);
    }

    /// Gives back everything that was leased, once these copies are done, and those of all that was leased before.
    pub(super) fn end_leases_after(&mut self, copies: Tickets) {
        if copies.is_empty() && self.waiting.is_empty() {
            return self.end_leases();
        }
        self.waiting.push(&self.chains, 0, copies);
        self.chains.clear();
        self.publish_and_notify();
    }

    /// Leaves all that was leased with the guest, as if it had never been taken.
    pub(super) fn untake_leases(&mut self) {
        self.queue.untake(&self.chains);
        self.chains.clear();
    }

    /// Gives back everything that was leased.
    pub(super) fn end_leases(&mut self) {
        self.queue.put_read(&self.chains);
        self.chains.clear();
        self.publish_and_notify();
    }
}

/// Makes frames of chains of one buffer with nothing left undone, which is almost every chain, up to the first one
/// that is not of this kind. Returns how many.
#[inline(always)]
fn lease_wholes(chains: &[Chain], header: u32, enabled: bool, batch: &mut Batch) -> usize {
    if !enabled {
        return 0;
    }
    // SAFETY: the segments were translated by the queue, whose memory is held until the batch is released, and
    // the frames lie within them.
    unsafe {
        batch.push_wholes(|segments| Wholes {
            chains: chains.iter(),
            segments,
            header,
        })
    }
}

/// The frames of chains that are whole; see [`lease_wholes`].
struct Wholes<'a> {
    chains: std::slice::Iter<'a, Chain>,
    segments: &'a [Segment],
    /// Bytes of a header, which with the shortest frame are enough for the longest.
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
        // SAFETY: the segment was translated by the queue, whose memory is held; it is as long as the chain, and so
        // longer than the longest header.
        let (low, _) = unsafe { load_words(segment.ptr) };
        header::leaves_nothing(low).then(|| Whole {
            at,
            from: segment.ptr.wrapping_add(self.header as usize),
            skip: self.header,
            len,
        })
    }
}

/// Makes a frame of any chain, or a named drop.
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
