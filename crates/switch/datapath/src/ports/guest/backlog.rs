//! Frames to a guest with an IOMMU that wait for the translation of its receive buffers.
//!
//! Receive buffers are asked for ahead, so a guest that maps them in time has them translated when
//! a frame comes. A guest in lazy mode has all its translations invalidated at once, up to a
//! hundred times a second, and offers its buffers long before: frames that come until the front end
//! has answered again find none. They are copied here, bounded in number, size and time, and are
//! delivered first when the answer has come. Nothing here is memory of a guest, so a revocation
//! does not wait for it.

use std::collections::VecDeque;

use port::counters::Traffic;
use port::{DropReason, Offload};

use super::GuestQueue;
use crate::ports::coalescing::Nanos;
use crate::ports::payload::{Outgoing, Payload};
use crate::ports::port::Settlement;

/// Frames that wait at most, for each queue.
const MAX_FRAMES: usize = 256;
/// Bytes that wait at most, for each queue: eight frames of the greatest length.
const MAX_BYTES: usize = 512 << 10;
/// Time without a single delivery after which all that wait are dropped: as long as a front end may
/// take to answer a question.
const PATIENCE: Nanos = 1_000_000_000;

/// A frame with its offloads, as it will be delivered.
#[derive(Debug)]
pub(super) struct KeptFrame {
    pub(super) bytes: Vec<u8>,
    pub(super) offload: Offload,
}

/// The frames of one queue, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    frames: VecDeque<KeptFrame>,
    bytes: usize,
    /// Since when none was delivered; 0 until the end of the batch of the first.
    since: Nanos,
    /// Frames that were kept since the last call of [`Backlog::take_kept`].
    kept: Traffic,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Keeps a copy of a frame. Returns `false` where there is no room.
    pub(super) fn keep(&mut self, frame: &Outgoing<'_>) -> bool {
        let len = frame.len() as usize;
        if self.frames.len() == MAX_FRAMES || self.bytes + len > MAX_BYTES {
            return false;
        }
        let kept = KeptFrame {
            bytes: frame.to_vec(),
            offload: frame.offload,
        };
        self.kept.packets += 1;
        self.kept.bytes += u64::from(frame.len());
        self.bytes += kept.bytes.len();
        self.frames.push_back(kept);
        true
    }

    /// Returns the frames that were kept since the last call.
    pub(super) fn take_kept(&mut self) -> Traffic {
        std::mem::take(&mut self.kept)
    }

    /// Takes all frames out. What is not delivered comes back by [`Backlog::put_back`].
    pub(super) fn take(&mut self) -> VecDeque<KeptFrame> {
        self.bytes = 0;
        std::mem::take(&mut self.frames)
    }

    /// Puts those frames back that have to wait further, at the time `now`; `moved`: some were
    /// delivered. Returns how many of them waited for too long and are dropped.
    pub(super) fn put_back(&mut self, frames: VecDeque<KeptFrame>, moved: bool, now: Nanos) -> u64 {
        if self.since == 0 || moved {
            self.since = now;
        }
        if frames.is_empty() || now.saturating_sub(self.since) > PATIENCE {
            self.since = 0;
            return frames.len() as u64;
        }
        self.bytes = frames.iter().map(|frame| frame.bytes.len()).sum();
        self.frames = frames;
        0
    }
}

impl GuestQueue {
    /// Keeps a copy of a frame whose buffers are not translated yet. Returns `false` where there is
    /// no room for it.
    #[cold]
    pub(super) fn keep(&mut self, frame: &Outgoing<'_>) -> bool {
        // The buffers before the missing one are for the frame that waits first.
        self.give_back();
        self.congestion.backlog.keep(frame)
    }

    /// Delivers the frames that wait for buffers, as far as these are translated now.
    #[cold]
    pub(super) fn settle(&mut self, merge: bool, now: Nanos) -> Settlement {
        let mut settled = Settlement {
            kept: self.congestion.backlog.take_kept(),
            ..Settlement::default()
        };
        if self.congestion.backlog.is_empty() {
            return settled;
        }
        let mut waiting = self.congestion.backlog.take();
        if !self.usable() {
            // Its ring may be malformed, and is not used any more.
            let reason = DropReason::ReceiverDown;
            settled.dropped.push((reason, waiting.len() as u64));
            return settled;
        }
        while let Some(frame) = waiting.front() {
            let out = Outgoing {
                headers: &frame.bytes,
                payload: &Payload::empty(),
                offload: frame.offload,
            };
            match self.fill_pieces(&out, merge) {
                Ok(()) => {
                    settled.delivered.packets += 1;
                    settled.delivered.bytes += frame.bytes.len() as u64;
                }
                Err(DropReason::ReceiverUntranslated) => break,
                Err(reason) => settled.dropped.push((reason, 1)),
            }
            waiting.pop_front();
        }
        self.give_back();
        let moved = settled.delivered.packets > 0;
        let overdue = self.congestion.backlog.put_back(waiting, moved, now);
        if overdue > 0 {
            let reason = DropReason::ReceiverUntranslated;
            settled.dropped.push((reason, overdue));
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(backlog: &mut Backlog, frame: &[u8]) -> bool {
        backlog.keep(&Outgoing {
            headers: frame,
            payload: &Payload::empty(),
            offload: Offload::default(),
        })
    }

    #[test]
    fn number_and_size_are_bounded() {
        let mut backlog = Backlog::default();
        let kept = (0..300).filter(|_| keep(&mut backlog, &[0; 60])).count();
        assert_eq!(kept, MAX_FRAMES);
        assert_eq!(backlog.take_kept().packets, MAX_FRAMES as u64);
        assert_eq!(backlog.take_kept().packets, 0);
        assert_eq!(backlog.take().len(), MAX_FRAMES);
        let long = vec![0; 60_000];
        let kept = (0..300).filter(|_| keep(&mut backlog, &long)).count();
        assert_eq!(kept, MAX_BYTES / long.len());
    }

    #[test]
    fn frames_wait_in_order_and_not_longer_than_their_time() {
        let mut backlog = Backlog::default();
        for n in 0..3 {
            assert!(keep(&mut backlog, &[n; 60]));
        }
        let waiting = backlog.take();
        assert_eq!(backlog.put_back(waiting, false, 5), 0);
        let mut waiting = backlog.take();
        waiting.pop_front();
        assert_eq!(backlog.put_back(waiting, true, PATIENCE), 0, "one moved");
        let waiting = backlog.take();
        assert!(waiting.iter().map(|frame| frame.bytes[0]).eq([1, 2]));
        assert_eq!(backlog.put_back(waiting, false, 2 * PATIENCE), 0);
        let waiting = backlog.take();
        assert_eq!(backlog.put_back(waiting, false, 2 * PATIENCE + 1), 2);
        assert!(backlog.is_empty());
        // The time of the next ones begins anew.
        assert!(keep(&mut backlog, &[9; 60]));
        let waiting = backlog.take();
        assert_eq!(backlog.put_back(waiting, false, 9 * PATIENCE), 0);
    }
}
