//! Frames that an interface has not taken yet, in private memory: the lease of their senders'
//! memory has ended.

use std::collections::VecDeque;

use netio::Outbox;

/// Frames that wait, at most, for each queue.
const MAX_FRAMES: usize = 256;
/// Bytes that wait, at most, for each queue: 32 frames of the greatest length.
const MAX_BYTES: usize = 2 << 20;
/// Bytes after which who asks before it sends must wait: the rest is for what workers have in their
/// hands then.
const HELD_BYTES: usize = MAX_BYTES / 2;

/// A frame with its virtio header.
pub(super) type FrameCopy = Vec<u8>;

/// The frames of one queue, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    frames: VecDeque<FrameCopy>,
    bytes: usize,
    /// Memory of frames that have left.
    spare: Vec<FrameCopy>,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns how many more frames may come of who asks before it sends.
    pub(super) fn free(&self) -> usize {
        match self.bytes < HELD_BYTES {
            true => MAX_FRAMES.saturating_sub(self.frames.len()),
            false => 0,
        }
    }

    /// Returns whether there is room for another frame.
    pub(super) fn has_room(&self) -> bool {
        self.frames.len() < MAX_FRAMES && self.bytes < MAX_BYTES
    }

    /// Returns how many of frames with these lengths there is room for, the first ones first.
    pub(super) fn room_for(&self, lens: impl Iterator<Item = u32>) -> usize {
        let mut bytes = self.bytes;
        let fit = lens.take(MAX_FRAMES - self.frames.len().min(MAX_FRAMES));
        fit.take_while(|len| {
            let has_room = bytes < MAX_BYTES;
            bytes += *len as usize;
            has_room
        })
        .count()
    }

    /// Returns empty memory for a frame.
    pub(super) fn memory(&mut self) -> FrameCopy {
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        memory
    }

    /// Takes memory back.
    pub(super) fn reuse(&mut self, memory: FrameCopy) {
        // Long frames are few, and their memory is.
        if self.spare.len() < MAX_FRAMES && memory.capacity() <= 4096 {
            self.spare.push(memory);
        }
    }

    /// Adds a frame as the last one.
    pub(super) fn push(&mut self, frame: FrameCopy) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Takes the first frame.
    pub(super) fn pop(&mut self) -> Option<FrameCopy> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// Puts frames back before all others, the last of them first.
    pub(super) fn put_back(&mut self, frame: FrameCopy) {
        self.bytes += frame.len();
        self.frames.push_front(frame);
    }

    /// Copies frame `at` of an outbox.
    pub(super) fn copy_of(&mut self, outbox: &Outbox, at: usize) -> FrameCopy {
        let mut frame = self.memory();
        let len = outbox.lens().nth(at).unwrap_or(0);
        frame.resize(len as usize, 0);
        // The memory is as long as the frame.
        let _ = outbox.copy(at, &mut frame);
        frame
    }
}
