//! The size of the memory that a vhost-user front end of ours shares with the switch: split rings
//! (virtio 1.3, 2.7) and buffers of all its queues. The supervisor, which makes the memory of
//! `AF_XDP` sockets, and the front end agree on it.

const PAGE: u64 = 4096;

/// Entries of each queue, one for each frame, where frames are read and written by system calls.
pub const QUEUE_SIZE: u16 = 256;
/// Bytes of one buffer there: the longest frame that an interface hands out whole (65535 bytes of
/// IP packet), its Ethernet header with a tag, and the virtio header, in whole pages.
pub const BUFFER: u32 = 17 * 4096;

/// How many buffers a queue has, and how long they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// A power of 2.
    pub entries: u16,
    /// Bytes of a buffer, in whole pages.
    pub buffer: u32,
}

impl Shape {
    /// For super-frames.
    pub const LONG: Self = Self {
        entries: QUEUE_SIZE,
        buffer: BUFFER,
    };

    /// Returns the offset of the available ring behind the descriptors of 16 bytes.
    pub const fn available(self) -> u64 {
        16 * self.entries as u64
    }

    /// Returns the offset of the used ring: on a cache line of its own, because the other side
    /// writes it.
    pub const fn used(self) -> u64 {
        let end = self.available() + 6 + 2 * self.entries as u64;
        end.next_multiple_of(64)
    }

    /// Returns the bytes of the rings of one queue, in whole pages.
    pub const fn rings(self) -> u64 {
        let end = self.used() + 6 + 8 * self.entries as u64;
        end.next_multiple_of(PAGE)
    }

    /// Returns the bytes of all buffers of one queue.
    pub const fn buffers(self) -> u64 {
        self.entries as u64 * self.buffer as u64
    }

    /// Returns the same number of entries without buffers: for rings whose buffers are elsewhere.
    pub const fn rings_only(self) -> Self {
        Self { buffer: 0, ..self }
    }

    /// Returns the bytes of a region for this number of queue pairs.
    pub const fn size(self, pairs: u16) -> u64 {
        2 * pairs as u64 * (self.rings() + self.buffers())
    }
}
