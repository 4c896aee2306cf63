//! Slot queues: see `src/queue_slots.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::queue_slots(data));
