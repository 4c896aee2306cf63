//! Split virtqueues: see `src/queue.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::iotlb(data));
