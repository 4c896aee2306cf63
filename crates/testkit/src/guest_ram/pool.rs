//! Buffers that come back.

use super::GuestRam;

/// Buffers that come back: free lists of power-of-two sizes on top of the bump allocator.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Vec<(u64, Vec<u64>)>,
}

const SMALLEST: u64 = 2048;

impl BufferPool {
    /// A buffer of at least `len` bytes and its real size.
    ///
    /// # Panics
    /// When guest memory is exhausted.
    pub fn take(&mut self, ram: &GuestRam, len: u64) -> (u64, u64) {
        let size = len.next_power_of_two().max(SMALLEST);
        let list = self
            .free
            .iter_mut()
            .find(|(s, _)| *s == size)
            .map(|(_, list)| list);
        let gpa = list
            .and_then(Vec::pop)
            .unwrap_or_else(|| ram.alloc(size, 64));
        (gpa, size)
    }

    /// Gives a buffer back with the size that [`BufferPool::take`] returned.
    pub fn give(&mut self, gpa: u64, size: u64) {
        match self.free.iter_mut().find(|(s, _)| *s == size) {
            Some((_, list)) => list.push(gpa),
            None => self.free.push((size, vec![gpa])),
        }
    }
}
