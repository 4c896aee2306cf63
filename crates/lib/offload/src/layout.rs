//! Layout of the table's memory, which is the only value of a BPF map. Programs of the kernel read
//! it (`programs/layout.h` has the same numbers), so all is in words of eight bytes, in this
//! machine's order.
//!
//! ```text
//! 0          magic, layout number, seed of the hash, activity, next generation (u64 each). Activity:
//!            in the lower half the number of live entries; in the upper half 0, or one more than n:
//!            the key of each 2^n-th frame without an entry is stored. With both 0, programs read
//!            nothing else
//! LEASE_AT   time of the monotonic clock, in nanoseconds, until which hits count; 0: none do
//! MASKS_AT   masks of 64 bytes, in the words of a flow key
//! MASK_GENERATIONS_AT
//!            a generation for each mask (u64); 0: the mask is not in use
//! WANTED_AT  for each hash of VLAN and destination address a byte: the masks of entries for such
//!            destinations. Masks without a destination address are in all bytes
//! SLOTS_AT   slots of 256 bytes, in sets of four:
//!
//!            0     generation (u64); 0: empty
//!            8     mask (u8), action (u8), 0 (u16), upper half of the hash (u32)
//!            16    frames and bytes of this slot before the entry (u64 each)
//!            64    key: eight words, without what the mask leaves out
//!            128   for each CPU, modulo 8: frames and bytes (u64 each). Never reset
//!
//! CURSORS_AT for each CPU, modulo 8, a line: number of frames without an entry during sampling
//! SAMPLES_AT for each CPU, modulo 8, a ring of keys
//! ```
//!
//! The writer stores the words of a slot or a mask before its generation, and a generation is never
//! used twice. A reader loads the generation before it reads, and once more when it has found what
//! it looks for: if the slot or the mask has changed meanwhile, the frame is a miss.

/// "LHOFFLD1".
pub const MAGIC: u64 = u64::from_le_bytes(*b"LHOFFLD1");
/// Number of this layout and of what programs do with it. Programs outlive the process that has
/// loaded them, so a writer of another number leaves the table alone.
pub const LAYOUT: u64 = 2;

/// Offset of the magic.
pub const MAGIC_AT: usize = 0;
/// Offset of the layout's number.
pub const LAYOUT_AT: usize = 8;
/// Offset of the seed, a secret of the writer.
pub const SEED_AT: usize = 16;
/// Offset of the activity.
pub const ACTIVE_AT: usize = 24;
/// Place of the upper half of the activity.
pub const SAMPLING_SHIFT: u32 = 32;
/// Offset of the next generation of a slot or a mask.
pub const NEXT_AT: usize = 32;
/// Offset of the lease, on a line of its own.
pub const LEASE_AT: usize = 64;
/// Offset of the masks.
pub const MASKS_AT: usize = 256;
/// Maximum number of masks.
pub const MASKS: usize = 8;
/// Offset of the generations of masks.
pub const MASK_GENERATIONS_AT: usize = MASKS_AT + MASKS * KEY;
/// Offset of the masks by destination.
pub const WANTED_AT: usize = 1024;
/// Number of hashes of destinations, a power of two.
pub const DESTINATIONS: usize = 1024;
/// Offset of the slots.
pub const SLOTS_AT: usize = 4096;
/// Number of slots, a power of two.
pub const SLOTS: usize = 4096;
/// Slots of a set.
pub const WAYS: usize = 4;
/// Number of sets, a power of two.
pub const SETS: usize = SLOTS / WAYS;
/// Bytes of a slot.
pub const SLOT: usize = 256;
/// Bytes of a key or a mask.
pub const KEY: usize = 64;
/// Offset of the numbers of frames without an entry.
pub const CURSORS_AT: usize = SLOTS_AT + SLOTS * SLOT;
/// Bytes from the number of one CPU to the next.
pub const CURSOR: usize = 64;
/// Offset of the stored keys.
pub const SAMPLES_AT: usize = CURSORS_AT + 4096;
/// Number of keys in the ring of a CPU, a power of two.
pub const SAMPLES: usize = 64;
/// Bytes of the whole table, in whole pages.
pub const SIZE: usize = SAMPLES_AT + CPUS * SAMPLES * KEY;

/// Offset of what an entry is, within a slot.
pub const ENTRY_AT: usize = 8;
/// Offset of the frames before the entry, within a slot; the bytes follow.
pub const BASE_AT: usize = 16;
/// Offset of the key, within a slot.
pub const KEY_AT: usize = 64;
/// Offset of the counters, within a slot: for each CPU frames and bytes.
pub const COUNTS_AT: usize = 128;
/// Number of counters of a slot: CPUs share one if their numbers agree in the lowest bits.
pub const CPUS: usize = 8;

/// The action of an entry that ends frames.
pub const DROP: u8 = 1;
/// The action of an entry that ends frames of no known connection: see
/// [`connections`](crate::connections).
pub const DROP_NEW: u8 = 2;

/// Factor of the hashes.
pub const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () = {
    assert!(MASK_GENERATIONS_AT + MASKS * 8 <= WANTED_AT && MASKS <= 8);
    assert!(WANTED_AT + DESTINATIONS <= SLOTS_AT);
    assert!(DESTINATIONS.is_power_of_two() && SETS.is_power_of_two());
    assert!(KEY_AT + KEY == COUNTS_AT && COUNTS_AT + CPUS * 16 == SLOT);
    assert!(CPUS * CURSOR <= SAMPLES_AT - CURSORS_AT && SAMPLES.is_power_of_two());
    assert!(SIZE.is_multiple_of(4096));
};
