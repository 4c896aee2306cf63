//! Lasthop's own shared-memory rings: a written ABI of offsets, indices and doorbells.
//!
//! One ring carries variable-length records from one process (the *producer*) to another (the
//! *consumer*). The switch and control use two: upcalls one way, decisions the other way.
//!
//! # Trust
//!
//! The peer maps the same pages and may write anything at any time, or die at any instruction. A
//! ring guarantees its own side only this, and against any peer:
//!
//! * no access outside the mapping and no undefined behaviour: all of the mapping is treated as
//!   64-bit atomic words, so a peer that writes while we read produces odd bytes, not a data race
//!   (the crate `memory` has the rules for all shared memory, in its section on concurrency);
//! * every word of the peer is read once, checked, and then only the checked copy is used;
//! * a record is copied out before the caller sees it, and is never longer than the ring;
//! * each side trusts its private copy of its own index and only publishes it; it reads the
//!   published copy back at one moment, when a restarted process attaches;
//! * a peer that breaks the rules kills the ring ([`RingFault`]): every later call returns the
//!   same fault. It cannot make a call loop or block.
//!
//! Not guaranteed: that the bytes of a record mean anything (the caller parses them as hostile
//! input), and that the file behind the mapping keeps its size (the creator of the memory file
//! seals it against shrinking before it is shared).
//!
//! # Memory map, version 1
//!
//! Offsets are bytes from the start of the mapping; the mapping holds no pointer. Numbers are
//! native-endian `u64`, as both ends run on one machine.
//!
//! ```text
//!   offset  field       written by                meaning
//!        0  magic       creator, once, last       "LHRING\0\x01" read as a native u64
//!        8  version     creator, once             1
//!       16  capacity    creator, once             bytes of data: a power of two, 64 B to 1 GiB
//!       24  (zero)      -                         reserved up to 128
//!      128  head        producer                  bytes ever produced, modulo 2^64
//!      136  (zero)      -                         reserved up to 256
//!      256  tail        consumer                  bytes ever consumed, modulo 2^64
//!      264  sleep       consumer                  odd: asleep, needs one doorbell; even: awake
//!      272  (zero)      -                         reserved up to 512
//!      512  data        producer                  `capacity` bytes
//!  512+capacity                                   end
//!
//!   data, seen modulo capacity:
//!
//!        tail                        head
//!         v                           v
//!   ......[ len | bytes | pad ][ len |..............................
//!         <------ consumer's ------->  <---- producer's, incl. the dots before tail ---->
//! ```
//!
//! A record is one word with its length in bytes, then its bytes, padded to a multiple of 8.
//! Records wrap around the end of the data word by word; no filler is needed. The producer owns
//! `[head, tail + capacity)`, the consumer owns `[tail, head)`. `head` is stored with *release*
//! after the bytes, `tail` with *release* after the copy out: after each, or after several
//! ([`Consumer::pop_lazily`]), which looks like a slower consumer to the producer.
//!
//! # Doorbell
//!
//! The event descriptor belongs to the caller; the ring only returns whether to use it.
//!
//! ```text
//!   producer                               consumer
//!   push: head = new  (release)            prepare_sleep: sleep = next odd value
//!   needs_doorbell: fence(SeqCst)                         fence(SeqCst)
//!     odd sleep, not yet rung for it?                     head == tail ? sleep : stay awake
//!       -> ring the doorbell               woke:          sleep = next even value
//! ```
//!
//! Of the two fences one comes first: either the producer sees the odd `sleep` or the consumer
//! sees the new `head`, so no wake-up is lost. Each sleep has its own number, so a producer rings
//! once for each sleep, however many records it pushes.
//!
//! # Restart
//!
//! A new process attaches at the index that its predecessor published. Bytes written but not
//! published by a dead producer are overwritten; a record that a dead consumer had copied but not
//! published is delivered again. At most one process may hold each end at a time, which the
//! supervisor ensures (it starts a successor after it reaped the predecessor); if that fails,
//! records get lost or the ring faults, and nothing worse. A new consumer drains the ring before
//! its first sleep.
//!
//! # Proof
//!
//! ```text
//! cargo test -p lasthop-ring
//! cargo +nightly miri test -p lasthop-ring
//! RUSTFLAGS="--cfg loom" cargo test -p lasthop-ring --release --lib
//! ```
//!
//! Loom explores every interleaving with up to three preemptions and fails when a fence or the
//! release of `head` is taken away. It does not model loads that are delayed past a later store,
//! so the release of `tail` is argued above and not proved.

mod consumer;
mod fault;
mod index;
pub mod layout;
mod memory;
mod producer;
mod sync;

pub use consumer::Consumer;
pub use fault::{PushError, RingFault, SetupError};
pub use layout::{format, memory_len};
pub use memory::RingMemory;
pub use producer::{Producer, Reservation};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
