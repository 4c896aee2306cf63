//! The memory file: places of its parts.
//!
//! ```text
//! 0           header: magic, version, capacity, seed, clock of the last writer, birth; 4 KiB
//! accounts    one line a port                                                         64 KiB
//! zones       generation of each zone, 32 bits                                       256 KiB
//! fragments   128 sets of 8 lines                                                     64 KiB
//! used        one bit an entry
//! index       sets of 8 words, at least two words an entry
//! entries     192 bytes each
//! ```
//!
//! Extensions of entries, of 64 bytes each, have no part yet: an entry has room for the number of
//! one. All words are native-endian, as all readers run on one machine.

use super::memory::LINE;
use super::word::ENTRY_BITS;

/// Version of the layout.
pub const VERSION: u64 = 2;
/// The first word of the file.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"LHCONNS1");
/// Port numbers lie below this.
pub const MAX_PORTS: usize = 1024;
/// Number of zones.
pub(crate) const ZONES: usize = 1 << 16;
/// Remembered datagrams, until their later fragments have come.
pub(crate) const FRAGMENTS: usize = 1024;
/// Connections of the smallest table.
pub const MIN_CAPACITY: u32 = 1024;
/// Connections of the largest table.
pub const MAX_CAPACITY: u32 = 1 << ENTRY_BITS;
/// Connections of a table unless the configuration says otherwise.
pub const DEFAULT_CAPACITY: u32 = 256 << 10;

/// Bytes of a cache line.
const BYTES: usize = 64;
/// Bytes of the header.
const HEADER: usize = 4096;
/// Bytes of an entry.
const ENTRY: usize = 3 * BYTES;

/// Places of the parts of a file, in bytes, for a capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    capacity: u32,
}

impl Layout {
    /// The layout of a table for this number of connections, which is brought between
    /// [`MIN_CAPACITY`] and [`MAX_CAPACITY`] and rounded up to a multiple of 64.
    #[must_use]
    pub const fn new(connections: u32) -> Self {
        let capacity = if connections < MIN_CAPACITY {
            MIN_CAPACITY
        } else if connections > MAX_CAPACITY {
            MAX_CAPACITY
        } else {
            connections.next_multiple_of(u64::BITS)
        };
        Self { capacity }
    }

    /// Number of connections.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Length of the file, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        (self.entries() + self.capacity as usize * ENTRY) as u64
    }

    /// Number of sets of the index, a power of two.
    pub(crate) const fn sets(&self) -> usize {
        (self.capacity as usize * 2 / LINE).next_power_of_two()
    }

    pub(crate) const fn accounts(&self) -> usize {
        HEADER
    }

    pub(crate) const fn zones(&self) -> usize {
        self.accounts() + MAX_PORTS * BYTES
    }

    pub(crate) const fn fragments(&self) -> usize {
        self.zones() + ZONES * size_of::<u32>()
    }

    pub(crate) const fn used(&self) -> usize {
        self.fragments() + FRAGMENTS * BYTES
    }

    pub(crate) const fn index(&self) -> usize {
        let bits = self.capacity as usize / 8;
        self.used() + bits.next_multiple_of(BYTES)
    }

    pub(crate) const fn entries(&self) -> usize {
        self.index() + self.sets() * BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_becomes_a_capacity() {
        let capacity = |connections| Layout::new(connections).capacity();
        let cases = [
            (0, 1024),
            (1024, 1024),
            (1025, 1088),
            (300_000, 300_032),
            (u32::MAX, MAX_CAPACITY),
        ];
        for (connections, expected) in cases {
            assert_eq!(capacity(connections), expected);
        }
    }

    #[test]
    fn parts_lie_side_by_side_in_lines() {
        for connections in [1024, 1088, 5000, DEFAULT_CAPACITY, MAX_CAPACITY] {
            let layout = Layout::new(connections);
            let parts = [
                layout.accounts(),
                layout.zones(),
                layout.fragments(),
                layout.used(),
                layout.index(),
                layout.entries(),
                usize::try_from(layout.bytes()).unwrap(),
            ];
            assert!(parts.is_sorted() && parts.iter().all(|at| at % BYTES == 0));
            assert!(layout.sets() * LINE >= 2 * layout.capacity() as usize);
        }
        let layout = Layout::new(DEFAULT_CAPACITY);
        assert_eq!(layout.entries() - layout.index(), 4 << 20);
        assert_eq!(layout.bytes() - layout.entries() as u64, 48 << 20);
    }
}
