//! Receive buffers that were looked up ahead.

use memory::Segment;

/// A receive buffer: the only one of a chain that was looked at, and translated, before a frame
/// needs it.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    segment: Segment,
    /// Split: head of the chain. Packed: buffer id.
    id: u16,
}

/// A buffer that is taken from the ring.
const NONE: Buffer = Buffer {
    segment: Segment {
        ptr: std::ptr::null_mut(),
        len: 0,
        gpa: 0,
    },
    id: 0,
};

/// The buffers that were looked up ahead, by their slots in the ring. The descriptor of one that is
/// taken from here is not read again.
#[derive(Debug, Default)]
pub(in crate::queue) struct ReadyBuffers(Vec<Buffer>);

// SAFETY: a Buffer is an address and a length, used only by the queue that keeps it, which has one
// user at a time and keeps the GuestMemory.
unsafe impl Send for ReadyBuffers {}

impl ReadyBuffers {
    /// Makes places for the slots of a ring.
    pub(super) fn resize(&mut self, size: u16) {
        self.0.resize(usize::from(size), NONE);
    }

    /// Returns a function that notes a buffer: its slot, the id of its chain, and its memory.
    #[inline(always)]
    pub(super) fn note(&mut self) -> impl FnMut(u16, u16, Segment) {
        // The loop that calls it reads their address once.
        let buffers = &mut self.0[..];
        move |slot, id, segment| {
            if let Some(place) = buffers.get_mut(usize::from(slot)) {
                *place = Buffer { segment, id };
            }
        }
    }

    /// Returns the id of the chain in a slot, and its buffer; `None`: it is taken from the ring.
    #[inline(always)]
    pub(in crate::queue) fn get(&self, slot: u16) -> Option<(u16, Segment)> {
        let &Buffer { segment, id } = self.0.get(usize::from(slot))?;
        (segment.len > 0).then_some((id, segment))
    }

    /// Forgets the buffers in `count` slots from `slot` on.
    pub(super) fn forget(&mut self, slot: u16, count: u16) {
        let size = self.0.len();
        let count = usize::from(count).min(size);
        let first = usize::from(slot).min(size);
        let end = (first + count).min(size);
        self.0[first..end].fill(NONE);
        self.0[..count - (end - first)].fill(NONE);
    }

    /// Forgets all buffers.
    pub(super) fn forget_all(&mut self) {
        self.0.fill(NONE);
    }
}
