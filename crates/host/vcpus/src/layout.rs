//! Layout of the memory of states.
//!
//! ```text
//! 0          magic, version, 1, whether halts are counted (u32 each)
//! VCPUS_AT   a line of 64 bytes for each slot. Its first word:
//!
//!              63                     14 13      2 1   0
//!              +------------------------+---------+-----+
//!              | since when, in 256 ns  |  core   | how |
//!              +------------------------+---------+-----+
//!
//!            how: 0 unknown, 1 running, 2 runnable, 3 blocked. Its second word: 1 with a
//!            subscription to block events (see `block_events`). Its third word: the number of
//!            halts of a vCPU of KVM that have ended. Its fourth word: how often KVM polled in the
//!            latest of them, as a score. Its fifth word: the first word as it was when the thread
//!            blocked last
//!
//! TIDS_AT    buckets of two entries (thread id, slot: u32 each), by which the BPF programs find a
//!            thread; its bucket is given by the lower bits of its id. 0: free entry
//! ```
//!
//! Each line has one writer at a time: events of a thread happen under the lock of its core's run
//! queue. Lines are apart, so that a core that writes its own does not invalidate others.

/// "LHGS".
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"LHGS");
/// Of this layout.
pub(crate) const VERSION: u32 = 3;

/// Most cores that are distinguished: threads on those above keep their states.
pub(crate) const CORES: usize = 1024;
/// Most threads that are followed at once.
pub const SLOTS: usize = 4096;
/// Number of buckets by which a thread is found; a power of two.
pub(crate) const BUCKETS: usize = 16384;
/// Number of entries of a bucket.
pub(crate) const WAYS: usize = 2;

/// Bytes of a line.
pub(crate) const LINE: usize = 64;
/// Bytes of an entry of a bucket: the thread's id, and behind it its slot.
pub(crate) const ENTRY: usize = 8;

/// Offset of the number of the writer.
pub(crate) const WRITER_AT: usize = 8;
/// The writer: the BPF programs.
pub(crate) const KERNEL: u32 = 1;
/// Offset of the half word that says whether KVM's halts are counted.
pub(crate) const COUNTS_HALTS_AT: usize = 12;
/// Offset of the lines of slots.
pub(crate) const VCPUS_AT: usize = 4096;
/// Offset of the subscription within a slot's line.
pub(crate) const SUBSCRIPTION_AT: usize = 8;
/// Offset of the number of halts within a slot's line.
pub(crate) const HALTS_AT: usize = 16;
/// Offset of the score of halts in which KVM polled, within a slot's line.
pub(crate) const POLLED_AT: usize = 24;
/// Increase of the score by a halt in which KVM polled; each other one decreases it by one.
pub(crate) const POLLED_ONCE: u64 = 32;
/// Score above which KVM polls for a vCPU, and the highest one, which lasts for a thousand halts. A
/// late halt now and then does not count: on a busy machine a vCPU may lose its core before it
/// sleeps.
pub(crate) const POLLED_OFTEN: u64 = 64;
/// See [`POLLED_OFTEN`].
pub(crate) const POLLED_MOST: u64 = 1024;
/// Offset of the state when the thread blocked last, within a slot's line.
pub(crate) const BLOCKED_AT: usize = 32;
/// Offset of the buckets.
pub(crate) const TIDS_AT: usize = VCPUS_AT + SLOTS * LINE;
/// Bytes of the whole memory, in whole pages.
pub const SIZE: usize = TIDS_AT + BUCKETS * WAYS * ENTRY;

/// Bits of a state's word below the core.
pub(crate) const CORE_SHIFT: u32 = 2;
/// Shift of nanoseconds in a state's word; their lowest eight bits are dropped.
pub(crate) const SINCE_SHIFT: u32 = 6;
/// Bits of a state's word that are not its time.
pub(crate) const SINCE_BELOW: u64 = (1 << 14) - 1;
/// Bits of a state's word with the activity.
pub(crate) const HOW: u64 = 3;

const _: () = assert!(SIZE.is_multiple_of(4096) && BUCKETS.is_power_of_two());
const _: () = assert!(LINE.is_power_of_two() && BLOCKED_AT + 8 <= LINE);
const _: () = assert!(POLLED_ONCE < POLLED_OFTEN && POLLED_OFTEN < POLLED_MOST);
const _: () = assert!(((CORES - 1) << CORE_SHIFT) as u64 <= SINCE_BELOW);

/// Index of a thread's state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u16);

/// Activity of a thread, as the scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Activity {
    /// It runs on a core. A vCPU of KVM that has halted may do so for a while: KVM polls in its
    /// thread before it lets it sleep (`halt_poll_ns`).
    Running = 1,
    /// It waits for a core.
    Runnable = 2,
    /// It waits for an event; a vCPU: for an interrupt.
    Blocked = 3,
}

/// The state of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vcpu {
    /// Its activity.
    pub activity: Activity,
    /// Its core; of one that does not run: the core on which it ran last.
    pub core: u16,
    /// Start of the activity, in nanoseconds of the machine's monotonic clock, rounded down to 256.
    /// Zero: unknown.
    pub since_ns: u64,
}

impl Vcpu {
    /// Returns the word of a slot; times above nine years wrap around.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        let core = (self.core as u64) << CORE_SHIFT & SINCE_BELOW;
        (self.since_ns << SINCE_SHIFT) & !SINCE_BELOW | core | self.activity as u64
    }

    /// Parses the word of a slot; `None` for an unknown state.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let activity = match word & HOW {
            1 => Activity::Running,
            2 => Activity::Runnable,
            3 => Activity::Blocked,
            _ => return None,
        };
        Some(Self {
            activity,
            core: ((word & SINCE_BELOW) >> CORE_SHIFT) as u16,
            since_ns: (word & !SINCE_BELOW) >> SINCE_SHIFT,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_state_is_one_word_and_back(
            core in 0..CORES as u16, since in 0u64..1 << 58, how in 1u64..4
        ) {
            let word = Vcpu::from_word(how).unwrap();
            let state = Vcpu { core, since_ns: since, ..word };
            let back = Vcpu::from_word(state.to_word()).unwrap();
            prop_assert_eq!(back.activity, state.activity);
            prop_assert_eq!(back.core, core);
            prop_assert_eq!(back.since_ns, since & !255);
        }
    }

    #[test]
    fn zeros_say_nothing() {
        assert_eq!(Vcpu::from_word(0), None);
    }
}
