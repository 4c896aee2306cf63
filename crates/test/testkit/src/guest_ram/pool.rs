//! Buffers that come back.

use super::GuestRam;

/// Buffers that come back: free lists of power-of-two sizes on top of the bump allocator.
#[derive(Debug, Default)]
pub struct BufferPool {
    sizes: Vec<OfSize>,
}

/// All buffers of one size.
#[derive(Debug)]
struct OfSize {
    size: u64,
    free: Vec<u64>,
    all: Vec<u64>,
}

const SMALLEST: u64 = 2048;

impl BufferPool {
    /// A buffer of at least `len` bytes and its real size.
    ///
    /// # Panics
    /// When guest memory is exhausted.
    pub fn take(&mut self, ram: &GuestRam, len: u64) -> (u64, u64) {
        let size = len.next_power_of_two().max(SMALLEST);
        let list = self.of(size);
        let gpa = list.free.pop().unwrap_or_else(|| {
            let gpa = ram.alloc(size, 64);
            list.all.push(gpa);
            gpa
        });
        (gpa, size)
    }

    /// Gives a buffer back with the size that [`BufferPool::take`] returned.
    pub fn give(&mut self, gpa: u64, size: u64) {
        self.of(size).free.push(gpa);
    }

    /// Takes back all buffers, used or not, also from the device.
    pub fn recall(&mut self, ram: &GuestRam) {
        for list in &mut self.sizes {
            list.all.iter().for_each(|gpa| ram.unmap(*gpa));
            list.free.clone_from(&list.all);
        }
    }

    fn of(&mut self, size: u64) -> &mut OfSize {
        let at = self.sizes.iter().position(|list| list.size == size);
        let at = at.unwrap_or_else(|| {
            self.sizes.push(OfSize {
                size,
                free: Vec::new(),
                all: Vec::new(),
            });
            self.sizes.len() - 1
        });
        &mut self.sizes[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_ram::RegionSpec;

    #[test]
    fn what_was_lost_is_recalled_and_used_again() {
        let ram = GuestRam::heap(&[RegionSpec::at(0, 16 * SMALLEST)]);
        let mut pool = BufferPool::default();
        for _ in 0..1000 {
            let mut taken: Vec<_> = (0..8).map(|_| pool.take(&ram, 100)).collect();
            let (gpa, size) = taken[0];
            pool.give(gpa, size);
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), 8, "none is taken twice");
            pool.recall(&ram);
        }
    }
}
