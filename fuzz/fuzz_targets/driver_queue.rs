//! A driver's queue beside a hostile switch: see `src/driver_queue.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::driver_queue(data));
