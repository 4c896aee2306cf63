//! A table on the heap, and what the kernel's programs do with one: for tests of its writer.

use std::sync::Arc;

use wire::FlowKey;

use crate::layout::{
    ACTIVE_AT, CPUS, CURSOR, CURSORS_AT, KEY, SAMPLES, SAMPLES_AT, SAMPLING_SHIFT, SIZE,
};
use crate::page::{Memory, Page};
use crate::reader::{Action, Hit};
use crate::sync::{AtomicU64, Ordering};

/// The memory of a table or a filter. Copies share it.
#[derive(Clone, Debug)]
pub struct Words(Arc<[AtomicU64]>);

impl Words {
    /// Returns memory of zeros.
    #[must_use]
    pub fn zeros() -> Self {
        Self::of_bytes(SIZE)
    }

    /// Returns the memory of a filter of connections, of zeros.
    #[must_use]
    pub fn of_filter() -> Self {
        Self::of_bytes(crate::connections::SIZE)
    }

    fn of_bytes(bytes: usize) -> Self {
        Self((0..bytes / 8).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Memory for Words {
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        &self.0[at / 8]
    }
}

impl<M: Memory> Page<M> {
    /// Does what a program does with a plain frame of this key and length on a CPU, which may be of
    /// a known connection. Returns whether it ends the frame.
    pub fn receive(&self, key: &FlowKey, cpu: usize, bytes: u64, now_ns: u64) -> bool {
        self.receive_of((key, true), cpu, bytes, now_ns)
    }

    /// Does the same with a frame that may be of a known connection or not.
    pub fn receive_of(
        &self,
        (key, may_be_known): (&FlowKey, bool),
        cpu: usize,
        bytes: u64,
        now_ns: u64,
    ) -> bool {
        let ends = |hit: &Hit| hit.action == Action::Drop || !may_be_known;
        if let Some(hit) = self.look_up(key, now_ns).filter(ends) {
            self.count(hit.slot, cpu, bytes);
            return true;
        }
        if let Some(shift) = (self.load(ACTIVE_AT) >> SAMPLING_SHIFT).checked_sub(1) {
            let cpu = cpu % CPUS;
            let cursor = self.word(CURSORS_AT + CURSOR * cpu);
            let count = cursor.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_multiple_of(1 << shift) {
                let place = (count >> shift) as usize % SAMPLES;
                let at = SAMPLES_AT + KEY * (SAMPLES * cpu + place);
                for (word, value) in key.words().iter().enumerate() {
                    self.store(at + 8 * word, *value);
                }
            }
        }
        false
    }
}
