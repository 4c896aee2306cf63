//! From the guest: leasing what it sends.

use memory::copy::{load_words, prefetch};
use port::{BATCH, Batch, DropReason, MAX_FRAME, Offload};
use virtio::features::Features;
use virtio::queue::{Chain, Limit, Taken};

use super::{GuestFault, GuestQueue, HEADER, header};

/// Bytes after which a batch is long enough: copying a batch of large frames takes time from others.
const LIMIT: Limit = Limit {
    chains: BATCH,
    bytes: 256 << 10,
};
/// Ethernet header: a frame that is shorter is none.
const MIN_FRAME: u32 = 14;

impl GuestQueue {
    /// Fills a batch, in two rounds: first all chains, so that the heads of all frames are on the way here from
    /// the guest's core together.
    pub(super) fn lease(&mut self, features: Features, batch: &mut Batch) {
        if self.fault.is_some() {
            return;
        }
        let mut taken = Taken {
            segs: batch.segments_mut(),
            chains: &mut self.chains,
        };
        if let Err(fault) = self.queue.take_all_readable(&mut taken, LIMIT, prefetch) {
            self.fault = Some(fault.into());
        }
        self.used |= !self.chains.is_empty();
        for at in 0..self.chains.len() {
            if self.enabled && lease_plain(&self.chains[at], batch) {
                continue;
            }
            if let Err(fault) = lease_one(&self.chains[at], features, self.enabled, batch) {
                self.fault = Some(fault);
                // This one and those behind it were not looked at: they stay the guest's.
                self.queue.untake(&self.chains[at..]);
                self.chains.truncate(at);
                return;
            }
        }
    }

    /// Gives back everything that was leased.
    pub(super) fn end_leases(&mut self) {
        self.queue.put_read(&self.chains);
        self.chains.clear();
        self.publish_and_notify();
    }
}

/// Makes a frame of a chain of one buffer with nothing left undone, which is almost every chain. `false` when it is
/// not of this kind, and nothing was done.
#[inline(always)]
fn lease_plain(chain: &Chain, batch: &mut Batch) -> bool {
    let plain = chain.segs.len == 1
        && chain.bytes >= HEADER + MIN_FRAME
        && chain.bytes <= HEADER + MAX_FRAME;
    let Some(segment) = batch.segments_mut().get(chain.segs.start as usize).copied() else {
        return false;
    };
    if !plain {
        return false;
    }
    // SAFETY: the segment was translated by the queue, whose memory is held until the batch is released; it
    // is as long as the chain.
    unsafe {
        let (low, _) = load_words(segment.ptr);
        if !header::leaves_nothing(low) {
            return false;
        }
        let frame = segment.ptr.add(HEADER as usize);
        batch.push_piece(chain.segs.start, frame, HEADER, chain.bytes - HEADER);
    }
    true
}

/// Makes a frame of any chain, or a named drop.
#[inline(never)]
fn lease_one(
    chain: &Chain,
    features: Features,
    enabled: bool,
    batch: &mut Batch,
) -> Result<(), GuestFault> {
    let range = chain.segs.start..chain.segs.start + chain.segs.len;
    // SAFETY: the segments were translated by the queue, whose memory is held until the batch is
    // released.
    let Some((low, high)) = (unsafe { batch.peek_words(&range) }) else {
        return Err(GuestFault::NoRoomForHeader);
    };
    let len = chain.bytes - HEADER;
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
        // SAFETY: as above; the chain holds HEADER + len bytes.
        None => unsafe { batch.push(range, HEADER, len, offload) },
        Some(reason) => batch.drop_taken(reason, len),
    }
    Ok(())
}
