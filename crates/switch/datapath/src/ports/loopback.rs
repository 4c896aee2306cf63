//! A port that returns the frames that it gets, or those that a test puts into it.

use std::collections::VecDeque;

use memory::Segment;
use port::{DropReason, MAX_FRAME, Offload};

use super::batch::{BATCH, Batch};
use super::calls::PendingCalls;
use super::payload::Outgoing;
use super::port::{Accepts, Port};

/// Most frames that are held.
const DEPTH: usize = 1024;

/// A queue of private frames: delivered frames come out of [`Port::take`] again. With `echo` off,
/// delivered frames wait in [`LoopbackPort::delivered`] instead.
#[derive(Debug)]
pub struct LoopbackPort {
    /// Frames that [`Port::take`] will lease.
    pub waiting: VecDeque<(Vec<u8>, Offload)>,
    /// Frames that arrived while `echo` was off.
    pub delivered: Vec<(Vec<u8>, Offload)>,
    /// Offloads that it accepts.
    pub accepts: Accepts,
    /// Whether delivered frames go to `waiting`.
    pub echo: bool,
    leased: Vec<(Vec<u8>, Offload)>,
}

impl LoopbackPort {
    /// Creates an empty port that accepts every offload.
    #[must_use]
    pub fn new(echo: bool) -> Self {
        Self {
            waiting: VecDeque::new(),
            delivered: Vec::new(),
            accepts: Accepts::ALL,
            echo,
            leased: Vec::with_capacity(BATCH),
        }
    }
}

impl Port for LoopbackPort {
    fn pairs(&self) -> u16 {
        1
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn take(&mut self, _pair: u16, batch: &mut Batch) {
        while !batch.is_full() {
            let Some((mut bytes, offload)) = self.waiting.pop_front() else {
                return;
            };
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let refused = match len {
                ..14 => Some(DropReason::Runt),
                len if len > MAX_FRAME => Some(DropReason::Oversize),
                _ => None,
            };
            if let Some(reason) = refused {
                batch.drop_taken(reason, len);
                self.leased.push((bytes, offload));
                continue;
            }
            let arena = batch.segments_mut();
            let start = arena.len() as u32;
            arena.push(Segment {
                ptr: bytes.as_mut_ptr(),
                len,
                gpa: Segment::PRIVATE,
            });
            self.leased.push((bytes, offload));
            // SAFETY: the bytes' heap block moves with its owner into `leased` and stays until
            // `release`, before which the batch is not read again.
            unsafe { batch.push(start..start + 1, 0, len, offload) };
        }
    }

    fn leave(&mut self, _pair: u16, kept: usize) {
        while self.leased.len() > kept {
            self.leased
                .pop()
                .into_iter()
                .for_each(|frame| self.waiting.push_front(frame));
        }
    }

    fn release(&mut self, _pair: u16, _calls: &mut PendingCalls) {
        self.leased.clear();
    }

    fn deliver(&mut self, _pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        if self.waiting.len() + self.delivered.len() >= DEPTH {
            return Err(DropReason::ReceiverFull);
        }
        let copy = (frame.to_vec(), frame.offload);
        if self.echo {
            self.waiting.push_back(copy);
        } else {
            self.delivered.push(copy);
        }
        Ok(())
    }

    fn flush(&mut self, _pair: u16, _now: u64, _calls: &mut PendingCalls) -> Option<u64> {
        None
    }

    fn arm(&mut self, _pair: u16, _on: bool) -> bool {
        !self.waiting.is_empty()
    }
}
